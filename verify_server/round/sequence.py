"""The tokens of one sequence and their KV: how many are known, how many are confirmed, and for how many KV is computed.

`confirmed <= known`: a server whose tokens another server must confirm may take back tokens after `confirmed`
(`follow`). Prefix blocks are published for confirmed tokens only. `computed < known`: the KV of the newest token is
computed in the next step, which needs its logits.
"""

from collections.abc import Sequence as Ids

from opensled.core.messages import DraftBlock, Prefill
from opensled.core.protocol import EndRules, Truth, cut, follow_path, rebase
from scheduler.plan import Slice
from verify_server.engine.base import Segment
from verify_server.kv.memory import SequenceMemory


class Sequence:
    """One sequence; lengths count tokens, the prompt included."""

    def __init__(self, tokens: Ids[int], prompt_length: int, ends: EndRules, memory: SequenceMemory) -> None:
        """`tokens`: the prompt and the tokens committed so far, all confirmed."""
        self.truth = Truth(tokens[:prompt_length], tokens[prompt_length:])
        self.tokens = self.truth.tokens  # all that is known
        self.prompt_length, self.ends, self.memory = prompt_length, ends, memory
        # Maximum number of tokens decided before another server confirms them; None = decided tokens are final
        self.ahead: int | None = None
        self.unverified_from: int | None = None  # no target confirms tokens from here on
        self.computed = 0  # positions [0, computed) are in the KV
        self.prefilled = 0  # positions that steps without a decision have computed, again or not

    def __len__(self) -> int:
        """The number of known tokens."""
        return len(self.tokens)

    @property
    def confirmed(self) -> int:
        """The number of final tokens."""
        return self.truth.confirmed

    @property
    def finish_reason(self) -> str:
        """Why it ends with the known tokens; "" = it goes on."""
        return self.truth.finish_reason

    @property
    def over(self) -> bool:
        """Whether nothing more can follow: its end is confirmed."""
        truth = self.truth
        return bool(truth.finish_reason) and truth.confirmed == len(truth.tokens)

    @property
    def waits(self) -> bool:
        """Whether it waits for confirmation before the next decision: it is far enough ahead, or at an end."""
        if self.ahead is None:
            return False
        at_end = bool(self.finish_reason) or len(self.tokens) >= self.ends.last_length
        return at_end or len(self.tokens) - self.confirmed >= self.ahead

    @property
    def unverified(self) -> int:
        """The number of the last confirmed tokens that no target confirms."""
        return 0 if self.unverified_from is None else self.confirmed - self.unverified_from

    @property
    def uncomputed(self) -> int:
        """The number of known tokens whose KV is missing, >= 1."""
        return len(self.tokens) - self.computed

    @property
    def prefill(self) -> Prefill:
        """The progress for the reader; before the first decision, positions that were not computed were found."""
        return Prefill(self.computed, len(self.tokens), max(0, self.computed - self.prefilled))

    @property
    def useful(self) -> int:
        """The number of draft tokens that can still be committed; the last position is the bonus token's."""
        return max(0, self.ends.last_length - len(self.tokens) - 1)

    @property
    def free(self) -> int:
        """The number of positions after the text that it can compute without memory of other sequences."""
        return self.memory.reach() - len(self.tokens)

    def rebase(self, block: DraftBlock) -> DraftBlock | None:
        """See `opensled.core.protocol.rebase`; a draft after tokens that were taken back is stale, too."""
        if self.truth.rewinds and block.base > len(self.tokens):
            return None
        return rebase(block, self.tokens)

    def count_agreed(self, block: DraftBlock) -> int:
        """The number of a draft's tokens, from its base on, that agree with the text."""
        return len(follow_path(block, self.tokens[block.base :]))

    # -- steps --------------------------------------------------------------------------------------------

    def segment(self, piece: Slice, block: DraftBlock) -> Segment:
        """The work of a slice, followed by the draft `block`. Raises OutOfBlocks, and then changes nothing."""
        stop, drafted = self.computed + piece.tokens, block.tokens
        assert piece.decide == (stop == len(self.tokens)), "a slice decides when it reaches the newest token"
        self.memory.grow(stop + len(drafted))
        # Padding computes positions before these once more: the same work, and no row differs for it.
        start = max(self.memory.frozen, self.computed - piece.padding)
        assert self.memory.is_own(start), "a step writes in KV blocks of its own session only"
        return Segment(
            tokens=(*self.tokens[start:stop], *[token.id for token in drafted]),
            start=start,
            blocks=tuple(self.memory.blocks),
            rows=len(drafted) + 1 if piece.decide else 0,
            parents=block.parents,
        )

    def advance(self, segment: Segment) -> None:
        """A chunk of the prompt is computed."""
        stop = segment.start + len(segment.tokens)
        self.prefilled += stop - self.computed
        self.computed = stop
        self._publish()

    def progress(self, computed: int, cached: int) -> None:
        """A target that keeps the KV by itself tells that positions [0, computed) are computed; it found `cached` of
        them."""
        self.prefilled += max(0, computed - self.computed - cached)
        self.computed = computed

    def commit(self, ids: Ids[int], num_accepted: int) -> tuple[int, ...]:
        """Append decided `ids` up to an end; returns those appended. They are confirmed, unless another server does
        that (`ahead`).

        The first `num_accepted` of them were drafted, so that their KV is computed; the KV behind them is rolled back.
        """
        base = len(self.tokens)
        news, finish_reason = self.cut(ids)
        self.truth.decide(news, finish_reason, final=self.ahead is None)
        self._roll_back(min(base + num_accepted, len(self.tokens) - 1))
        self._publish()
        return news

    def follow(self, news: Ids[int], final: int, finish_reason: str = "") -> int:
        """See `Truth.follow`; the KV of tokens that are taken back is rolled back."""
        base, truth = self.confirmed, self.truth
        known = truth.follow(news, final, finish_reason)
        if known < len(news) or finish_reason:
            self._roll_back(min(self.computed, base + known, len(self.tokens) - 1))
        if max(known, final) < len(news):  # the last of them may be an end, which is confirmed later
            truth.finish_reason = cut(self.tokens[-1:], len(self.tokens) - 1, self.ends)[1]
        self._publish()
        return known

    def decide_alone(self) -> None:
        """No target confirms tokens from now on: all known tokens are final, and so are all that follow."""
        self.ahead = None
        self.is_unverified_from(self.confirmed)
        self.truth.settle()
        self._publish()

    def is_unverified_from(self, length: int) -> None:
        """No target confirms the tokens after the first `length`."""
        if self.unverified_from is None:
            self.unverified_from = length

    def cut(self, ids: Ids[int]) -> tuple[tuple[int, ...], str]:
        """The part of decided `ids` to append, and why the sequence ends with it; "" = it goes on."""
        return cut(ids, len(self.tokens), self.ends)

    def rewind(self, computed: int) -> None:
        """Drop the KV of positions from `computed` on: a step that decided nothing wrote it."""
        self._roll_back(min(self.computed, computed))

    def _roll_back(self, computed: int) -> None:
        self.computed = computed
        self.memory.truncate(computed)

    # -- KV -----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Publish the blocks of confirmed tokens without the last one: after `follow` its logits are computed again, in
        a block of its own."""
        self.memory.publish(self.tokens, min(self.computed, self.truth.confirmed - 1))

    def forget_kv(self) -> None:
        """Give all KV back; the next plan computes it again, except blocks that are found in the cache."""
        self.memory.clear()
        self.computed = 0

    def adopt_kv(self, reusable: int) -> bool:
        """Take over cached KV of the first `reusable` tokens, except the last one, from other sequences or from an
        earlier time. Returns whether it found any. `reusable`: at most the number of confirmed tokens."""
        before = self.computed
        if before <= reusable:
            known = self.tokens if reusable == len(self.tokens) else self.tokens[:reusable]
            self.computed = self.memory.adopt(known, before)
        return self.computed > before
