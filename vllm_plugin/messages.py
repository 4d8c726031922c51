"""Messages between the front, in vLLM's API server, and the scheduler, in the process of vLLM's engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from hw_profiles.learned import LearnedCost
from opensled.core.messages import Guide, HintReason, SamplingParams
from scheduler.plan import SessionView

KEY = "opensled"  # in `extra_args` of a request's sampling parameters: it is a device's session
# UTILITY methods of vLLM's engine core
TICK, ADVICE, LOAD = "opensled_tick", "opensled_advice", "opensled_load"


class RequestTerms(NamedTuple):
    """Facts of a session that its request carries, for the scheduler and the workers."""

    session: str  # its name, which no user of vLLM can guess
    front: str  # name of the API server that has its device
    key: str  # noise key, hex
    prompt_length: int  # tokens before the answer; the request's prompt has the answer's earlier part as well
    params: SamplingParams
    view: SessionView  # at its begin
    guide: Guide | None = None
    trial: bool = False  # of the self-test: each of its steps waits for news, and verifies all of their draft


class News(NamedTuple):
    """News of one session for the scheduler."""

    session: str
    view: SessionView  # as far as the front knows: its drafts' forecast, its reader, its pace
    base: int = 0  # tokens that the draft follows
    ids: tuple[int, ...] = ()  # the draft; () = there is none


class Advice(NamedTuple):
    """The hint for the next verdict of a session."""

    session: str
    hint: int
    why: HintReason | None = None


# Of the scheduler: tokens of KV that no request holds, and the cost of a step, None = not learned yet
read_load = msgspec.msgpack.Decoder(tuple[int, LearnedCost | None]).decode
_ticks, _advice = msgspec.msgpack.Decoder(list[News]), msgspec.msgpack.Decoder(list[Advice])
encode = msgspec.msgpack.encode


def extra_args(terms: RequestTerms) -> dict[str, Any]:
    """The `extra_args` of a session's request."""
    return {KEY: encode(terms)}


def terms_of(params: Any) -> RequestTerms | None:
    """The terms in vLLM's sampling parameters of a request; None = it is no device's session."""
    packed = (params.extra_args or {}).get(KEY) if params is not None else None
    return msgspec.msgpack.decode(packed, type=RequestTerms) if isinstance(packed, bytes) else None


def read_tick(data: bytes) -> list[News]:
    """All news of one tick."""
    return _ticks.decode(data)


def read_advice(data: bytes) -> list[Advice]:
    """All advice of one message."""
    return _advice.decode(data)
