"""A chain of drafters, `--drafter chain:lookup,cacheback,llamacpp`: one of them drafts each block, all hear the truth.

Lookup and tables propose something nearly always, and at no cost. It is worth a block only where it brings more than
the last drafter of the chain does. So an earlier drafter drafts where it expects, by its confidences, more right tokens
in a row than the usual block of the last drafter has in this sequence. Where none is so sure, the last one drafts.

While the last drafter still reads a long text, an earlier one drafts only where it expects SURE right tokens; elsewhere
the server writes. So the reading delays nothing.

A block of an earlier drafter is sent without a continuation by the model: that would cost a pass of the model for each
token, which such a block saves. The model continues behind it while the verdict travels (`look_ahead`), and reads those
tokens in one pass then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import accumulate, islice, takewhile
from operator import mul

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.vocabulary import SAME
from opensled.core.errors import UsageError
from opensled.core.messages import DraftToken, ModelInfo, TreeNode
from opensled.core.protocol import common_prefix
from opensled.core.sampling import Sampler
from opensled.text.tokenizer import TargetTokenizer

HORIZON = 8  # tokens of an earlier drafter that are sent at most
# Of them those go out that stand with this probability at least. A row of a step costs a small part of a token; but the
# last drafter, too, has to read what was sent, unless it is still reading the text (chosen).
WORTH_READING, WORTH_A_ROW = 0.4, 0.2
# The last drafter is assumed to be good: this share of its tokens stands, as if so many tokens had been tried.
FIRST_SHARE, FIRST_TRIED = 0.9, 20.0
FIRST_LENGTH = 4.0  # and its blocks to be so long
# Right tokens expected of a block that is worth an interruption of the reading (chosen: a verdict may wait for the end
# of a piece, which takes as long as a token or two of the server)
SURE = 2.0
FADING = 0.9  # what each new block leaves of the weight of older ones


class ChainFactory(DrafterFactory):
    """Makes chains of the drafters named, the ones without a model first; all get the same draft model."""

    def __init__(
        self, names: str, model: str, threads: int = 0, options: DrafterOptions = DrafterOptions()
    ) -> None:
        parts = [name.strip() for name in names.split(",")]
        if len(parts) < 2:
            raise UsageError(
                f"a chain needs two or more drafters, for example chain:cacheback,llamacpp; got {names!r}"
            )
        self._factories: list[DrafterFactory] = [
            DRAFTERS.get(name)(model, threads, options) for name in parts
        ]
        self.uses_tables = any(factory.uses_tables for factory in self._factories)
        self._rename()

    def _rename(self) -> None:
        self.name = "chain " + ", ".join([factory.name for factory in self._factories])

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        # A model that does not fit is told before tables that do not
        for factory in reversed(self._factories):
            factory.fit(target, tokenizer)
        kinds = [factory.vocabulary for factory in self._factories if factory.vocabulary != SAME]
        self.vocabulary = kinds[-1] if kinds else SAME
        self._rename()  # a part may have left out its table

    @property
    def note(self) -> str:
        return "; ".join(filter(None, [factory.note for factory in self._factories]))

    def create(self) -> ChainDrafter:
        with ExitStack() as made:
            drafters = [made.enter_context(closing(factory.create())) for factory in self._factories]
            made.pop_all()
        return ChainDrafter(drafters)


class ChainDrafter(Drafter):
    """Several drafters of one sequence, and how well the last one does: the share of its tokens that stand."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters, self._last = tuple(drafters), drafters[-1]
        self._alone = False
        self._forget()

    def _forget(self) -> None:
        # Tokens of the last drafter that stand, and that were tried; older blocks count less and less
        self._right, self._tried = FIRST_SHARE * FIRST_TRIED, FIRST_TRIED
        self._length = FIRST_LENGTH  # of its usual block
        self._block: list[int] = []  # what the last drafter proposes after the truth, if it was asked

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._forget()
        self._alone = sampler.alone
        for drafter in self._drafters:
            drafter.begin(prompt, sampler)

    def commit(self, tokens: Sequence[int]) -> None:
        if self._block:
            self._judge(self._block, tokens)
        self._block = []
        for drafter in self._drafters:
            drafter.commit(tokens)

    def _judge(self, block: Sequence[int], tokens: Sequence[int]) -> None:
        """The last drafter proposed `block` where `tokens` came. What follows its first wrong token was not tried."""
        right = common_prefix(block, tokens)
        is_wrong = right < min(len(block), len(tokens))
        self._right = FADING * self._right + right
        self._tried = FADING * self._tried + right + is_wrong
        self._length = FADING * self._length + (1 - FADING) * len(block)

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
        return self._in_turn()[0].propose_tree()

    @property
    def ready(self) -> int:
        first = self._in_turn()[0]
        return self._last.ready if first is self._last else len(self._sendable_chances(first))

    @property
    def behind(self) -> bool:
        return self._last.behind

    @property
    def lags(self) -> bool:
        return self._last.behind and self._in_turn()[0] is self._last

    def read(self, most: int) -> bool:
        return self._last.read(most)

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        """See `Drafter`; the first drafter that can works ahead, whichever one began the block."""
        for drafter in self._drafters:
            has_worked = False
            for _ in drafter.look_ahead(block, length):
                has_worked = True
                yield
            if has_worked:
                return

    def interrupt(self) -> None:
        for drafter in self._drafters:
            drafter.interrupt()

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()

    def _in_turn(self) -> list[Drafter]:
        """Earlier drafters that are sure, the last one, then the others, in case those before have nothing to say."""
        if self._alone:  # what was copied from earlier text would be the answer
            return [self._last]
        early = self._drafters[:-1]
        usual = SURE if self._last.behind else self._usual()
        sure = [drafter for drafter in early if sum(self._sendable_chances(drafter)) > usual]
        return [*sure, self._last, *(drafter for drafter in early if drafter not in sure)]

    def _usual(self) -> float:
        """Right tokens in a row that the last drafter's usual block has, by its share."""
        length = max(self._length, self._last.ready)
        share = self._right / self._tried
        return sum(share**place for place in range(1, round(length) + 1))

    def _sendable_chances(self, drafter: Drafter) -> list[float]:
        """Of each token that is worth sending, the chance that it and all before it are right."""
        least = WORTH_A_ROW if self._last.behind else WORTH_READING
        confidences = (token.confidence for token in islice(drafter.propose(), HORIZON))
        return list(takewhile(lambda chance: chance >= least, accumulate(confidences, mul)))
