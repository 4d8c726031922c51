"""Renders the target's chat template on the device, while no server can do it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from edge_client.tokenizer import EdgeTokenizer
from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import ChatMessage, ModelInfo


def render(
    messages: Sequence[ChatMessage], template: str, info: ModelInfo, tokenizer: EdgeTokenizer
) -> tuple[int, ...]:
    """Token ids of a chat of texts up to the start of the assistant's next turn.

    Raises Unsupported if this device cannot render the chat, InvalidRequest if the template refuses it.
    """
    if not template:
        raise Unsupported("no server can be reached, and this target has no chat template", "messages")
    if any(turn.tool_calls or turn.tool_call_id for turn in messages):
        raise Unsupported("no server can be reached; tools are the server's alone", "messages")
    turns = [{"role": turn.role, "content": turn.content} for turn in messages]
    try:
        text = _environment().from_string(template).render(
            messages=turns, add_generation_prompt=True, tools=None, documents=None, **_special(info, tokenizer)
        )  # fmt: skip
    except Unsupported:
        raise
    except Exception as error:  # a template can raise any exception
        raise InvalidRequest(f"the chat template refuses these messages: {error}", "messages") from error
    return tokenizer.encode_rendered(text)


def _environment() -> Any:
    """Jinja's sandbox, since templates are not trusted, with the functions that transformers defines."""
    try:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise Unsupported(
            "no server can be reached, and to render chat messages here takes jinja2: pip install jinja2; "
            "texts and token ids (/v1/completions, generate --raw) need none",
            "messages",
        ) from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _refuse(message: str) -> None:
    raise ValueError(message)


def _special(info: ModelInfo, tokenizer: EdgeTokenizer) -> dict[str, str]:
    """The special tokens that templates use: the first of every text, and the one at its end."""
    frame = tokenizer.encode("")[:1]
    names = {"bos_token": frame, "eos_token": info.eos_ids[:1]}
    return {name: tokenizer.piece(ids[0]) for name, ids in names.items() if ids}
