"""The rules of a grammar, in llguidance's Lark, for calls of tools in a form (opensled/text/call_forms.py)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opensled.core.messages import CallForm
from opensled.text.call_forms import BLANKS, ID, MEANING, SAME, exact, kinds, opening, repeats

Schema = dict[str, Any]
# Models write JSON on one line with single spaces, or indented. Without a bound a model can pad for ever.
WHITESPACE = r" |\n[ \t]{0,40}"
SIGNS = {BLANKS: f"({WHITESPACE})?", ID: MEANING[ID]}
WORDS = {"boolean": "true|false|True|False", "null": "null|None"}  # which some models spell as Python does
ANY_KEY = r"[^<>\"'\s:=,{}\[\]()]{1,64}"
# What a text that is not within JSON cannot be held to.
OF_TEXTS = ("pattern", "format", "minLength", "maxLength")


def call_rules(
    form: CallForm, tools: Mapping[str, Schema], several: bool, text_of: Callable[[Schema], str]
) -> list[str]:
    """Rules with `calls`; and `rest` for what follows the mark that begins them, if they have one.

    `tools`: the schemas of arguments by name; `text_of`: a schema as the grammar has it.
    """
    lead, mark = form.first + form.head, opening(form)
    more = f"({_terminal(form.tail + form.between + form.head)} tool)*" if several and repeats(form) else ""
    rules = [
        "calls: opened behind",
        f"rest_of_calls: {_terminal(lead.removeprefix(mark))} tool behind",
        f"behind: {more} {_terminal(form.tail + form.last)}",
        *(
            f"{each}: {' | '.join(f'{each}{number}' for number in range(len(tools)))}"
            for each in ("opened", "tool")
        ),
    ]
    for number, (name, schema) in enumerate(tools.items()):
        own, arguments = exact(name, form) + form.middle, f"arguments{number}"
        rules += [
            f"opened{number}: {_terminal(lead + own)} {arguments}",
            f"tool{number}: {_terminal(own)} {arguments}",
        ]
        rules += STYLES[form.arguments](form, arguments, schema, text_of)
    return rules + (_any_value(form) if form.arguments == "quotes" else [])


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
    if form.arguments == "json":
        return False
    known = schema.get("properties")
    if not isinstance(known, dict):
        return True
    nested = ("array", "object") if form.arguments == "quotes" else ()
    texts = [each for each in known.values() if isinstance(each, dict) and _is_text(each, schema)]
    return any(key in each for each in texts for key in OF_TEXTS) or any(
        kind in kinds(each, schema) for each in known.values() for kind in nested
    )


def literal(text: str) -> str:
    """A regular expression for a text of a form; a slash would end it."""
    return "".join(SIGNS.get(sign) or _sign(SAME.get(sign, sign)) for sign in text)


def _sign(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{ord(letter):x}}}"


def _terminal(text: str) -> str:
    return f"/{literal(text)}/" if text else '""'


def _json(form: CallForm, name: str, schema: Schema, text_of: Callable[[Schema], str]) -> list[str]:
    return [f"{name}: %json {text_of(schema)}"]


def _tags(form: CallForm, name: str, schema: Schema, text_of: Callable[[Schema], str]) -> list[str]:
    """Each value up to the tag behind it: a text as it is, all else as JSON."""

    def value(own: str, each: Schema) -> list[str]:
        texts = _texts(each)
        if texts:
            choice = "|".join(map(literal, texts))
            return [f"{own}: /{SIGNS[BLANKS]}({choice}){literal('␣' + form.end)}/"]
        if _is_text(each, schema):
            return [rf"{own}[lazy]: /(.|\n)*{literal(form.end)}/"]
        return [
            f"{own}: {_terminal('␣')} {own}_json {_terminal('␣' + form.end)}",
            *_literal(f"{own}_json", each, schema, text_of),
        ]

    return _sequence(form, name, schema, "", value)


def _python(form: CallForm, name: str, schema: Schema, text_of: Callable[[Schema], str]) -> list[str]:
    return _sequence(form, name, schema, form.end, lambda own, each: _literal(own, each, schema, text_of))


def _quotes(form: CallForm, name: str, schema: Schema, text_of: Callable[[Schema], str]) -> list[str]:
    quote = literal(form.end)

    def value(own: str, each: Schema) -> list[str]:
        if texts := _texts(each):
            return [f"{own}: /{quote}({'|'.join(map(literal, texts))}){quote}/"]
        found = kinds(each, schema)
        if found == {"string"}:
            return [f"{own}: quoted"]
        return (
            _literal(own, each, schema, text_of)
            if found and found <= {"integer", "number", *WORDS}
            else [f"{own}: any_value"]
        )

    return _sequence(form, name, schema, "␣,␣", value)


def _any_value(form: CallForm) -> list[str]:
    """Any value between quotes of a form's own."""
    quote = literal(form.end)
    return [
        rf"quoted: /{quote}/ quoted_rest",
        rf"quoted_rest[lazy]: /(.|\n)*{quote}/",
        'any_value: quoted | plain | "[" (any_value ("," any_value)*)? "]" | "{" (any_pair ("," any_pair)*)? "}"',
        f"any_pair: /{ANY_KEY}:/ any_value",
        'plain: %json {"type": ["number", "boolean", "null"]}',
    ]


STYLES = {"json": _json, "tags": _tags, "python": _python, "quotes": _quotes}


def _sequence(
    form: CallForm, name: str, schema: Schema, apart: str, value: Callable[[str, Schema], list[str]]
) -> list[str]:
    """Rules of the parameters of an object, in the order of its schema, `apart` between two; free ones come last."""
    known = {
        key: each if isinstance(each, dict) else {} for key, each in (schema.get("properties") or {}).items()
    }
    needed = schema.get("required") or ()
    known |= {key: {} for key in needed if key not in known}
    between, rules = _terminal(apart) if apart else "", list[str]()
    for number, (key, each) in enumerate(known.items()):
        own, following = f"{name}_{number}", number + 1
        rules += [
            f"{own}: {_terminal(form.before_key + exact(key, form) + form.after_key)} {own}_value",
            *value(f"{own}_value", each),
        ]
        skip = "" if key in needed else f" | {name}_after{following}"
        rules.append(f"{name}_after{number}: {between} {own} {name}_after{following}{skip}")
        skip = "" if key in needed else f" | {name}_from{following}"
        rules.append(f"{name}_from{number}: {own} {name}_after{following}{skip}")
    free = schema.get("additionalProperties", "properties" not in schema) is not False
    rules += [
        f"{name}_from{len(known)}: ({name}_free ({between} {name}_free)*)?"
        if free
        else f'{name}_from{len(known)}: ""'
    ]
    rules += [
        f"{name}_after{len(known)}: ({between} {name}_free)*" if free else f'{name}_after{len(known)}: ""'
    ]
    if free:
        key_rule = f"/{literal(form.before_key)}{ANY_KEY}{literal(form.after_key)}/"
        rules += [f"{name}_free: {key_rule} {name}_free_value", *value(f"{name}_free_value", {})]
    return [f"{name}: {name}_from0", *rules]


def _literal(own: str, each: Schema, root: Schema, text_of: Callable[[Schema], str]) -> list[str]:
    """A value as JSON, or as the word that Python has for it."""
    found = kinds(each, root)
    if found and found <= WORDS.keys() and not {"enum", "const"} & each.keys():
        return [f"{own}: /{'|'.join(WORDS[kind] for kind in sorted(found))}/"]
    defs = {"$defs": root["$defs"]} if "$defs" in root else {}
    return [f"{own}: %json {text_of({**each, **defs})}"]


def _is_text(each: Schema, root: Schema) -> bool:
    found = kinds(each, root)
    return not found or "string" in found


def _texts(each: Schema) -> list[str]:
    """The only texts that a value may be; none = any, or it may be no text."""
    values = [each["const"]] if "const" in each else each.get("enum")
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    return texts if texts and len(texts) == len(values or ()) else []
