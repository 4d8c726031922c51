"""Writes kept texts in a thread of its own: the loop hands them over and never waits for a disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from adapt.kept.kept_store import KeptStore, KeptText
from adapt.kept.text_trace import TextTrace
from verify_server.riders.opening import Opening

log = logging.getLogger(__name__)

WAITING = 64  # texts that wait for the disk; beyond it the tenant that has most of them loses its newest
EXPIRE_S = 60.0  # between two looks for texts that are too old
CLOSE_S = 5.0  # in which a server that ends writes what waits


class TextKeeper:
    """`counts`: texts kept, dropped (the disk was too slow), refused (quota, deletion), failed (an error)."""

    def __init__(self, store: KeptStore, vocabulary: str) -> None:
        """`vocabulary`: fingerprint of the target's."""
        self._store, self._vocabulary = store, vocabulary
        self.counts: Counter[str] = Counter(kept=0, dropped=0, refused=0, failed=0)
        self._waiting: deque[KeptText] = deque()  # under the lock of `_news`, as is all that follows
        self._waiting_of: Counter[str] = Counter()  # of them, by tenant
        self._ending = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kept text", daemon=True)
        self._thread.start()

    def rider(self, opening: Opening) -> TextTrace | None:
        """See `Keeper`."""
        return TextTrace.of(opening, self.offer)

    def offer(self, text: KeptText) -> None:
        """Hand over a text; never waits for the disk."""
        with self._news:
            self._waiting.append(text)
            self._waiting_of[text.tenant] += 1
            if len(self._waiting) > WAITING:
                self._drop()
            self._news.notify()

    def _drop(self) -> None:
        """A flood costs texts of its own tenant, and none of others."""
        [(tenant, _)] = self._waiting_of.most_common(1)
        newest = max(place for place, text in enumerate(self._waiting) if text.tenant == tenant)
        del self._waiting[newest]
        self._waiting_of[tenant] -= 1
        self.counts["dropped"] += 1

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        with self._news:
            self._ending = True
            self._news.notify()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        looked = float("-inf")
        while True:
            if time.monotonic() >= looked + EXPIRE_S:  # also while texts come without a pause
                looked = time.monotonic()
                self._guard(self._store.expire)
            text = self._next(looked + EXPIRE_S - time.monotonic())
            if text is not None:
                self._guard(partial(self._write, text))
            elif self._ending:
                return

    def _next(self, seconds: float) -> KeptText | None:
        """The text that waits longest; None if none comes within so many seconds, or this ends."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._ending, max(0.0, seconds))
            if not self._waiting:
                return None
            text = self._waiting.popleft()
            self._waiting_of[text.tenant] -= 1
            if not self._waiting_of[text.tenant]:
                del self._waiting_of[text.tenant]
            return text

    def _write(self, text: KeptText) -> None:
        self.counts["kept" if self._store.write(text, self._vocabulary) else "refused"] += 1

    def _guard(self, work: Callable[[], None]) -> None:
        """A full disk must end neither this thread nor a sequence."""
        try:
            work()
        except Exception:
            self.counts["failed"] += 1
            log.exception("kept text cannot be written or deleted in %s", self._store.folder)
