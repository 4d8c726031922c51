"""The drafter's own thread: one hop per block, never one per token; a flag interrupts between two tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from edge_client.drafters.base import Drafter
from edge_client.stop import StopRule
from opensled.messages import DraftBlock, DraftToken
from opensled.protocol import Truth
from opensled.sampling import Sampler

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class DraftThread:
    """Runs one drafter for one sequence at a time.

    A drafter that fails stops proposing until the next sequence: its user then reads the server's own tokens.
    """

    def __init__(self, drafter: Drafter, stop: StopRule) -> None:
        self._drafter, self._stop = drafter, stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")
        self._known = 0  # tokens of the truth the drafter has heard of
        self._failed = False
        self._interrupted = False

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """Start a sequence; the drafter reads the prompt in its thread, nobody waits for it."""
        self._interrupted, self._failed = False, False
        self._known = len(truth)
        self._thread.submit(self._guarded, self._drafter.begin, list(truth.tokens), sampler)

    def draft(self, truth: Truth, limit: int) -> asyncio.Future[DraftBlock]:
        """Draft at most `limit` tokens to follow the truth as it is now."""
        news, base = tuple(truth.tokens[self._known :]), len(truth)
        self._known = base
        return asyncio.get_running_loop().run_in_executor(self._thread, self._draft, news, base, limit)

    def interrupt(self) -> None:
        """Whatever is being drafted is not needed any more."""
        self._interrupted = True

    def close(self) -> None:
        self.interrupt()
        self._thread.submit(self._drafter.close)
        self._thread.shutdown()

    def _draft(self, news: Sequence[int], base: int, limit: int) -> DraftBlock:
        if news:
            self._guarded(self._drafter.commit, news)
        return DraftBlock(base, self._guarded(self._propose, limit) or ())

    def _propose(self, limit: int) -> tuple[DraftToken, ...]:
        return self._stop.take(self._drafter.propose(), limit, lambda: self._interrupted)

    def _guarded(self, work: Callable[..., Result], *arguments: Any) -> Result | None:
        if self._failed or self._interrupted:
            return None
        try:
            return work(*arguments)
        except Exception:
            log.exception("the drafter failed; this sequence goes on without drafts")
            self._failed = True
            return None
