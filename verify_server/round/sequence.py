"""The tokens of one sequence and their KV: what is known, what of it is computed, and what is confirmed.

`confirmed <= known`: tokens beyond `confirmed` may still be taken back (`follow`), as a server does whose tokens
another one has to confirm. Prefix blocks are published for confirmed tokens only. `computed < known`: the newest
token's KV is never computed before the next step, which needs its logits.
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
        """`tokens`: the prompt and what is committed already, all of it confirmed."""
        self.truth = Truth(tokens[:prompt_length], tokens[prompt_length:])
        self.tokens = self.truth.tokens  # all that is known
        self.prompt_length, self.ends, self.memory = prompt_length, ends, memory
        # Tokens that may be decided before another server confirms them; None = what is decided is final
        self.ahead: int | None = None
        self.unverified_from: int | None = None  # no target confirms tokens from here on
        self.computed = 0  # positions [0, computed) are in the KV
        self.prefilled = 0  # positions that steps without a decision have computed, again or not

    def __len__(self) -> int:
        """Tokens that are known."""
        return len(self.tokens)

    @property
    def confirmed(self) -> int:
        """Tokens that are final."""
        return self.truth.confirmed

    @property
    def finish_reason(self) -> str:
        """Why it ends with what is known; "" = it goes on."""
        return self.truth.finish_reason

    @property
    def over(self) -> bool:
        """Whether nothing more can follow: its end is confirmed."""
        truth = self.truth
        return bool(truth.finish_reason) and truth.confirmed == len(truth.tokens)

    @property
    def waits(self) -> bool:
        """Whether nothing is decided until more of it is confirmed: it is far enough ahead, or at an end."""
        if self.ahead is None:
            return False
        at_end = bool(self.finish_reason) or len(self.tokens) >= self.ends.last_length
        return at_end or len(self.tokens) - self.confirmed >= self.ahead

    @property
    def unverified(self) -> int:
        """Of the last confirmed tokens, those that no target has confirmed, nor will."""
        return 0 if self.unverified_from is None else self.confirmed - self.unverified_from

    @property
    def uncomputed(self) -> int:
        """Known tokens whose KV is missing, >= 1."""
        return len(self.tokens) - self.computed

    @property
    def prefill(self) -> Prefill:
        """How far the text is computed, for its reader; before the first decision what was not computed was found."""
        return Prefill(self.computed, len(self.tokens), max(0, self.computed - self.prefilled))

    @property
    def useful(self) -> int:
        """Draft tokens that can still commit; the very last position needs no draft, it is the bonus token."""
        return max(0, self.ends.last_length - len(self.tokens) - 1)

    @property
    def free(self) -> int:
        """Positions behind the text that it can compute without taking memory from another one."""
        return self.memory.reach() - len(self.tokens)

    def rebase(self, block: DraftBlock) -> DraftBlock | None:
        """See `opensled.core.protocol.rebase`; a draft on tokens that were taken back is stale, too."""
        if self.truth.rewinds and block.base > len(self.tokens):
            return None
        return rebase(block, self.tokens)

    def count_agreed(self, block: DraftBlock) -> int:
        """Tokens of a draft, in a row from its base on, that stand."""
        return len(follow_path(block, self.tokens[block.base :]))

    # -- steps --------------------------------------------------------------------------------------------

    def segment(self, piece: Slice, block: DraftBlock) -> Segment:
        """The work of a slice, with the draft `block` behind it; OutOfBlocks changes nothing."""
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
        """Positions [0, computed) are computed now, `cached` of them because they were found: a target says so that
        schedules by itself."""
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
        """See `Truth.follow`; the KV of what is taken back is rolled back."""
        base, truth = self.confirmed, self.truth
        known = truth.follow(news, final, finish_reason)
        if known < len(news) or finish_reason:
            self._roll_back(min(self.computed, base + known, len(self.tokens) - 1))
        if max(known, final) < len(news):  # the last of them may be an end, which is confirmed later
            truth.finish_reason = cut(self.tokens[-1:], len(self.tokens) - 1, self.ends)[1]
        self._publish()
        return known

    def decide_alone(self) -> None:
        """No target confirms anything from now on: what is known is final, and so is all that follows."""
        self.ahead = None
        self.is_unverified_from(self.confirmed)
        self.truth.settle()
        self._publish()

    def is_unverified_from(self, length: int) -> None:
        """No target confirms what is behind the first `length` tokens."""
        if self.unverified_from is None:
            self.unverified_from = length

    def cut(self, ids: Ids[int]) -> tuple[tuple[int, ...], str]:
        """What of decided `ids` is appended, and why the sequence ends with it; "" = it goes on."""
        return cut(ids, len(self.tokens), self.ends)

    def rewind(self, computed: int) -> None:
        """The KV of positions from `computed` on does not count: a step that decided nothing wrote it."""
        self._roll_back(min(self.computed, computed))

    def _roll_back(self, computed: int) -> None:
        self.computed = computed
        self.memory.truncate(computed)

    # -- KV -----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """The last confirmed token stays out: after `follow` its logits are computed again, in a block of its own."""
        self.memory.publish(self.tokens, min(self.computed, self.truth.confirmed - 1))

    def forget_kv(self) -> None:
        """Give all KV back; what is not found again by then is recomputed when the sequence is planned."""
        self.memory.clear()
        self.computed = 0

    def adopt_kv(self, reusable: int) -> bool:
        """Take over what other sequences, or this one before, computed of the first `reusable` tokens, all but the
        last of them; whether there was anything still to compute. `reusable`: at most those that are confirmed."""
        before = self.computed
        if before <= reusable:
            known = self.tokens if reusable == len(self.tokens) else self.tokens[:reusable]
            self.computed = self.memory.adopt(known, before)
        return self.computed > before
