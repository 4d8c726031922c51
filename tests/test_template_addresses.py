"""No chat template can write an address of this process's memory into a prompt, by any way to a text."""

import re
from copy import deepcopy
from functools import partial

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from opensled.text.chat_sandbox import _Hidden, environment

ADDRESS = re.compile(r"0x[0-9a-f]{6,}", re.IGNORECASE)
CHAT = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Ho"}],
    "name": "a",
    "number": 3,
}
FRAME = (
    "{% macro said(text) %}{{ text }}{{ caller }}{% endmacro %}{% set space = namespace(text='a', call=said) %}"
    "{% set turn = cycler('a', 'b') %}{% block body %}{% endblock %}"
)


def _listed(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(";")]


# Expressions for values of every kind that a template can get hold of.
VALUES = _listed("""
raise_exception ; strftime_now ; range ; dict ; lipsum ; cycler ; joiner ; namespace ; said ; self ;
self.body ; joiner() ; turn ; turn.next ; turn.reset ; cycler.next ; cycler.current ; space ; space.call ;
dict() ; dict.fromkeys ; dict(a=range) ; range(3) ; range(3).index ; name.upper ; name['upper'] ;
name.format ; '{}'.format_map ; name.encode() ; name.encode().hex ; ''.maketrans ; number.bit_length ;
(1.5).hex ; messages ; messages.index ; messages.copy ; messages[0].items ; messages[0].items() ;
messages[0].keys ; messages[0].keys() ; messages[0].keys().mapping ; messages[0].keys().isdisjoint ;
messages[0].values() ; messages[0].get ; (1, 2).count ; messages|reverse ; range(3)|reverse ;
messages|map(attribute='role') ; messages|map('string') ; messages|select ; messages|selectattr('role') ;
messages|reject ; messages|rejectattr('role') ; messages|unique ; messages|batch(2) ; messages|slice(2) ;
messages[0]|items ; messages|groupby('role') ; name|attr('upper') ; messages|map('attr', 'get') ;
messages|map(attribute='get') ; ['a']|map('attr', 'upper')|list ; true ; none ; nothing
""")
# Ways from a value to a text.
WAYS = _listed("""
{{ VALUE }} ; {{ VALUE|string }} ; {{ VALUE ~ '' }} ; {{ [VALUE] }} ; {{ (VALUE,)|string|reverse }} ;
{{ {'a': VALUE} }} ; {{ '%s' % (VALUE,) }} ; {{ '%r' % (VALUE,) }} ; {{ '%a' % (VALUE,) }} ;
{{ '{}'.format(VALUE) }} ; {{ '{!r}'.format(VALUE) }} ; {{ '{a}'.format_map({'a': VALUE}) }} ;
{{ '%s'|format(VALUE) }} ; {{ [VALUE]|join }} ; {{ VALUE|pprint }} ;
{{ [VALUE, VALUE]|map('string')|list }} ; {{ VALUE|tojson }} ; {{ [VALUE]|tojson }} ; {{ VALUE|upper }} ;
{{ VALUE|escape }} ; {{ VALUE|list }} ; {{ VALUE|first }} ; {{ namespace(a=VALUE) }} ;
{% set at = namespace() %}{% set at.a = VALUE %}{{ at }}{{ at.a }} ; {{ said(VALUE) }} ;
{% call said(1) %}{{ VALUE }}{% endcall %} ; {{ raise_exception(VALUE) }} ; {{ {}[VALUE].a }} ;
{{ VALUE.no_such.thing }} ; {{ VALUE + 1 }} ; {{ VALUE[0] }} ; {{ VALUE() }} ; {{ VALUE(1) }} ;
{{ VALUE(VALUE) }} ; {{ VALUE(a=1) }} ; {{ range(VALUE) }} ; {{ dict(VALUE) }} ; {{ VALUE|int }} ;
{{ VALUE|xmlattr }} ; {{ VALUE|urlize }} ; {{ VALUE|sort }} ; {{ VALUE|sum }} ; {{ VALUE|length }} ;
{{ VALUE|indent }} ; {{ strftime_now(VALUE) }} ; {{ 'a'|center(VALUE) }} ; {{ [1]|map(VALUE)|list }} ;
{{ VALUE|random }} ; {{ VALUE|dictsort }} ; {{ lipsum(VALUE) }} ; {{ joiner(VALUE)() }} ;
{% set it = cycler(VALUE) %}{{ it.next() }}{{ it }} ;
{% for a in VALUE %}{{ a }}{{ loop }}{{ loop.cycle }}{% endfor %} ;
{% for a in [VALUE] recursive %}{{ a }}{{ loop.previtem }}{{ loop.changed }}{{ loop.undefined }}{% endfor %}
""")


def said(template, **more) -> str:
    """What a template writes, or the error by which it ends."""
    try:
        return template.render(deepcopy(CHAT), **more)
    except Exception as error:
        return str(error)


def values_in(made):
    """`VALUES` as a template gets hold of them, by their expressions."""
    found = {}
    for text in VALUES:
        note = partial(found.__setitem__, text)
        said(made.from_string(f"{FRAME}{{% set no = note(({text})) %}}"), note=note)
    assert len(found) == len(VALUES)
    return found


def test_no_way_from_a_value_to_a_text_tells_an_address():
    made = environment()
    ways = [(way, made.from_string(FRAME + way.replace("VALUE", "value"))) for way in WAYS]
    for text, value in values_in(made).items():
        for way, template in ways:
            got = said(template, value=value)
            assert not ADDRESS.search(got) and not ADDRESS.search(got[::-1]), (text, way)


@pytest.mark.parametrize("way", WAYS[:12])
def test_what_is_computed_as_a_template_is_compiled_tells_none(way):
    made = environment()
    for value in VALUES:
        got = said(made.from_string(FRAME + way.replace("VALUE", f"({value})")))
        assert not ADDRESS.search(got) and not ADDRESS.search(got[::-1]), value


def test_no_attribute_of_a_value_tells_an_address():
    made = environment()
    context = made.from_string("").new_context({})
    for text, value in values_in(made).items():
        for name in dir(value._value if isinstance(value, _Hidden) else value):
            for get in (made.getattr, made.getitem):
                got = _texts(partial(get, value, name), partial(made.call, context))
                assert not ADDRESS.search(got), (text, name)


def _texts(get, call) -> str:
    """Of what is got, and of its result if it can be called."""
    texts = []
    try:
        texts.append(repr(got := get()))
        texts.append(repr(call(got)))
    except Exception as error:
        texts.append(str(error))
    return " ".join(texts)


def test_every_filter_and_global_is_looked_at():
    made = environment()
    for name in made.filters:
        for value in ("messages", "name", "number", "range", "messages[0]", "name.upper"):
            for arguments in ("", "(1)", "('a')", "(attribute='role')"):
                try:
                    template = made.from_string(f"{{{{ {value}|{name}{arguments} }}}}")
                except TemplateError as error:
                    assert not ADDRESS.search(str(error)), (name, value, arguments)
                else:
                    assert not ADDRESS.search(said(template)), (name, value, arguments)
    assert made.globals.keys() <= {*VALUES}, "a new one: add it above"


SERVED = (
    "{% for turn in messages|reverse %}{{ loop.index }}/{{ loop.length }} {{ turn.content }}{% endfor %}",
    "{{ messages|map(attribute='content')|join(', ') }} {{ (messages|map(attribute='content')|list)[-1] }}",
    "{% if messages|selectattr('role', 'equalto', 'system') %}a generator is true, also an empty one{% "
    "endif %}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ (messages|reverse|first).content }}",
    "{% for key, value in messages[0].items() %}{{ key.upper() }}={{ value.strip().title() }} {% endfor %}",
    "{% for key, value in messages[0]|items %}{{ key }}={{ value }} {% endfor %}{{ messages[0].get('no', "
    "'way') }}",
    "{% set ns = namespace(n=0, self=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ "
    "ns.n }}{{ ns.self }}",
    "{% set j = joiner(', ') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ loop is "
    "defined }}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{% endfor %}",
    "{% macro f(x, y=2) %}{{ x }}{{ y }}{{ caller() if caller else '' }}{% endmacro %}{{ f(1) }}{% call "
    "f(3) %}in{% endcall %}",
    "{% set ns = namespace(f=range) %}{{ ns.f(3)|list }}{{ range(2)|reverse|list }}{{ dict(a=1) }}{{ "
    "dict.fromkeys('ab') }}",
    "{{ '{0} {a[role]} {a.role!r}'.format(1, a=messages[0]) }} {{ '%s' % name }} {{ 'a'.join(['b', 'c']) }}",
    "{{ name.upper is callable }}{{ name is callable }}{{ (messages|reverse) is iterable }}{{ name.upper "
    "is iterable }}",
    "{% block inner %}{{ name }}{% endblock %}{{ self.inner() }}{{ messages|groupby('role')|length }}",
    "{% for row in messages|batch(1) %}{{ row|length }}{% endfor %}{% for c in messages|slice(2) %}{{ c "
    "}}{% endfor %}",
    "{{ messages|tojson }}{{ messages[0]|tojson(indent=1) }}{{ "
    "messages|unique(attribute='role')|list|length }}",
    "{% for m in messages recursive %}{{ m.content }}{% if loop.depth < 2 %}{{ loop([m]) }}{% endif %}{% "
    "endfor %}",
)  # fmt: skip


@pytest.mark.parametrize("template", SERVED)
def test_templates_write_what_they_write_in_jinjas_own_sandbox(template):
    """But for what a filter of transformers' changes."""
    ours = environment()
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = ours.filters["tojson"]
    assert ours.from_string(template).render(deepcopy(CHAT)) == plain.from_string(template).render(CHAT)
