"""Asks the server for hidden states, as a draft head here would: whether it sends them, their size, and what they cost
on this link. The rows of a prompt are fetched with the first token of a short answer, other answers come without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from edge_client.link import Link
from edge_client.remote import RemoteSession, RetryPolicy
from opensled.errors import OpenSledError
from opensled.messages import ModelInfo, Open, SamplingParams, Verdict

LAYERS = (0,)  # which one does not matter: all have the same size
PROMPT, TOKENS = 128, 6  # tokens; as many rows of a prompt as travel at most
PAIRS, SECONDS = 2, 6.0  # answers with and without, and how long all of them may take
FAREWELL = 0.2  # for the server to receive the Cancel


@dataclass(frozen=True)
class HiddenStates:
    """What the server sends of its target."""

    size: int = 0  # elements of one state; 0 = none: it refuses them, or none came
    refused: bool = False
    byte_s: float | None = None  # seconds that a byte of them takes on this link; None = not measured


async def ask_hidden_states(link: Link, info: ModelInfo, rule: str) -> HiddenStates:
    """All of it, as background work: other answers go first. What fails, or takes too long, is not known."""
    found = _Found()
    with contextlib.suppress(OpenSledError, asyncio.TimeoutError):
        await asyncio.wait_for(_ask(link, info, rule, found), SECONDS)
    return found.told()


class _Found:
    """What was seen so far."""

    def __init__(self) -> None:
        self.size, self.bytes, self.refused = 0, 0, False
        self.with_rows: list[float] = []  # seconds to the first token
        self.without: list[float] = []

    def told(self) -> HiddenStates:
        byte_s = None
        if self.bytes and self.with_rows and self.without:
            byte_s = max(0.0, min(self.with_rows) - min(self.without)) / self.bytes
        return HiddenStates(self.size, self.refused, byte_s)


async def _ask(link: Link, info: ModelInfo, rule: str, found: _Found) -> None:
    for number in range(2 * PAIRS):
        wants = number % 2 == 0
        seconds = await _first_token(link, info, rule, number, wants, found)
        if found.refused:
            return
        if seconds is not None:
            (found.with_rows if wants else found.without).append(seconds)


async def _first_token(
    link: Link, info: ModelInfo, rule: str, number: int, wants: bool, found: _Found
) -> float | None:
    """Seconds to the first token, with the rows of the prompt or without; None where they did not come.

    Each prompt begins with another token, so that the server has computed none of it before.
    """
    length = min(PROMPT, info.limits.context_length // 2)
    prompt = tuple((101 * number + 7 * index + 3) % info.vocab_size for index in range(length))
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    features = LAYERS if wants else ()
    request = Open(prompt, params, rule=rule, model_id=info.model_id, background=True, features=features)
    session = RemoteSession(link.connect, request, RetryPolicy(farewell=FAREWELL))
    started = time.monotonic()
    try:
        await session.open()
        found.refused |= session.lacks_features
        if found.refused:
            return None
        return await _heard(session, wants, found, started)
    finally:
        await session.close()


async def _heard(session: RemoteSession, wants: bool, found: _Found, started: float) -> float | None:
    while not session.truth.finish_reason:
        verdict: Verdict = await session.next_verdict()
        session.truth.extend(verdict)
        if not wants:
            return time.monotonic() - started
        if verdict.features:
            found.size = verdict.features[0].size
            found.bytes = sum(len(rows.data) for rows in verdict.features)
            return time.monotonic() - started
    return None
