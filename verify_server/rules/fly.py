"""Rule `fly`: a mismatch stands where the target is unsure and the draft agrees with it again (FLy, arXiv 2511.22972).

Equations 5 to 11 there: a draft token that is not the target's own stands if the entropy of the target's distribution
at its place is at least theta, and the W draft tokens behind it, all in the same verified block, are the target's own.
Paper and released code measure entropy differently: `normalized` is the paper's, of the whole vocabulary as a share of
the largest possible one; `top3` is the code's, the part of it that the three likeliest ids have, in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

from opensled.core.errors import InvalidRequest
from verify_server.rules.base import SessionScores
from verify_server.rules.loose import GUIDED, LooseRule, is_guided, number, options_of, whole

# The paper's values; its blocks have 15 tokens where its window has 6.
OPTIONS = {"theta": "0.3", "window": "6", "entropy": "normalized", GUIDED: "no"}
ENTROPIES = ("normalized", "top3")
MAX_WINDOW = 256
TOP = 3


class Fly(LooseRule):
    """Options: theta, window (W), entropy, guided."""

    needs = frozenset({"entropy", "top", "probs_of", "vocab_size"})

    def __init__(self, options: str = "") -> None:
        found = options_of(options, OPTIONS, "fly")
        self.theta = number(found["theta"], "theta", 0, inf)
        self.window = whole(found["window"], "window", MAX_WINDOW)
        self._entropy, self.guided = found["entropy"], is_guided(found)
        if self._entropy not in ENTROPIES:
            raise InvalidRequest(
                f"entropy={self._entropy[:80]}: one of {', '.join(ENTROPIES)} is needed", "rule"
            )
        self.min_draft = 2 * self.window + 3 if self.window else 0
        self.settings = f"theta={self.theta:g},window={self.window},entropy={self._entropy}"
        self.settings += f",{GUIDED}=yes" * self.guided

    def _stands(self, index: int, ids: Sequence[int], own: Sequence[int], scores: SessionScores) -> bool:
        stop = index + 1 + self.window
        follows = stop <= len(ids) and list(ids[index + 1 : stop]) == list(own[index + 1 : stop])
        return follows and self._is_unsure(index, scores) and scores.keeps([index], [ids[index]])[0]

    def _is_unsure(self, row: int, scores: SessionScores) -> bool:
        if self._entropy == "top3":
            [likeliest] = scores.top([row], TOP)
            return -sum(exp(nats) * nats for _, nats in likeliest if nats > -inf) >= self.theta
        [entropy] = scores.entropy([row])
        return entropy / log(scores.vocab_size) >= self.theta
