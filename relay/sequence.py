"""The tokens of one sequence at a relay: those that the target has confirmed, and behind them those vetted here.

Without a target, what a relay's own model says is final: this relay's (`is_alone`), or that of a relay above.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

from opensled.messages import DraftBlock
from opensled.protocol import common_prefix, cut
from verify_server.sequence import Sequence


class RelaySequence(Sequence):
    """What its own model decides is vetted, not confirmed; only `correct` confirms, until it goes on `alone`."""

    is_alone = False
    is_ended = False  # by the target; an end that is vetted may be none
    unverified = 0  # of the last confirmed tokens, those that no target has confirmed, nor will

    def commit(self, ids: Ids[int], num_accepted: int) -> tuple[int, ...]:
        """See `Sequence.extend`; alone see `Sequence.commit`."""
        if not self.is_alone:
            return self.extend(ids, num_accepted)
        news = super().commit(ids, num_accepted)
        self.unverified += len(news)
        return news

    def go_alone(self) -> None:
        """No target confirms anything from now on: what is vetted is final, and so is all that follows."""
        self.is_alone = True
        self.unverified += len(self.vetted)
        self.confirm(len(self.tokens))

    def rebase(self, block: DraftBlock) -> DraftBlock | None:
        """See `Sequence.rebase`; a draft on tokens that were taken back meanwhile is stale."""
        return super().rebase(block) if block.base <= len(self.tokens) else None

    @property
    def vetted(self) -> tuple[int, ...]:
        """The tokens that the target has not confirmed."""
        return tuple(self.tokens[self.confirmed :])

    @property
    def over(self) -> bool:
        """Whether its end is final: the target's own, or alone this relay's."""
        return self.is_ended or (self.is_alone and bool(self.finish_reason))

    def follow(self, ahead: Ids[int]) -> int:
        """The relay above has vetted `ahead` behind what is confirmed; returns how many of those were vetted here, too.

        Where it says another token, that one and all behind it are taken back, for it knows better.
        """
        start = self.confirmed
        agreed = common_prefix(self.tokens[start:], ahead)
        if agreed < len(ahead):
            self.truncate(start + agreed)
            self.tokens += ahead[agreed:]
            self.finish_reason = cut(self.tokens[-1:], len(self.tokens) - 1, self.ends)[1]
        return agreed

    def correct(self, news: Ids[int], finish_reason: str = "") -> int:
        """The target has committed `news` behind what was confirmed; returns how many of them were vetted already.

        Where it says another token than was vetted, that one and all behind it are taken back, and so is what was
        vetted behind its end. It ends where the target says so (`finish_reason`): its ends may be others than here.
        """
        start = self.confirmed
        agreed = common_prefix(self.tokens[start:], news)
        self.confirm(start + agreed)
        if agreed < len(news) or finish_reason:
            self.truncate(start + agreed)
            self.tokens += news[agreed:]
            self.confirm(start + len(news))
        if self.confirmed == len(self.tokens):
            full = len(self.tokens) >= self.ends.last_length
            self.finish_reason = finish_reason or ("length" if full else "")
        self.is_ended = bool(finish_reason)
        return agreed
