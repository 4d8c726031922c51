"""The rules of a grammar, in llguidance's Lark, for calls of tools in a form (opensled/text/call_forms.py)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opensled.core.messages import CallForm
from opensled.text.call_forms import BLANKS, ID, MEANING, SAME, exact, kinds, leads, opening, repeats

Schema = dict[str, Any]
TextOf = Callable[[Schema], str]
# Models write JSON on one line with single spaces, or indented. Without a bound a model can pad for ever.
WHITESPACE = r" |\n[ \t]{0,40}"
SIGNS = {BLANKS: f"(\\n?({WHITESPACE}))?", ID: MEANING[ID]}
WORDS = {"boolean": "true|false|True|False", "null": "null|None"}  # which some models spell as Python does
ANY_KEY = r"[^<>\"'\s:=,{}\[\]()]{1,64}"
OTHER_LETTER = r"([^'\\\n]|\\['\"\\nt])"  # between Python's other quotes
# What a text that is not within JSON cannot be held to.
OF_TEXTS = {"pattern", "format", "minLength", "maxLength"}


def call_rules(form: CallForm, tools: Mapping[str, Schema], several: bool, text_of: TextOf) -> list[str]:
    """Rules with `calls`, and `rest_of_calls` with a number for what follows each mark that begins them.

    `tools`: the schemas of arguments by name; `text_of`: a schema as the grammar has it.
    """
    lead = form.first + form.head
    more = f"({_terminal(form.tail + form.between + form.head)} tool)*" if several and repeats(form) else ""
    rules = [
        "calls: opened behind",
        *(
            f"rest_of_calls{number}: {_terminal(each.removeprefix(mark))} tool behind"
            for number, (mark, each) in enumerate(leads(form).items())
        ),
        f"behind: {more} {_terminal(form.tail + form.last)}",
    ]
    spaced = lead if lead[:1] in ("<", "[", "{") else BLANKS + lead  # words may stand behind a blank
    for kind, start in (("opened", spaced), ("tool", "")):
        rules.append(f"{kind}: {' | '.join(f'{kind}{number}' for number in range(len(tools)))}")
        for number, name in enumerate(tools):
            head = _terminal(start + exact(name, form) + form.middle)
            rules.append(f"{kind}{number}: {head} arguments{number}")
    for number, schema in enumerate(tools.values()):
        own = f"arguments{number}"
        is_json = form.arguments == "json"
        rules += [f"{own}: %json {text_of(schema)}"] if is_json else _parameters(form, own, schema, text_of)
    return rules + (_any_value(literal(form.end)) if form.arguments == "quotes" else [])


def free_text(form: CallForm, names: Sequence[str]) -> str:
    """A rule for the text of answers in which nothing is called."""
    start = form.first + form.head
    if opening(form):
        return r"TEXT: /(.|\n)*/"
    if start.startswith("{"):  # also what is no call of these tools
        return r"TEXT: /[ \t\r\n]*([^{ \t\r\n](.|\n)*)?/"
    begun = "|".join(literal(start + exact(name, form) + form.middle) for name in names)
    return rf"TEXT: /(.|\n)*/ & ~/{SIGNS[BLANKS]}({begun})(.|\n)*/"


def unheld(form: CallForm, schema: Schema) -> bool:
    """Whether a form lets arguments be something that their schema forbids."""
    if form.arguments == "json" or not isinstance(known := schema.get("properties"), dict):
        return form.arguments != "json"
    nested = {"array", "object"} if form.arguments == "quotes" else set[str]()
    found = [(each, kinds(each, schema)) for each in known.values() if isinstance(each, dict)]
    return any(types & nested or (_is_text(types) and OF_TEXTS & each.keys()) for each, types in found)


def literal(text: str) -> str:
    """A regular expression for a text of a form; a slash would end it."""
    return "".join(SIGNS.get(sign) or _sign(SAME.get(sign, sign)) for sign in text)


def _sign(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{ord(letter):x}}}"


def _terminal(text: str) -> str:
    return f"/{literal(text)}/" if text else '""'


def _parameters(form: CallForm, name: str, schema: Schema, text_of: TextOf) -> list[str]:
    """Rules of the parameters of an object, in the order of its schema; free ones come last."""
    needed = schema.get("required") or ()
    known: Schema = {**(schema.get("properties") or {})}
    known |= {key: {} for key in needed if key not in known}
    between = _terminal({"tags": "", "quotes": "␣,␣"}.get(form.arguments, form.end))
    free = schema.get("additionalProperties", "properties" not in schema) is not False
    more = f"({between} {name}_free)*" if free else '""'
    rules = [f"{name}: {name}_from0", f"{name}_after{len(known)}: {more}"]
    rules.append(f"{name}_from{len(known)}: " + (f"({name}_free {more})?" if free else '""'))
    for number, (key, each) in enumerate(known.items()):
        own = f"{name}_{number}"
        rules.append(f"{own}: {_terminal(form.before_key + exact(key, form) + form.after_key)} {own}_value")
        rules += _value(form, f"{own}_value", each if isinstance(each, dict) else {}, schema, text_of)
        for state, lead in (("after", between), ("from", "")):  # behind others, or the first one
            skip = "" if key in needed else f" | {name}_{state}{number + 1}"
            rules.append(f"{name}_{state}{number}: {lead} {own} {name}_after{number + 1}{skip}")
    if free:
        key = f"/{literal(form.before_key)}{ANY_KEY}{literal(form.after_key)}/"
        rules += [
            f"{name}_free: {key} {name}_free_value",
            *_value(form, f"{name}_free_value", {}, schema, text_of),
        ]
    return rules


def _value(form: CallForm, own: str, each: Schema, root: Schema, text_of: TextOf) -> list[str]:
    """A text as it is, up to the tag or the quote behind it; all else as JSON, with words of Python."""
    types, texts, end = kinds(each, root), _texts(each), literal(form.end)
    around = {"tags": (SIGNS[BLANKS], SIGNS[BLANKS] + end), "quotes": (end, end)}.get(form.arguments)
    if around and texts:
        return [f"{own}: /{around[0]}({'|'.join(map(literal, texts))}){around[1]}/"]
    if form.arguments == "tags" and _is_text(types):
        return [rf"{own}[lazy]: /(.|\n)*{end}/"]
    if form.arguments == "quotes" and (not types or types & {"string", "array", "object"}):
        return [f"{own}: {'quoted' if types == {'string'} else 'any_value'}"]
    if around and form.arguments == "tags":
        framed = f"{own}: /{around[0]}/ {own}_json /{around[1]}/"
        return [framed, *_literal(f"{own}_json", each, root, text_of)]
    rules = _literal(own, each, root, text_of)
    if types == {"string"} and not OF_TEXTS & each.keys() and not re.search(r"['\\]", "".join(texts)):
        rules[0] += f" | /'({'|'.join(map(literal, texts)) or OTHER_LETTER + '*'})'/"
    return rules


def _any_value(quote: str) -> list[str]:
    """Any value, with texts between quotes of a form's own."""
    return [
        rf"quoted[lazy]: /{quote}(.|\n)*{quote}/",
        'any_value: quoted | plain | "[" (any_value ("," any_value)*)? "]" | "{" (any_pair ("," any_pair)*)? "}"',
        f"any_pair: /{ANY_KEY}:/ any_value",
        'plain: %json {"type": ["number", "boolean", "null"]}',
    ]


def _literal(own: str, each: Schema, root: Schema, text_of: TextOf) -> list[str]:
    types = kinds(each, root)
    if types and types <= WORDS.keys() and not {"enum", "const"} & each.keys():
        return [f"{own}: /{'|'.join(WORDS[kind] for kind in sorted(types))}/"]
    defs = {"$defs": root["$defs"]} if "$defs" in root else {}
    return [f"{own}: %json {text_of({**each, **defs})}"]


def _is_text(types: set[str]) -> bool:
    return not types or "string" in types


def _texts(each: Schema) -> list[str]:
    """The only texts that a value may be; none = any, or it may be no text."""
    values = [each["const"]] if "const" in each else each.get("enum")
    is_texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return values if values and is_texts else []
