"""How models write calls of tools: one table of forms, read by all who write a grammar or look for calls in a text.

In the texts of a form `BLANKS` stands for any blanks, and `ID` for a short id or number; all else is literal. A form is
taken from what the chat template itself writes (verify_server/text/call_probe.py), and from this table where that does
not tell it all: arguments that are no JSON, numbered calls, and templates that only describe their calls.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from opensled.core.messages import CallForm, Guide
from opensled.text.schema_keywords import TYPES, json_kind, json_type, target_of

BLANKS, ID = "␣", "№"
MEANING = {BLANKS: r"\s*", ID: "[A-Za-z0-9]{1,16}"}
SAME = {"\ue000": BLANKS, "\ue001": ID}  # the two signs themselves, where a name has them
CALLING = ("auto", "required")  # of `Guide.tool_choice`
DEPTH = 8  # references and unions that are followed to the types of a parameter; chosen


def _form(spelled: str) -> CallForm:
    return CallForm(*spelled.split("¦"))


BARE = _form('¦{␣"name":␣"¦",␣"arguments":␣¦␣}')
TAGGED = _form('¦<tool_call>␣{␣"name":␣"¦",␣"arguments":␣¦␣}␣</tool_call>¦␣')
LFM = _form("<|tool_call_start|>[¦¦(¦)¦,␣¦]<|tool_call_end|>¦python¦¦=¦,␣")
Table = tuple[tuple[str, CallForm], ...]
# Marks that a template has, all of them -> the form; the first that fits.
FORMS: Table = (
    ("<|channel|>", TAGGED),  # as the reader of channels tells them
    ("<|tool_call_argument_begin|>", _form(
        "<|tool_calls_section_begin|>␣¦<|tool_call_begin|>␣functions.¦:№␣<|tool_call_argument_begin|>␣¦"
        "␣<|tool_call_end|>¦␣¦␣<|tool_calls_section_end|>")),
    ("<|START_ACTION|>", _form(
        '<|START_ACTION|>␣[␣¦{␣"tool_call_id":␣"№",␣"tool_name":␣"¦",␣"parameters":␣¦␣}¦␣,␣¦␣]␣<|END_ACTION|>')),
    ('<|tool_call> <|"|>', _form('¦<|tool_call>call:¦{¦}<tool_call|>¦¦¦quotes¦¦:¦<|"|>')),
    ("<start_function_call>", _form("¦<start_function_call>call:¦{¦}<end_function_call>¦¦¦quotes¦¦:¦<escape>")),
)  # fmt: skip
# The same of templates that only describe calls, or of which nothing else is known.
TOLD: Table = (
    ("<tool_call> <function= <parameter=", _form(
        "¦<tool_call>␣<function=¦>¦␣</function>␣</tool_call>¦␣¦¦tags¦␣<parameter=¦>¦</parameter>")),
    ("<tool_call> <arg_key>", _form(
        "¦<tool_call>␣¦¦␣</tool_call>¦␣¦¦tags¦␣<arg_key>¦</arg_key>␣<arg_value>¦</arg_value>")),
    ("<｜tool▁calls▁begin｜> ```json", _form(
        "<｜tool▁calls▁begin｜>␣¦<｜tool▁call▁begin｜>function<｜tool▁sep｜>¦␣```json␣¦␣```␣<｜tool▁call▁end｜>¦␣¦"
        "␣<｜tool▁calls▁end｜>")),
    ("<｜tool▁calls▁begin｜>", _form(
        "<｜tool▁calls▁begin｜>␣¦<｜tool▁call▁begin｜>¦<｜tool▁sep｜>␣¦␣<｜tool▁call▁end｜>¦␣¦␣<｜tool▁calls▁end｜>")),
    ("<tool_call>", TAGGED),
    ("<|tool_list_start|>", LFM),
    ('keep_past_thinking "List', LFM),
    ("<|tool_call|>", _form('<|tool_call|>␣[␣¦{␣"name":␣"¦",␣"arguments":␣¦␣}¦␣,␣¦␣]')),
    ('"parameters" <|python_tag|>', _form('¦{␣"name":␣"¦",␣"parameters":␣¦␣}')),
)  # fmt: skip


def form_told(template: str, table: Table) -> CallForm | None:
    """The first form of a table whose marks are all in a template."""
    return next((form for marks, form in table if all(mark in template for mark in marks.split())), None)


def opening(form: CallForm) -> str:
    """The mark that begins a form's calls, by which free text is told from them; "" = they begin as JSON or a name."""
    mark = re.match(r"[<\[][^<>\[\]]*[>\]]|[^\w␣{\[\"]*\w[^␣{\[\"]*", form.first + form.head)
    return mark[0] if mark else ""


def leads(form: CallForm) -> dict[str, str]:
    """What begins calls, by the mark that tells it from text ("" = none): as the form has it, and without the outer
    tag, which Qwen3-Coder and DeepSeek often forget."""
    lead, mark = form.first + form.head, opening(form)
    inner = lead.removeprefix(mark).lstrip(BLANKS)
    return {mark: lead, **({opening(CallForm(head=inner)): inner} if mark and inner.startswith("<") else {})}


def repeats(form: CallForm) -> bool:
    """Whether several calls can follow each other."""
    return bool(form.between or opening(form._replace(first="")))


def exact(name: str, form: CallForm) -> str:
    """A name of people in a text of a form, where it stands for itself; JSON spells some letters its own way."""
    if form.arguments == "json" and form.head.endswith('"'):
        name = json.dumps(name, ensure_ascii=False)[1:-1]
    return name.translate({ord(sign): other for other, sign in SAME.items()})


def match(text: str, given: str) -> int | None:
    """How much of the beginning of `given` is a text of a form; -1: none of it, None: it may still become that."""
    at = 0
    for sign in text:
        if sign in MEANING:
            found = re.compile(MEANING[sign]).match(given, at)
            if found is None or (found.end() == len(given) and sign == ID):
                return None if at == len(given) or found else -1
            at = found.end()
        elif at == len(given):
            return None
        elif given[at] != SAME.get(sign, sign):
            return -1
        else:
            at += 1
    return at


def pattern(text: str) -> str:
    """A regular expression of Python for a text of a form."""
    return "".join(MEANING.get(sign) or re.escape(SAME.get(sign, sign)) for sign in text)


def call_marks(guide: Guide | None, form: CallForm | None) -> str:
    """The texts of a form, of which special tokens are shown in an answer that may call tools; "" = it may not."""
    return "".join(form) if form and guide and guide.tools and guide.tool_choice in CALLING else ""


def call_heads(guide: Guide | None, form: CallForm | None) -> list[str]:
    """What begins the call of each tool, in a form whose calls have a mark."""
    names = guide.callable if guide and form and opening(form) else ()
    return [form.first + form.head + exact(name, form) + form.middle for name in names if form]


def kinds(schema: object, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a parameter may have, as its schema says; none = any."""
    if not isinstance(schema, dict) or depth > DEPTH:
        return set()
    if (pointer := schema.get("$ref")) is not None:
        return kinds(target_of(root, pointer), root, depth + 1)
    if "type" in schema:
        stated = json_type(schema["type"])
        return {kind for kind in (stated if isinstance(stated, list) else [stated]) if kind in TYPES}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {json_kind(value) for value in values}
    options = next(
        (schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)), ()
    )
    found = [kinds(option, root, depth + 1) for option in options]
    return set().union(*found) if all(found) else set()
