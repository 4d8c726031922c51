"""The tokens of one sequence and their KV: what is known, what of it is computed, and what is confirmed.

`confirmed <= known`: tokens beyond `confirmed` may still be taken back (`truncate`), as a server does whose tokens
another one has to confirm. Prefix blocks are published for confirmed tokens only. `computed < known`: the newest
token's KV is never computed before the next step, which needs its logits.
"""

from collections.abc import Sequence as Ids
from dataclasses import replace

from opensled.messages import DraftBlock, Prefill
from opensled.protocol import EndRules, agreed, cut, rebase
from scheduler.plan import Slice
from verify_server.engine.base import ImageRows, Segment
from verify_server.kv.blocks import BlockTable
from verify_server.prompt_scores import PromptScores
from verify_server.vision.image_store import PlacedRows


class Sequence:
    """One sequence; lengths count tokens, the prompt included."""

    def __init__(
        self,
        tokens: Ids[int],
        prompt_length: int,
        ends: EndRules,
        table: BlockTable,
        images: Ids[PlacedRows] = (),
        scores: PromptScores | None = None,
    ) -> None:
        """`tokens`: the prompt and what is committed already, all of it confirmed. `images`: of the prompt. `scores`:
        log-probabilities of its tokens; None = nobody asks for them."""
        self.tokens = list(tokens)
        self.prompt_length, self.ends, self.table = prompt_length, ends, table
        self.computed = 0  # positions [0, computed) are in the KV blocks
        self.prefilled = 0  # positions that steps without a decision have computed, again or not
        self.confirmed = len(self.tokens)
        self.finish_reason = ""  # "" = goes on
        self.images = tuple(images)
        self.scores = scores

    def __len__(self) -> int:
        """Tokens that are known."""
        return len(self.tokens)

    @property
    def over(self) -> bool:
        """Whether nothing more can follow."""
        return bool(self.finish_reason)

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

    def rebase(self, block: DraftBlock) -> DraftBlock | None:
        """See `opensled.protocol.rebase`."""
        return rebase(block, self.tokens)

    def agreed(self, block: DraftBlock) -> int:
        """Tokens of a draft, in a row from its base on, that stand."""
        return len(agreed(block, self.tokens[block.base :]))

    # -- steps --------------------------------------------------------------------------------------------

    def segment(self, piece: Slice, block: DraftBlock) -> Segment:
        """The work of a slice, with the draft `block` behind it; OutOfBlocks changes nothing."""
        stop, drafted = self.computed + piece.tokens, block.tokens
        assert piece.decide == (stop == len(self.tokens)), "a slice decides when it reaches the newest token"
        self.table.grow(stop + len(drafted))
        # Padding computes positions before these once more: the same work, and no row differs for it.
        start = max(self.table.frozen, self.computed - piece.padding)
        assert self.table.is_own(start), "a step writes in KV blocks of its own session only"
        return Segment(
            tokens=(*self.tokens[start:stop], *[token.id for token in drafted]),
            start=start,
            blocks=tuple(self.table.blocks),
            rows=self._rows(start, stop, len(drafted) + 1 if piece.decide else 0),
            parents=block.parents,
            images=self._images_from(start) if self.images else (),
        )

    def _rows(self, start: int, stop: int, decided: int) -> int:
        """Rows of a segment that begins at `start`, of which the last `decided` come from position stop - 1 on."""
        scored = self.scores.rows(start, stop) if self.scores is not None else 0
        return scored + max(0, decided - 1) if scored else decided

    def within(self, piece: Slice) -> Slice:
        """`piece`; a shorter chunk where all of it would give more rows than a step may hold for one session."""
        scores = self.scores
        if scores is None or piece.tokens <= scores.most_rows:
            return piece
        if not scores.rows(self.computed, self.computed + piece.tokens):
            return piece
        return replace(piece, tokens=scores.most_rows, decide=False)

    def _images_from(self, start: int) -> tuple[ImageRows, ...]:
        """The pictures with positions at `start` or behind it."""
        return tuple(
            [ImageRows(first, seen.rows) for first, seen in self.images if start < first + len(seen.content)]
        )

    def advance(self, segment: Segment) -> None:
        """A chunk of the prompt is computed."""
        stop = segment.start + len(segment.tokens)
        self.prefilled += stop - self.computed
        self.computed = stop
        self._publish()

    def commit(self, ids: Ids[int], num_accepted: int) -> tuple[int, ...]:
        """Append decided `ids` up to an end, confirmed; returns those appended.

        The first `num_accepted` of them were drafted, so that their KV is computed; the KV behind them is rolled back.
        """
        news = self._append(ids, num_accepted)
        self.confirm(len(self.tokens))
        return news

    def extend(self, ids: Ids[int], num_accepted: int) -> tuple[int, ...]:
        """See `commit`; what is appended may still be taken back."""
        news = self._append(ids, num_accepted)
        self._publish()
        return news

    def _append(self, ids: Ids[int], num_accepted: int) -> tuple[int, ...]:
        base = len(self.tokens)
        news, self.finish_reason = self.cut(ids)
        self.tokens.extend(news)
        self._roll_back(min(base + num_accepted, len(self.tokens) - 1))
        return news

    def confirm(self, length: int) -> None:
        """The first `length` tokens are final."""
        assert self.confirmed <= length <= len(self.tokens), "what is confirmed is known, and stays confirmed"
        self.confirmed = length
        self._publish()

    def truncate(self, length: int) -> None:
        """Take back the tokens from `length` on, which were not confirmed, and their KV."""
        assert self.confirmed <= length <= len(self.tokens), "what is confirmed is never taken back"
        if length < len(self.tokens):
            del self.tokens[length:]
            self.finish_reason = ""
        self._roll_back(min(self.computed, length - 1))

    def cut(self, ids: Ids[int]) -> tuple[tuple[int, ...], str]:
        """What of decided `ids` is appended, and why the sequence ends with it; "" = it goes on."""
        return cut(ids, len(self.tokens), self.ends)

    def rewind(self, computed: int) -> None:
        """The KV of positions from `computed` on does not count: a step that decided nothing wrote it."""
        self._roll_back(min(self.computed, computed))

    def _roll_back(self, computed: int) -> None:
        self.computed = computed
        self.table.truncate(computed)

    # -- KV -----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """The last confirmed token stays out: after `truncate` its logits are computed again, in a block of its own."""
        self.table.publish(self.tokens, min(self.computed, self.confirmed - 1))

    def forget_kv(self) -> None:
        """Give all KV blocks back; what is not found again by then is recomputed when the sequence is planned."""
        self.table.clear()
        self.computed = 0

    def adopt_kv(self) -> bool:
        """Take over what other sequences, or this one before, computed of the confirmed tokens still to compute;
        whether there was any."""
        before, last = self.computed, self._reusable
        if before <= last:
            known = self.tokens if last == len(self.tokens) else self.tokens[:last]
            self.computed = self.table.adopt(known, before)
        return self.computed > before

    @property
    def _reusable(self) -> int:
        """Tokens of which all but the last need not be computed if their KV is found: no row of them is wanted."""
        if self.scores is None or self.scores.rows(0, self.prompt_length) == 0:
            return self.confirmed
        return min(self.confirmed, self.scores.first + 1)
