"""Whether what a client got is what a case expects; the same for every client.

An expectation maps paths into the reply, such as `choices.0.finish_reason` or `choices.#` (a length), to a value or to
one of MATCHERS. A stream is judged by the reply its chunks join to.
"""

import json
import re
from collections.abc import Callable
from typing import Any

CLASSES = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError"}
Observations = dict[str, dict[str, Any]]


def faults(case: dict[str, Any], observed: Observations) -> list[str]:
    """What is not as expected, in words; [] = all of it is."""
    seen = observed[case["name"]]
    if "refused" in case:
        wanted = {**case["refused"], "class": CLASSES[case["refused"]["status"]]}
        told = seen.get("error", seen)
        return [f"{name}: {told.get(name)!r}" for name, value in wanted.items() if told.get(name) != value]
    if "error" in seen:
        return [f"refused: {seen['error']}"]
    reply = reply_of(seen)
    return [
        f"{path}: {at(reply, path)!r}"
        for path, wanted in case["expect"].items()
        if not _fits(wanted, path, reply, observed)
    ]


def at(reply: Any, path: str) -> Any:
    """The value at a path; None where there is none."""
    value = reply
    for step in path.split("."):
        if step == "#":
            return len(value)
        try:
            value = value[int(step) if isinstance(value, list) else step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _fits(wanted: Any, path: str, reply: Any, observed: Observations) -> bool:
    value = at(reply, path)
    if not isinstance(wanted, dict):
        return value == wanted
    (name, argument), *more = wanted.items()
    if name in ("$as", "$not"):
        other = at(reply_of(observed[argument]), dict(more).get("at", path))
        return (value == other) == (name == "$as")
    if name == "$same":
        return value == at(reply, argument)
    return MATCHERS[name](value, argument)


def _is_json(value: Any, wanted: Any) -> bool:
    """Text of a JSON object, with these keys in this order unless any will do ("object")."""
    parsed = json.loads(value)
    return isinstance(parsed, dict) and wanted in ("object", list(parsed))


MATCHERS: dict[str, Callable[[Any, Any], bool]] = {
    "$match": lambda value, pattern: isinstance(value, str) and re.search(pattern, value) is not None,
    "$min": lambda value, least: value is not None and value >= least,
    "$max": lambda value, most: value is not None and value <= most,
    "$in": lambda value, choices: value in choices,
    "$json": _is_json,
}


def reply_of(seen: dict[str, Any]) -> dict[str, Any]:
    """The reply, or what the chunks of a stream join to."""
    if "chunks" not in seen:
        return dict(seen["reply"])
    if "response" in seen["chunks"][-1]:
        return _response_of(seen["chunks"])
    joined: dict[int, dict[str, Any]] = {}
    last: dict[str, Any] = {}
    for chunk in seen["chunks"]:
        last = chunk
        for piece in chunk["choices"]:
            _join(joined.setdefault(piece["index"], {"message": {"content": ""}, "text": ""}), piece)
    return {**last, "choices": [joined[index] for index in sorted(joined)]}


def _response_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response in the last event, with the texts and arguments that the events before it have in pieces."""
    response: dict[str, Any] = events[-1]["response"]
    joined: dict[int, str] = {}
    for event in events:
        if "delta" in event:
            joined[event["output_index"]] = joined.get(event["output_index"], "") + event["delta"]
    for index, item in enumerate(response["output"]):
        told = item if item["type"] == "function_call" else item["content"][0]
        told["arguments" if told is item else "text"] = joined.get(index, "")
    return response


def _join(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    choice["index"] = piece["index"]
    choice["finish_reason"] = piece["finish_reason"] or choice.get("finish_reason")
    choice["text"] += piece.get("text") or ""
    delta = piece.get("delta") or {}
    choice["message"]["content"] += delta.get("content") or ""
    if delta.get("role"):
        choice["message"]["role"] = delta["role"]
    for call in delta.get("tool_calls") or ():
        _join_call(choice["message"].setdefault("tool_calls", []), call)
    for name, values in (piece.get("logprobs") or {}).items():
        if values is not None:
            choice.setdefault("logprobs", {}).setdefault(name, []).extend(values)


def _join_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    if piece["index"] == len(calls):
        calls.append({"id": piece["id"], "type": piece["type"], "function": {"name": "", "arguments": ""}})
    function = calls[piece["index"]]["function"]
    function["name"] += piece["function"].get("name") or ""
    function["arguments"] += piece["function"].get("arguments") or ""
