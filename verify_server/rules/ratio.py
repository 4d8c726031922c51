"""Rule `ratio`: textbook speculative sampling with the device's own probabilities.

A draft token stands with probability min(1, target / draft); the first that falls is recovered from the residual
max(0, target - draft); after a draft that stands whole comes a bonus token (arXiv 2211.17192, algorithm 1; arXiv
2302.01318). The output has the target's distribution exactly if each token was sampled from just the distribution
that came with it, and a device that lies gets any token accepted: for trusted fleets only.

Test, recovery and bonus draw from streams of their own, keyed by a secret that no device knows; the device's
proposals draw from the shared noise of the sequence.
"""

import hashlib
import secrets

from opensled.core.messages import DraftToken
from opensled.core.noise import KEY_BYTES, uniform
from verify_server.rules.base import (
    AcceptanceResult,
    AcceptanceRule,
    Decision,
    DraftCheck,
    SessionScores,
)


class Ratio(AcceptanceRule):
    """Speculative sampling over chains."""

    draft_probs = True
    needs = frozenset({"probs_of", "sample_residual"})

    def __init__(self, options: str = "", secret: bytes | None = None) -> None:
        """`secret`: keys the random streams; None = draw one."""
        super().__init__(options)
        self._secret = secret or secrets.token_bytes(32)

    def decide(self, check: DraftCheck, scores: SessionScores) -> Decision:
        """See `AcceptanceRule`."""
        num_accepted = self._num_accepted(check, scores)
        if num_accepted < len(check.draft):
            return AcceptanceResult(num_accepted, self._recover_token(num_accepted, check, scores))
        row = range(num_accepted, num_accepted + 1)
        [bonus] = yield scores.request(row, num_accepted, self._stream("bonus", check.key))
        return AcceptanceResult(num_accepted, bonus)

    def _num_accepted(self, check: DraftCheck, scores: SessionScores) -> int:
        count = len(check.draft)
        target_probs = scores.probs_of(range(count), check.ids) if count else []
        key = self._stream("accept", check.key)
        for index, (token, target_prob) in enumerate(zip(check.draft, target_probs)):
            if uniform(key, check.position + index) >= acceptance_prob(target_prob, draft_prob(token)):
                return index
        return count

    def _recover_token(self, index: int, check: DraftCheck, scores: SessionScores) -> int:
        """The token in the place of the rejected draft token `index`."""
        draft_probs = check.draft[index].drawn_from
        assert draft_probs is not None, "a session of this rule takes no token without its distribution"
        return scores.sample_residual(index, draft_probs, self._stream("recover", check.key))

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
