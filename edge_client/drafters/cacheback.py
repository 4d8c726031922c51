"""Cacheback on a device: drafts from tables of what followed what, without any model (arXiv 2511.21699, EMNLP 2025).

opensled/drafting/followers.py says how; here are the tables' files, and a user's own table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_client.drafters import OFF
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from opensled.core.errors import NotFound, UnsupportedModel, VocabularyMismatch
from opensled.core.files import user_path
from opensled.core.messages import DraftToken, ModelInfo, TreeNode
from opensled.core.sampling import Sampler
from opensled.drafting import table_file
from opensled.drafting.followers import Followers
from opensled.drafting.growth import Calibration
from opensled.drafting.table_file import TableFile
from opensled.drafting.tables import FrozenTable, LruTable, TableShape, as_rows
from opensled.models.store import model_file, model_path
from opensled.text.tokenizer import TargetTokenizer

PERSONAL = TableShape(leaders=32_768)  # a file of 3.3 MB at most, where ids take four bytes
SAVE_EVERY_S = 30.0  # an answer that ends sooner is saved with the next one, or when the drafter closes


class PersonalTable:
    """The dynamic table of one user (`--personal-table`); all drafters of a device share it, from run to run.

    It holds fragments of what its user read and wrote, three or four tokens each. So only this user may read the file
    (mode 600), nothing of it leaves the device, and it is off by default.
    """

    def __init__(self, path: Path, target: ModelInfo) -> None:
        """Raises VocabularyMismatch for the table of another vocabulary; a damaged one is reported and replaced."""
        self.path = user_path(path)
        self.table = LruTable(PERSONAL)
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
        if (found.shape.leader, found.shape.follower) != (PERSONAL.leader, PERSONAL.follower):
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
                rows = as_rows(self.table.items(), PERSONAL)
                table = TableFile(rows, PERSONAL, *self._vocabulary, "personal")
                table_file.write(self.path, table, private=True)
            except OSError as error:
                log.warning("the personal table %s cannot be written: %s", self.path, error.strerror)


log = logging.getLogger(__name__)

PATTERN = "*.table"


def find_table(model: str) -> Path | None:
    """The draft table in a model's folder; None if there is none or several."""
    try:
        path = model_path(model)
        return model_file(str(path.parent if path.is_file() else path), PATTERN)
    except NotFound:
        return None


class CachebackFactory(DrafterFactory):
    """`--drafter cacheback`: one frozen table for all drafters; `model`: where one may lie beside."""

    uses_tables = True

    def __init__(self, model: str = "", threads: int = 0, options: DrafterOptions = DrafterOptions()) -> None:
        self._options = options
        self._ends: frozenset[int] = frozenset()
        self._personal: PersonalTable | None = None
        self._file: TableFile | None = None
        named = options.draft_table
        self._path = None if named == OFF else user_path(named) if named else find_table(model)
        self.name = f"cacheback {self._path.name}" if self._path else "cacheback"

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        """See `DrafterFactory`. A table that lies beside the model and was not named is left out instead.

        Also raises NotFound, UsageError or UnsupportedModel for a named table that cannot be used.
        """
        found = self._load()
        if found and self._path:
            try:
                found.require(target, self._path)
            except VocabularyMismatch as error:
                if self._options.draft_table:
                    raise
                log.warning("drafting without a frozen table: %s", error)
                self.name, self._path, self._file = "cacheback", None, None
        self._ends = frozenset(target.eos_ids)
        if self._options.personal_table != OFF:
            self._personal = PersonalTable(Path(self._options.personal_table), target)

    def create(self) -> CachebackDrafter:
        found = self._load()
        frozen = FrozenTable(found.rows, found.vocab_size) if found else None
        return CachebackDrafter(frozen, self._ends, self._personal)

    def _load(self) -> TableFile | None:
        if self._path and not self._file:
            self._file = table_file.read(self._path)
        return self._file


class CachebackDrafter(Drafter):
    """Drafts one sequence at a time from its tables; the dynamic one starts empty unless it is personal."""

    def __init__(
        self,
        frozen: FrozenTable | None = None,
        ends: frozenset[int] = frozenset(),
        personal: PersonalTable | None = None,
    ) -> None:
        """`ends`: ids after which nothing follows."""
        self._frozen, self._ends, self._personal = frozen, ends, personal
        self._calibration = Calibration()
        self._forget()

    def _forget(self) -> None:
        self._calibration.begin()
        dynamic = self._personal.table if self._personal else LruTable()
        self._followers = Followers(dynamic, self._frozen, self._ends, self._calibration)

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        if self._personal:
            self._personal.save()
        self._forget()
        self._sampler = sampler
        self._followers.read(prompt)

    def commit(self, tokens: Sequence[int]) -> None:
        self._followers.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        if self._sampler.alone:  # guesses by what often follows are no answer
            return
        for token, confidence in self._followers.chain():
            yield self._sampler.certain(token, confidence)

    def propose_tree(self) -> Iterator[TreeNode]:
        for token, confidence, parent in self._followers.tree():
            yield TreeNode(self._sampler.certain(token, confidence), parent)

    def guess(self, tail: Sequence[int]) -> Iterator[tuple[int, float]]:
        """What may follow any text that ends with `tail`, not only the truth: ids with their confidence."""
        return self._followers.chain(tail)

    def close(self) -> None:
        """Forget the sequence and save the personal table."""
        self._forget()
        if self._personal:
            self._personal.save(now=True)
