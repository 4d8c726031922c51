"""Schemathesis against a device's own description, and what no JSON schema can say of a request."""

import json
import re
from typing import Any

from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS

from http_api.effects import is_nothing
from http_api.guides import MODES

THINKING = ("chat_template_kwargs", "reasoning", "reasoning_effort", "thinking", "enable_thinking")
LOGPROBS = "message.output_text.logprobs"
FUNCTIONS = (None, "function", "custom")  # types of tools that the client runs
MUST_CALL = ("required", "any", True)
# "Valid is accepted" cannot be asked of a real server: it alone knows whether a prompt fits its context, and which
# keywords of a JSON schema its grammar can keep to.
ACCEPTED = "positive_data_acceptance"
NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
REFUSED = "negative_data_rejection"
MORE_FORMS = re.compile(r"\b(messages|input|tools|tool_choice)\b")  # as the description says


def checks(case: Case, *, accepts: bool) -> list[Any]:
    spoilt = getattr(case.meta.phase.data, "description", None) if case.meta else None
    names = [
        *NAMES,
        *([ACCEPTED] if accepts else ()),
        *([] if MORE_FORMS.search(spoilt or "") else [REFUSED]),
    ]
    return [CHECKS.get_one(name) for name in names]


def is_valid(case: Case) -> bool:
    return case.meta is None or case.meta.generation.mode is GenerationMode.POSITIVE


def relate(body: Any, vocabulary: int) -> Any:
    """A valid body with those fields in tune that refer to each other; descriptions say how."""
    if not isinstance(body, dict):
        return body
    related = dict(body)
    if not (related.get("logprobs") or LOGPROBS in (related.get("include") or ())):
        related.pop("top_logprobs", None)
    if related.get("stream"):
        related.pop("prompt_logprobs", None)
    if not isinstance(related.get("prompt_logprobs"), int) and related.get("echo") is not True:
        for limit in ("max_tokens", "max_completion_tokens"):
            if related.get(limit) == 0:
                related[limit] = None
    if "best_of" in related:
        related["best_of"] = related.get("n")
    if related.get("logit_bias"):
        related["logit_bias"] = {
            str(int(id) % vocabulary): bias for id, bias in related["logit_bias"].items()
        }
    for name in THINKING[1:]:  # else they may differ
        related.pop(name, None)
    if isinstance(related.get(THINKING[0]), dict):
        related[THINKING[0]] = dict(list(related[THINKING[0]].items())[:1])
    _relate_tools(related)
    _relate_history(related)
    return related


def brief(body: Any) -> Any:
    """A body that asks a real target for a few tokens only."""
    if not isinstance(body, dict):
        return body
    return {**body, "max_output_tokens" if "input" in body else "max_tokens": 2}


def _relate_tools(body: dict[str, Any]) -> None:
    functions, others = {}, []
    for tool in body.get("tools") or ():
        if name := _name(tool):
            functions[name] = tool
        else:
            others.append(tool)  # no function: left out
    tools = {name: tool for name, tool in functions.items() if tool.get("type") in FUNCTIONS}
    if functions or others:
        body["tools"] = [*functions.values(), *others]
    choice = body.get("tool_choice")
    name, kind = (_name(choice), choice.get("type")) if isinstance(choice, dict) else ("", choice)
    if isinstance(choice, str) and not is_nothing(choice) and choice.lower() not in MODES:
        name = choice
    listed = (choice.get("allowed_tools") or choice) if isinstance(choice, dict) else {}
    if (name and name not in tools) or (kind in MUST_CALL and not tools) or listed.get("mode") in MUST_CALL:
        body.pop("tool_choice")
    if tools and LOGPROBS in (body.get("include") or ()):
        body["tool_choice"] = "none"


def _relate_history(body: dict[str, Any]) -> None:
    """Arguments of earlier calls that are a text are JSON; an input has more than what is left out."""
    for turn in body.get("messages") or ():
        for block in turn["content"] if isinstance(turn.get("content"), list) else ():
            if isinstance(block, dict) and isinstance(block.get("input"), str):
                block["input"] = json.dumps({"text": block["input"]})
        if turn.get("role") == "assistant":
            for call in turn.get("tool_calls") or ():
                _write_arguments(call.get("function") or {})
            _write_arguments(turn.get("function_call") or {})
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        _write_arguments(item)
    if body.get("messages"):
        body["messages"] = [*body["messages"], {"role": "user", "content": "Go on."}]
    if isinstance(items, list):
        body["input"] = [*items, {"role": "user", "content": "Go on."}]


def _write_arguments(call: dict[str, Any]) -> None:
    if isinstance(call.get("arguments"), str):
        call["arguments"] = json.dumps({"text": call["arguments"]})


def _name(function: dict[str, Any]) -> str:
    """Of a tool or a choice, as a chat or a response has them; "" where it has none."""
    return str(function.get("function", function).get("name", ""))
