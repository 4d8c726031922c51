"""How likely the target confirms what a relay has vetted, as far as it has been seen."""

from __future__ import annotations

from collections.abc import Sequence

# Chances before anything was seen: of tokens that the device had drafted as well, and of the others. Chosen; a
# simulation of three models with shared noise gave 0.755 and 0.552.
FIRST = {True: 0.75, False: 0.55}
WEIGHT = 8.0  # tokens for which these count
MEMORY = 200.0  # tokens after which what was seen counts half


class Survival:
    """Shares of confirmed tokens, apart by whether the device agreed with the relay: levels are not independent, and
    what two models say the third one says more often."""

    def __init__(self) -> None:
        self._stood = {agreed: WEIGHT * chance for agreed, chance in FIRST.items()}
        self._seen = dict.fromkeys(FIRST, WEIGHT)
        self.confirmed = self.taken_back = 0  # vetted tokens, all counted alike
        self.unverified = 0  # tokens that became text without the target

    def chance(self, agreed: bool | None) -> float:
        """That the target confirms a vetted token, if it has confirmed all before it. None: one that a relay above has
        vetted, which is no reason to wait or to send."""
        if agreed is None:
            return 1.0
        return self._stood[agreed] / self._seen[agreed]

    def of_all(self, agreed: Sequence[bool | None]) -> float:
        """That it confirms all of these."""
        chance = 1.0
        for each in agreed:
            chance *= self.chance(each)
        return chance

    def add_verdict(self, agreed: bool | None, stands: bool) -> None:
        """The target has decided on a token, and on all before it alike."""
        if agreed is None:
            return
        fading = 0.5 ** (1 / MEMORY)
        self._stood[agreed] = fading * self._stood[agreed] + stands
        self._seen[agreed] = fading * self._seen[agreed] + 1
