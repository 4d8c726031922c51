"""Writes kept texts in a thread of its own: the loop hands them over and never waits for a disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter

from verify_server.kept.kept_store import KeptStore
from verify_server.kept.kept_text import KeptText

log = logging.getLogger(__name__)

WAITING = 64  # texts that wait for the disk; more are dropped
EXPIRE_S = 60.0  # between two looks for texts that are too old
CLOSE_S = 5.0  # in which a server that ends writes what waits


class TextKeeper:
    """`counts`: texts kept, dropped (the disk was too slow), refused (quota, deletion), failed (an error)."""

    def __init__(self, store: KeptStore, vocabulary: str) -> None:
        """`vocabulary`: fingerprint of the target's."""
        self._store, self._vocabulary = store, vocabulary
        self.counts: Counter[str] = Counter(kept=0, dropped=0, refused=0, failed=0)
        self._waiting: queue.Queue[KeptText | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="kept text", daemon=True)
        self._thread.start()

    def offer(self, text: KeptText) -> None:
        """Hand over a text; never waits."""
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self.counts["dropped"] += 1

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        self._guarded(None)
        while True:
            try:
                text = self._waiting.get(timeout=EXPIRE_S)
            except queue.Empty:
                self._guarded(None)
                continue
            if text is None:
                return
            self._guarded(text)

    def _guarded(self, text: KeptText | None) -> None:
        """Write a text; None = delete what is too old. A full disk must end neither this thread nor a sequence."""
        try:
            if text is None:
                self._store.expire()
            else:
                self.counts["kept" if self._store.write(text, self._vocabulary) else "refused"] += 1
        except Exception:
            self.counts["failed"] += 1
            log.exception("kept text cannot be written or deleted in %s", self._store.folder)
