"""A chain of drafters, `--drafter chain:cacheback,llamacpp`: the first one that speaks wins, all hear the truth.

Tables always know something; it is worth a block only where it brings more than what the drafter after them says. So a
drafter speaks where it expects, by its confidences, more right tokens in a row than the last drafter has been bringing
in this sequence; the last one speaks always.

A block that the tables begin is not continued by the model before it is sent: that would take the model's time for
each of its tokens, which is what such a block spares. The model goes on behind it while the verdict travels
(`look_ahead`), and reads the tables' tokens in one pass then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from operator import mul

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from opensled.errors import UsageError
from opensled.messages import DraftToken, ModelInfo, TreeNode
from opensled.protocol import common_prefix
from opensled.sampling import Sampler

HORIZON = 8  # tokens from the truth that drafters are compared over


class ChainFactory(DrafterFactory):
    """Makes chains of the drafters named, the ones without a model first; all get the same draft model."""

    def __init__(
        self, names: str, model: str, threads: int = 0, options: DrafterOptions = DrafterOptions()
    ) -> None:
        parts = [name.strip() for name in names.split(",")]
        if len(parts) < 2:
            raise UsageError(
                f"a chain has two drafters or more, as in chain:cacheback,llamacpp, not {names!r}"
            )
        self._factories: list[DrafterFactory] = [
            DRAFTERS.get(name)(model, threads, options) for name in parts
        ]
        self.uses_tables = any(factory.uses_tables for factory in self._factories)
        self._rename()

    def _rename(self) -> None:
        self.name = "chain " + ", ".join([factory.name for factory in self._factories])

    def check_vocabulary(self, target: ModelInfo) -> None:
        for factory in self._factories:
            factory.check_vocabulary(target)
        self._rename()

    def create(self) -> ChainDrafter:
        made: list[Drafter] = []
        try:
            for factory in self._factories:
                made.append(factory.create())
        except BaseException:
            for drafter in made:
                drafter.close()
            raise
        return ChainDrafter(made)


class MemberRecord:
    """How well a drafter does in one sequence: the share of its tokens that stand, of those that were tried.

    It begins well: a drafter at the end of a chain is the one that knows most. Older blocks count less and less.
    """

    FIRST, WEIGHT = 0.9, 20.0  # the share at the beginning, and for how many tokens it stands
    KEPT = 0.9  # of an older block's weight, with each new one

    def __init__(self) -> None:
        self._right, self._tried = self.FIRST * self.WEIGHT, self.WEIGHT

    def add(self, block: Sequence[int], tokens: Sequence[int]) -> None:
        """A `block` was drafted where `tokens` came."""
        right = common_prefix(block, tokens)
        is_wrong = right < min(len(block), len(tokens))
        self._right = self.KEPT * self._right + right
        self._tried = self.KEPT * self._tried + right + is_wrong

    def expected(self) -> float:
        """Right tokens in a row, of HORIZON."""
        return _in_a_row([self._right / self._tried] * HORIZON)


def _in_a_row(confidences: Iterable[float]) -> float:
    """Right tokens expected before the first wrong one, of tokens that are right with these probabilities."""
    return sum(accumulate(confidences, mul))


class ChainDrafter(Drafter):
    """Several drafters of one sequence."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters, self._last = tuple(drafters), drafters[-1]
        self._record = MemberRecord()  # the last drafter's
        self._block: list[int] = []  # what the last drafter said comes next, if it was asked

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._record, self._block = MemberRecord(), []
        for drafter in self._drafters:
            drafter.begin(prompt, sampler)

    def commit(self, tokens: Sequence[int]) -> None:
        if self._block:
            self._record.add(self._block, tokens)
        self._block = []
        for drafter in self._drafters:
            drafter.commit(tokens)

    def propose(self) -> Iterator[DraftToken]:
        for drafter in self._in_turn():
            block: list[int] = []
            for token in drafter.propose():
                if drafter is self._last:
                    self._block = block
                block.append(token.id)
                yield token
            if block:
                return

    def propose_tree(self) -> Iterator[TreeNode]:
        """See `Drafter`; a tree comes only from the drafter whose turn it is."""
        return self._in_turn()[0].propose_tree()

    @property
    def ready(self) -> int:
        """See `Drafter`; of the drafter whose turn it is."""
        return self._in_turn()[0].ready

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        """See `Drafter`; the first drafter that can works ahead, whichever one began the block."""
        for drafter in self._drafters:
            has_worked = False
            for _ in drafter.look_ahead(block, length):
                has_worked = True
                yield
            if has_worked:
                return

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()

    def _in_turn(self) -> list[Drafter]:
        """Those who speak in their order, then, in case they have nothing to say, the others."""
        early = self._drafters[:-1]
        sure = [drafter for drafter in early if self._is_sure(drafter)]
        return [*sure, self._last, *(drafter for drafter in early if drafter not in sure)]

    def _is_sure(self, drafter: Drafter) -> bool:
        proposed = islice(drafter.propose(), HORIZON)
        return _in_a_row(token.confidence for token in proposed) > self._record.expected()
