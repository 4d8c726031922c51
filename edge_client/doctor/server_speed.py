"""Measures how fast the server decodes without drafts."""

import asyncio
import statistics
import time

from edge_client.doctor.finding import Finding, ok, warn
from edge_client.link.link import Link
from edge_client.link.remote import RemoteSession, RetryPolicy
from opensled.core.errors import OpenSledError
from opensled.core.messages import ModelInfo, Open, SamplingParams, Verdict
from opensled.core.printable import digits

TOKENS = 40  # to measure
MOST = 512  # of the sequence: a fast server runs ahead of its reader until the first draft arrives
FEWEST = 8  # tokens for a usable rate
SECONDS = 4.0  # for all of it
FAREWELL = 0.2  # for the server to receive the Cancel
PROMPTS = (17, 5, 29)  # first token ids of prompts; the answer to one may end at once


async def check_server_speed(link: Link, info: ModelInfo, rule: str) -> float | Finding:
    """The seconds of a token at the server's present load, or a finding that tells why it was not measured.

    The short answer is background work: all other answers go first.
    """
    try:
        for first in PROMPTS:
            speed = await _try_rule(link, info, rule, first)
            if speed:
                return speed
    except OpenSledError as error:
        return warn("own decoding", f"not measured: {error}", "try again when the server has room")
    return ok("own decoding", "not measured: every answer ended after a few tokens")


def own_decoding(decode_s: float) -> Finding:
    """The speed in words, for a report that has no better figure of answers without drafts."""
    return ok("own decoding", f"{digits(1 / decode_s)} tokens/s for this device without drafts")


async def _try_rule(link: Link, info: ModelInfo, rule: str, first: int) -> float | None:
    prompt = tuple((first + 7 * index) % info.vocab_size for index in range(8))
    params = SamplingParams(temperature=0.0, max_tokens=MOST)
    request = Open(prompt, params, rule=rule, model_id=info.model_id, background=True)
    trial = _Trial(RemoteSession(link.connect, request, RetryPolicy(farewell=FAREWELL)))
    await trial.session.open()
    try:
        paces = await trial.decode()
    finally:
        await trial.close()
    return statistics.median(paces) if len(paces) >= FEWEST else None


class _Trial:
    """One sequence for the measurement only."""

    def __init__(self, session: RemoteSession) -> None:
        self.session = session
        self._deadline = time.monotonic() + SECONDS
        self._hearing: asyncio.Future[Verdict] | None = None

    async def decode(self) -> list[float]:
        """Seconds of each token after the first verdict, without any draft; tokens that come together share theirs."""
        paces: list[float] = []
        await self._hear()
        heard = time.monotonic()
        while len(paces) < TOKENS and (verdict := await self._hear()):
            now, count = time.monotonic(), len(verdict.tokens)
            paces += [(now - heard) / count] * count
            heard = now
        return paces

    async def _hear(self) -> Verdict | None:
        """The next verdict, its tokens in the truth; None at the end of the sequence, or of the time."""
        if self.session.truth.finish_reason:
            return None
        self._hearing = hearing = asyncio.ensure_future(self.session.next_verdict())
        await asyncio.wait({hearing}, timeout=max(0.0, self._deadline - time.monotonic()))
        if not hearing.done():
            return None
        verdict = hearing.result()
        self.session.truth.extend(verdict)
        return verdict

    async def close(self) -> None:
        """First close, then cancel: a cancelled read would cancel the whole stream."""
        await self.session.close()
        if self._hearing:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
