"""Whether and how much a model is to think, by every name that clients have for it, as variables of its chat template.

What a template reads decides: to switch thinking off is refused where nothing would, for the answer would be another
one in silence. To ask for thoughts, or for more of them, is a hint, which the answer's header names where nothing reads
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from http_api.effects import is_any_of
from http_api.fields import Fields, fields_of, require_text
from http_api.left_out import leave_out
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import ModelInfo
from opensled.core.template_variables import MAX_SIZE, RESERVED

KWARGS = "chat_template_kwargs"
# Variables of published templates that switch thinking, and the value that switches it off.
SWITCHES: dict[str, object] = {"enable_thinking": False, "thinking": False, "reasoning": False}
BUDGET = "thinking_budget"  # tokens; 0 = off
EFFORT = "reasoning_effort"
NO_EFFORT = ("none", "off", "disabled")
ANY_EFFORT = ("", "auto", "default")
# The values of `thinking.type`.
TYPES = {"enabled": True, "disabled": False, "adaptive": None, "auto": None}
# What clients may send of what a chat sets itself.
SET_ALREADY: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "tokenize": (False,),
    "documents": ([],),
    "tools": ([],),
}


class Thinking(NamedTuple):
    """What a request says of thoughts."""

    variables: str = ""  # as of `Task.template_variables`
    shown: bool = True  # whether the answer has them


class Wish(NamedTuple):
    """What one field asks for."""

    field: str  # its path
    on: bool
    effort: str = ""


def read_thinking(fields: Fields, info: ModelInfo) -> Thinking:
    """Reads all of these fields. Raises InvalidRequest and Unsupported with the field as the client spells it."""
    kwargs = fields.inside_or_empty(KWARGS)
    shown = fields.flag("include_reasoning", True)
    wishes = [*_wishes(fields), *_efforts(fields)]
    reasoning = fields.inside_or_empty("reasoning")
    shown = shown and not reasoning.flag("exclude", False)
    wishes += [*_read_switch(reasoning, "enabled"), *_efforts(reasoning, "effort")]
    reasoning.leave_rest()
    wishes += [*_wishes(kwargs), *_efforts(kwargs)]
    variables = {**_others(kwargs, info), **_resolve(wishes, info)}
    return Thinking(_text(variables) if variables else "", shown)


def _wishes(fields: Fields) -> Iterator[Wish]:
    """Of the fields that switch it."""
    yield from _read_switch(fields, "enable_thinking")
    value, where = fields.raw("thinking"), fields.path("thinking")
    if not isinstance(value, dict):
        yield from _read_switch(Fields({"thinking": value}, where.removesuffix("thinking")), "thinking")
        return
    inner = fields_of(value, where)
    kind = inner.text("type", "auto")
    if kind not in TYPES:
        raise InvalidRequest(f"{where}.type must be one of {', '.join(TYPES)}", f"{where}.type")
    inner.leave_rest()
    on = TYPES[kind]
    if on is not None:
        yield Wish(where, on)


def _read_switch(fields: Fields, name: str) -> Iterator[Wish]:
    on = fields.flag(name, None)
    if on is not None:
        yield Wish(fields.path(name), on)


def _efforts(fields: Fields, name: str = EFFORT) -> Iterator[Wish]:
    effort = fields.text(name, "")
    if effort not in ANY_EFFORT:
        yield Wish(fields.path(name), effort not in NO_EFFORT, effort)


def _others(kwargs: Fields, info: ModelInfo) -> dict[str, Any]:
    """The further variables, as far as the template reads them."""
    found = {}
    for name, value in kwargs.rest():
        path = kwargs.path(name)
        if name in RESERVED:
            if not is_any_of(value, SET_ALREADY.get(name, ())):
                raise Unsupported(
                    f"{path} is set by the chat itself and cannot be a variable: leave it out", path
                )
        elif name in info.template_variables:
            found[name] = value
        else:
            leave_out(path)
    return found


def _resolve(wishes: list[Wish], info: ModelInfo) -> dict[str, Any]:
    """The variables of the template by which it does what is asked for."""
    for wish in wishes:
        if wish.on is not wishes[0].on:
            raise InvalidRequest(
                f"{wishes[0].field} and {wish.field} differ on whether the model is to think: send one of them",
                wish.field,
            )
    if not wishes:
        return {}
    return _on(wishes, info) if wishes[0].on else _off(wishes, info)


def _off(wishes: list[Wish], info: ModelInfo) -> dict[str, Any]:
    """The variables that switch thinking off; an effort of none is one only where the client says it so."""
    read = info.template_variables
    switches: dict[str, Any] = {name: off for name, off in SWITCHES.items() if name in read}
    switches |= {BUDGET: 0} if BUDGET in read else {}
    if not switches and EFFORT in read and any(wish.effort for wish in wishes):
        switches[EFFORT] = NO_EFFORT[0]
    if not switches and (info.thoughts is not None or EFFORT in read):
        raise Unsupported(
            f"{wishes[0].field} asks for no thoughts, and {info.model_id} always thinks: its chat template reads no "
            "variable that switches it off; leave the field out: thoughts come apart from the text",
            wishes[0].field,
        )
    return switches


def _on(wishes: list[Wish], info: ModelInfo) -> dict[str, Any]:
    """The variables that switch thinking on, with the effort; names the fields that nothing reads."""
    read = info.template_variables
    switches: dict[str, Any] = {name: True for name in SWITCHES if name in read}
    for wish in wishes:
        if wish.effort and EFFORT in read:
            switches[EFFORT] = wish.effort
        elif wish.effort or (info.thoughts is None and not switches):
            leave_out(wish.field)
    return switches


def _text(variables: dict[str, Any]) -> str:
    """The variables as they travel."""
    try:
        text = json.dumps(variables, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{KWARGS} is not valid JSON: {error}", KWARGS) from error
    if len(require_text(text, KWARGS).encode()) > MAX_SIZE:
        raise InvalidRequest(
            f"{KWARGS} takes more than {MAX_SIZE} bytes: send fewer or shorter values", KWARGS
        )
    return text
