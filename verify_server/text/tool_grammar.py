"""The grammar of a guided answer, in llguidance's Lark, from `response_format` and `tools`.

Tool calls have the form of the chat template (opensled/text/call_forms.py). With `tool_choice` "auto" answers are free
text or calls; calls that a mark begins may also follow free text. Beside a schema of the answer an answer is a call, or
has that schema. Bare JSON calls have no separator, so there is at most one: `parallel` allows several calls, but does
not require them.

A model that thinks first does so freely: the grammar of the answer begins behind the end tag, and blanks.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import CallForm, Guide, ThoughtTags, Tool
from opensled.text.call_forms import leads, opening
from opensled.text.families import CHANNELS, HARMONY
from opensled.text.held_schema import beyond, reduce
from opensled.text.thought_reader import Start
from verify_server.text.call_rules import WHITESPACE, call_rules, free_text, unheld
from verify_server.text.chat_template import parameters, parse_object

# The compiler takes seconds to minutes for these, without a way to interrupt it: patterns of keys, each compared with
# each other, and regular expressions that must all match the same text. Chosen: up to here it takes less.
MAX_KEY_PATTERNS = 100
MAX_JOINED_PATTERNS = 8
# `multipleOf` N takes an automaton of N states, and several that one value must fulfil take their product: 99,991 takes
# 1.5 s and 55 MB, 1,000,003 takes 6 s. Powers of ten are free. Chosen: up to here a compile takes 0.1 s and 8 MB.
MAX_MULTIPLE = 10_000
# Keywords that include another schema, and those without an effect on what is valid.
APPLICATORS = {"allOf", "anyOf", "oneOf", "$ref"}
ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$defs",
    "definitions",
    "$id",
    "$schema",
    "$comment",
}
EVERYWHERE = {"whitespace_pattern": WHITESPACE}
BESIDE_SIGNS = {
    "whitespace_flexible": False,
    **{
        f"{name}_separator": f"({WHITESPACE})?{sign}({WHITESPACE})?"
        for name, sign in (("item", ","), ("key", ":"))
    },
}
# Allow every token whose bytes fit the grammar, not only those of the canonical tokenization.
HEADER = '%llguidance {"no_forcing": true}'
# Between the end of thoughts and the answer; without a bound a model can pad for ever.
BLANKS = r"[ \t\r\n]{0,40}"
# Heads of harmony's messages: of the answer, of a call up to the tool's name, of a call elsewhere; the end of a head.
FINAL, TO_TOOL = r"<\|channel\|>final", r"( ?|(.|\n)*<\|(start|channel)\|>[a-z]* ?)to=functions\."
ELSEWHERE = r"(.|\n)*<\|(start|channel)\|>[a-z]* ?to=[^f](.|\n)*"
HEAD_ENDS = r"( ?<\|channel\|>(commentary|analysis))?( ?<\|constrain\|>)?( ?json)?<\|message\|>"


@dataclass(frozen=True)
class GrammarPart:
    """One JSON schema of a grammar, so that an error can name the schema that cannot be compiled."""

    what: str  # its name in errors
    field: str  # the request field that contains it
    schema: str


@dataclass(frozen=True)
class Grammar:
    """A grammar for llguidance, with the schemas that errors may name."""

    lark: str
    parts: tuple[GrammarPart, ...]
    field: str  # the request field that asked for a grammar
    loose: tuple[str, ...] = ()  # tools whose arguments the form of calls lets be more than their schemas say


@dataclass(frozen=True)
class Thoughts:
    """What an answer may think before the grammar holds."""

    tags: ThoughtTags
    start: Start


def grammar_of(
    guide: Guide,
    form: CallForm | None,
    coarse: Mapping[str, int] | None = None,
    thoughts: Thoughts | None = None,
) -> Grammar:
    """The grammar of a guide for a model that writes calls in this form; `thoughts`: None = nothing comes before it.

    `coarse`: the names of tools, without `strict`, that are held less closely: at 1 without what takes the compiler
    longest, at 2 their arguments are any object.

    Raises InvalidRequest and Unsupported with `field` `response_format`, `tools` or `tool_choice`.
    """
    field = "tools" if guide.tool_choice in ("auto", "required") else "response_format"
    if field == "tools" and thoughts and thoughts.tags.start == HARMONY.start:
        rules, parts = _channel_rules(guide, coarse or {})
        return Grammar("\n".join([HEADER, *rules]), tuple(parts), field)
    if field == "response_format":
        part = _answer_part(guide)
        rules, parts, loose = ["start: answer", f"answer: %json {part.schema}"], [part], tuple[str, ...]()
    elif form is None:
        raise Unsupported("this target writes its tool calls in a form without a known grammar", field)
    else:
        rules, parts, loose = _tools_rules(guide, form, coarse or {})
    mark = opening(form) if form and guide.tool_choice == "auto" else ""
    rules = [HEADER, *(_behind(thoughts, rules, mark) if thoughts else rules)]
    return Grammar("\n".join(rules), tuple(parts), field, loose)


def _behind(thoughts: Thoughts, rules: Sequence[str], mark: str) -> list[str]:
    """`rules` for what comes behind thoughts; where the model itself begins these, other text begins otherwise.
    Thoughts with the `mark` of a call ("" = none) may end the answer."""
    start, end, answer = map(re.escape, thoughts.tags[:3])
    if thoughts.tags.start in CHANNELS:  # whatever the messages before it are
        end, answer, mark = answer, "", ""
    opening = rf"{BLANKS}{start}".replace("/", r"\/")
    inside = rf"(.|\n)*{end}".replace("/", r"\/")
    if thoughts.start.inside:
        before = ["start: thoughts blanks rest", f"thoughts[lazy]: /{inside}/"]
    elif thoughts.start.may_open:
        before = ["start: rest | thoughts blanks rest", f"thoughts[lazy]: /{opening}{inside}/"]
    else:
        return list(rules)
    unlike = rf" & ~/{opening}(.|\n)*/" if thoughts.start.may_open else ""
    behind = [
        re.sub("^start:", "rest:", rule) if not rule.startswith("TEXT:") else rule + unlike for rule in rules
    ]
    between = f"{BLANKS}({answer})?{BLANKS}".replace("/", r"\/") if answer else BLANKS
    if mark:
        begun = "" if thoughts.start.inside else opening
        before[0] += " | CALLED"
        called = rf"{begun}(.|\n)*{re.escape(mark)}(.|\n)*".replace("/", r"\/")
        before.append(rf"CALLED: /{called}/ & ~/{begun}{inside}(.|\n)*/")
    return [*before, f"blanks: /{between}/", *behind]


def _tools_rules(
    guide: Guide, form: CallForm, coarse: Mapping[str, int]
) -> tuple[list[str], list[GrammarPart], tuple[str, ...]]:
    """The rules, what errors may name, and the tools whose arguments the form cannot hold to all of their schemas."""
    tools = {tool.name: _arguments(tool, coarse.get(tool.name, 0)) for tool in _callable(guide)}
    parts = [
        GrammarPart(f"the parameters of tool {name!r}", "tools", _schema_text(each, "tools"))
        for name, each in tools.items()
    ]
    rules = call_rules(form, tools, guide.parallel, lambda each: _schema_text(each, "tools"))
    if guide.tool_choice == "required":
        rules.append("start: calls")
    elif guide.json_schema:
        parts.append(_answer_part(guide))
        bare = (form.first + form.head).startswith("{")  # as the answer may
        schema = _either(form, tools, parts[-1].schema) if bare else parts[-1].schema
        rules += ["start: answer" if bare else "start: answer | calls", f"answer: %json {schema}"]
    elif opening(form):
        marks = dict(enumerate(leads(form)))
        rules.append(f"start: TEXT | {' | '.join(f'head{at} rest_of_calls{at}' for at in marks)}")
        rules += [f'head{at}[lazy]: TEXT "{mark}"' for at, mark in marks.items()]
        rules.append(free_text(form, ()))
    else:
        rules += ["start: TEXT | calls", free_text(form, tuple(tools))]
    return rules, parts, tuple(name for name, each in tools.items() if unheld(form, each))


def _channel_rules(guide: Guide, coarse: Mapping[str, int]) -> tuple[list[str], list[GrammarPart]]:
    """Rules of an answer in harmony's channels: any messages, then the final one or a call, whose head has its name."""
    rules = [
        "start: to_tool call",
        rf"to_tool[lazy]: /{TO_TOOL}/ & ~/(.|\n)*{FINAL}(.|\n)*/ & ~/{ELSEWHERE}/",
        rf"final[lazy]: /(.|\n)*{FINAL}{HEAD_ENDS}/",
        r"TEXT: /(.|\n)*/",
    ]
    parts, calls = list[GrammarPart](), list[str]()
    if guide.tool_choice == "auto":
        parts += [_answer_part(guide)] if guide.json_schema else []
        rules[0] += f" | final {'answer' if parts else 'TEXT'}"
        rules += [f"answer: %json {part.schema}" for part in parts]
    for number, tool in enumerate(_callable(guide)):
        schema = _schema_text(_arguments(tool, coarse.get(tool.name, 0)), "tools")
        parts.append(GrammarPart(f"the parameters of tool {tool.name!r}", "tools", schema))
        name = re.escape(tool.name).replace("/", r"\/")
        rules += [f"head{number}: /{name}{HEAD_ENDS}/", f"arguments{number}: %json {schema}"]
        calls.append(f"head{number} arguments{number}")
    return [*rules, f"call: {' | '.join(calls)}"], parts


def _either(form: CallForm, tools: Mapping[str, dict[str, Any]], answer: str) -> str:
    """A schema of the answer, or of a call that is JSON without a mark; each has an `$id` for its own references."""
    name, arguments = re.findall(r'"(\w+)":', form.head + form.middle)
    calls = [
        {
            "type": "object",
            "properties": {name: {"const": tool}, arguments: {**schema, "$id": f"tool:{number}"}},
            "required": [name, arguments],
            "additionalProperties": False,
        }
        for number, (tool, schema) in enumerate(tools.items())
    ]
    return _schema_text({"anyOf": [{**json.loads(answer), "$id": "answer"}, *calls]}, "response_format")


def _callable(guide: Guide) -> tuple[Tool, ...]:
    """The tools that may be called: at least one, each name once."""
    names = [tool.name for tool in guide.tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("two tools have the same name", "tools")
    tools = tuple(tool for tool in guide.tools if guide.function in ("", tool.name))
    if not tools:
        wanted = f"the tool {guide.function!r}" if guide.function else "a tool"
        raise InvalidRequest(f"tool_choice asks for {wanted}, but tools has none", "tool_choice")
    return tools


def _arguments(tool: Tool, coarse: int) -> dict[str, Any]:
    """The schema that holds the arguments of a tool."""
    schema = parameters(tool)
    if coarse > 1:
        return {"type": "object"}
    return _reduce_schema(schema, f"the parameters of tool {tool.name!r}", "tools", tool.strict, coarse > 0)


def _reduce_schema(
    schema: dict[str, Any], what: str, field: str, strict: bool, coarse: bool = False
) -> dict[str, Any]:
    """What the grammar holds of a schema; raises Unsupported if that must be all of it and is not."""
    found = reduce(schema, field, coarse)
    if strict and found.left_out:
        raise Unsupported(f"{what}: {beyond(*next(iter(found.left_out.items())))}", field)
    return found.schema


def _answer_part(guide: Guide) -> GrammarPart:
    schema = parse_object(guide.json_schema, "the schema is", "response_format") or {"type": "object"}
    schema = _reduce_schema(schema, "the schema", "response_format", guide.strict)
    return GrammarPart("the schema", "response_format", _schema_text(schema, "response_format"))


def _schema_text(schema: dict[str, Any], field: str) -> str:
    """A schema for llguidance, with our options instead of those that the schema may contain."""
    nodes = list(_objects(schema))
    key_patterns = sum(len(_items(node, "patternProperties")) for node in nodes)
    patterns = sum(isinstance(node.get(key), str) for node in nodes for key in ("pattern", "format"))
    if key_patterns > MAX_KEY_PATTERNS or (patterns > MAX_JOINED_PATTERNS and any(map(_joins, nodes))):
        raise Unsupported("too many patterns to compile; use fewer of them, or no allOf beside them", field)
    _check_multiples(nodes, field)
    return json.dumps({**schema, "x-guidance": blanks()})


@cache
def blanks() -> dict[str, Any]:
    """Where a JSON answer may have blanks. An llguidance before 1.9, such as vLLM's, takes a whitespace pattern any
    number of times, so with it they stand beside commas and colons alone: such an answer is never indented."""
    try:
        older = tuple(map(int, version("llguidance").split(".")[:2])) < (1, 9)
    except PackageNotFoundError:  # nothing is compiled then
        older = False
    return BESIDE_SIGNS if older else EVERYWHERE


def _joins(node: dict[str, Any]) -> bool:
    """Whether a value must match several schemas at once."""
    applied = APPLICATORS & node.keys()
    return bool(applied) and (len(node.keys() - ANNOTATIONS) > 1 or len(_items(node, "allOf")) > 1)


def _check_multiples(nodes: Sequence[dict[str, Any]], field: str) -> None:
    """Refuse the values of `multipleOf` that the compiler would work on for too long."""
    sizes = [_automaton(node["multipleOf"]) for node in nodes if "multipleOf" in node]
    joined = any(map(_joins, nodes))
    if (math.prod(sizes) if joined else sum(sizes)) > MAX_MULTIPLE:
        verb = "multiply" if joined else "add up"
        raise InvalidRequest(
            f"multipleOf: the values in a schema may {verb} to at most {MAX_MULTIPLE} (without the decimal point; "
            "powers of ten do not count); use smaller ones, or minimum and maximum alone",
            field,
        )


def _automaton(multiple: object) -> int:
    """States that a value of `multipleOf` takes, about; 1 for what is no number, which the compiler refuses."""
    number = Decimal(str(+multiple)) if isinstance(multiple, int | float) else Decimal(1)
    if not number.is_finite():
        return 1
    _, digits, exponent = number.normalize().as_tuple()
    whole = int("".join(map(str, digits)))
    return 1 if whole in (0, 1) else whole * 10 ** max(0, int(exponent))


def _items(node: dict[str, Any], key: str) -> Sequence[Any] | Mapping[str, Any]:
    value = node.get(key)
    return value if isinstance(value, list | dict) else ()


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value, itself included."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
