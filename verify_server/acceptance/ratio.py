"""Rule `ratio`: textbook speculative sampling with the device's own probabilities.

A draft token stands with probability min(1, target / draft); the first that falls is recovered from the residual
max(0, target - draft); after a draft that stands whole comes a bonus token (arXiv 2211.17192, algorithm 1; arXiv
2302.01318). The output has the target's distribution exactly if each token was sampled from just the distribution
that came with it, and a device that lies gets any token accepted: for trusted fleets only.

Test, recovery and bonus draw from streams of their own, keyed by a secret that no device knows; the device's
proposals draw from the shared noise of the sequence.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from opensled.messages import DraftToken
from opensled.noise import KEY_BYTES, uniform
from verify_server.acceptance.base import DraftCheck
from verify_server.engine.base import Scores


class Ratio:
    """`AcceptancePolicy`; `secret` keys its random streams (None: drawn anew)."""

    trusts_device = True

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def accept(self, question: DraftCheck, scores: Scores, rows: Sequence[int]) -> tuple[int, int]:
        num_accepted = self._num_accepted(question, scores, rows)
        return num_accepted, self._next_token(num_accepted, question, scores, rows)

    def _num_accepted(self, question: DraftCheck, scores: Scores, rows: Sequence[int]) -> int:
        count = len(question.draft)
        masks = None if question.masks is None else question.masks[:count]
        target_probs = scores.probs_of(rows[:count], question.ids, question.params, masks) if count else []
        key = self._stream("accept", question.key)
        for index, (token, target_prob) in enumerate(zip(question.draft, target_probs)):
            if uniform(key, question.position + index) >= acceptance_prob(target_prob, draft_prob(token)):
                return index
        return count

    def _next_token(self, index: int, question: DraftCheck, scores: Scores, rows: Sequence[int]) -> int:
        """The token after `index` accepted ones: recovered where one fell, else the bonus."""
        position, params = question.position + index, question.params
        mask = None if question.masks is None else question.masks[index]
        if index == len(question.draft):
            key = self._stream("bonus", question.key)
            masks = None if mask is None else [mask]
            return scores.sample(rows[index : index + 1], params, key, position, masks)[0]
        draft_probs = question.draft[index].drawn_from
        assert draft_probs is not None, "a session of this rule takes no token without its distribution"
        return scores.sample_residual(
            rows[index], draft_probs, params, self._stream("recover", question.key), position, mask
        )

    def _stream(self, name: str, key: bytes) -> bytes:
        """The key of one random stream of a sequence."""
        return hashlib.blake2b(
            key, digest_size=KEY_BYTES, key=self._secret, person=f"ratio-{name}".encode()
        ).digest()


def acceptance_prob(target_prob: float, draft_prob: float) -> float:
    """min(1, target / draft); the draft's is above 0, for the token was drawn."""
    return min(1.0, target_prob / draft_prob)


def draft_prob(token: DraftToken) -> float:
    """The draft's probability of the token it drew."""
    source = token.drawn_from
    assert source is not None, "a session of this rule takes no token without its distribution"
    return source.probs[source.ids.index(token.id)] / sum(source.probs)
