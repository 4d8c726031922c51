"""The dynamic table of one user, kept on this device from one answer, and one run, to the next (`--personal-table`).

It holds fragments of what its user read and wrote, three or four tokens each. So only this user may read the file
(mode 600), nothing of it leaves the device, and it is off by default.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from edge_client.drafters import table_file
from edge_client.drafters.table_file import TableFile
from edge_client.drafters.tables import LruTable, TableShape, as_rows
from opensled.errors import NotFound, UnsupportedModel
from opensled.messages import ModelInfo

log = logging.getLogger(__name__)

SHAPE = TableShape(leaders=32_768)  # a file of 3.3 MB at most, where ids take four bytes
SAVE_EVERY_S = 30.0  # an answer that ends sooner is saved with the next one, or when the drafter closes


class PersonalTable:
    """One table for all drafters of a device; they learn from each other's answers."""

    def __init__(self, path: Path, target: ModelInfo) -> None:
        """Raises VocabularyMismatch for the table of another vocabulary; a damaged one is reported and replaced."""
        self.path = path.expanduser()
        self.table = LruTable(SHAPE)
        self._vocabulary = (target.vocab_size, target.fingerprint)
        self._lock = threading.Lock()
        self._restore(target)
        self._saved, self._saved_at = self.table.learned, time.monotonic()

    def _restore(self, target: ModelInfo) -> None:
        try:
            found = table_file.read(self.path)
        except NotFound:
            return  # the first run
        except UnsupportedModel as error:
            log.warning("%s; the personal table starts empty", str(error).partition(";")[0])
            return
        found.require(target, self.path)
        if (found.shape.leader, found.shape.follower) != (SHAPE.leader, SHAPE.follower):
            log.warning("%s has other sizes; the personal table starts empty", self.path)
            return
        self.table.restore(found.rows)

    def save(self, now: bool = False) -> None:
        """Write the file if something is new, and if the last save is SAVE_EVERY_S ago or `now`.

        A disk that fails is logged and does not end the answer.
        """
        with self._lock:
            learned = self.table.learned
            due = now or time.monotonic() - self._saved_at >= SAVE_EVERY_S
            if learned == self._saved or not due:
                return
            self._saved, self._saved_at = learned, time.monotonic()
            try:
                rows = as_rows(self.table.items(), SHAPE)
                table = TableFile(rows, SHAPE, *self._vocabulary, "personal")
                table_file.write(self.path, table, private=True)
            except OSError as error:
                log.warning("the personal table %s cannot be written: %s", self.path, error.strerror)
