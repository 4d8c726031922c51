"""Measures how fast the server decodes without drafts, and how long it takes to verify a block."""

import asyncio
import statistics
import time
from dataclasses import dataclass

from edge_client.doctor.finding import Finding, ok, warn
from edge_client.link.link import Link
from edge_client.link.remote import RemoteSession, RetryPolicy
from opensled.core.errors import OpenSledError
from opensled.core.messages import Draft, DraftBlock, DraftToken, ModelInfo, Open, SamplingParams, Verdict
from opensled.core.printable import digits

TOKENS = 40  # to measure
MOST = 512  # of the sequence: a fast server runs ahead of its reader until the first draft arrives
FEWEST = 8  # tokens for a usable rate
BLOCK = 8  # draft tokens of a block to verify
BLOCKS = 9  # the first one comes while the server decodes unasked, and does not count
SECONDS = 4.0  # for all of it
FAREWELL = 0.2  # for the server to receive the Cancel
PROMPTS = (17, 5, 29)  # first token ids of prompts; the answer to one may end at once


@dataclass(frozen=True)
class ServerSpeed:
    """The speed of one sequence at the server's present load, in seconds."""

    decode_s: float  # for a token that it decodes by itself
    block: int = 0  # draft tokens of the blocks that were sent to be verified; 0 = none came back
    verdict_s: float = 0.0  # from such a block to its verdict, the link included

    def step_s(self, length: int, rtt_s: float) -> float:
        """Seconds to verify a block of `length` draft tokens, without the link: linear between the two measurements."""
        if not self.block:
            return self.decode_s
        slope = max(0.0, self.verdict_s - rtt_s - self.decode_s) / self.block
        return self.decode_s + slope * length


async def check_server_speed(link: Link, info: ModelInfo, rule: str) -> ServerSpeed | Finding:
    """The speed, or a finding that tells why it was not measured.

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


def own_decoding(speed: ServerSpeed) -> Finding:
    """The speed in words, for a report that has no better figure of answers without drafts."""
    told = f"{digits(1 / speed.decode_s)} tokens/s for this device without drafts"
    if speed.block:
        told += f"; {1000 * speed.verdict_s:.1f} ms from a block of {speed.block} to its verdict"
    return ok("own decoding", told)


async def _try_rule(link: Link, info: ModelInfo, rule: str, first: int) -> ServerSpeed | None:
    prompt = tuple((first + 7 * index) % info.vocab_size for index in range(8))
    params = SamplingParams(temperature=0.0, max_tokens=MOST)
    request = Open(prompt, params, rule=rule, model_id=info.model_id, background=True)
    trial = _Trial(RemoteSession(link.connect, request, RetryPolicy(farewell=FAREWELL)))
    await trial.session.open()
    try:
        paces = await trial.decode()
        if len(paces) < FEWEST:
            return None
        length = min(BLOCK, trial.session.limits.max_draft)
        verdicts = await trial.verify(length, info.vocab_size) if length else []
    finally:
        await trial.close()
    counted = verdicts[1:]
    return ServerSpeed(statistics.median(paces), *((length, statistics.median(counted)) if counted else ()))


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

    async def verify(self, length: int, vocab_size: int) -> list[float]:
        """Seconds from blocks of `length` tokens to their verdicts; wrong tokens take as long as right ones."""
        seconds: list[float] = []
        for counter in range(1, BLOCKS + 1):
            truth = self.session.truth
            ids = ((11 + 13 * (counter + index)) % vocab_size for index in range(length))
            block = DraftBlock(len(truth), tuple(DraftToken(id) for id in ids))
            started = time.monotonic()
            await self.session.submit(Draft(counter, block))
            verdict = await self._hear()
            while verdict and verdict.answers < counter:
                verdict = await self._hear()
            if not verdict:
                break
            seconds.append(time.monotonic() - started)
        return seconds

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
