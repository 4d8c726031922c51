"""A draft model's cache in lengths: edge_client/drafters/base.py `ModelDrafter`, over a text whose drafts are known."""

from __future__ import annotations

from hw_profiles.device_profile import DraftSpeed
from opensled_testbed.emulation.device_time import forward_s
from opensled_testbed.simulated.drafts import Script


class DraftModel:
    """Follows one text; what was drafted stays until the truth contradicts it, and costs no second pass."""

    __slots__ = ("_computed", "_script", "_speed", "drafted", "place")

    def __init__(self, script: Script, speed: DraftSpeed | None) -> None:
        self._script, self._speed = script, speed
        self.place = 0  # tokens of the text that it has heard of
        self.drafted = 0  # after those
        self._computed = 0  # positions in its cache, prompt included

    def commit(self, place: int) -> None:
        """The truth is `place` tokens of the text."""
        news = place - self.place
        agreed = min(self.drafted, self._script.reach(self.place))
        if news <= agreed:
            self.drafted -= news
        else:
            self._computed = min(self._computed, self._length - self.drafted + agreed)
            self.drafted = 0
        self.place = place

    def first_s(self) -> float:
        """Seconds of its next pass: it computes whatever has been read or drafted since the one before."""
        return forward_s(self._speed, self._length - min(self._computed, self._length - 1))

    def advance(self, passes: int) -> None:
        """So many passes were made, of a token each."""
        if passes:
            self._computed = self._length + passes - 1
            self.drafted += passes

    @property
    def _length(self) -> int:
        return self._script.prompt + self.place + self.drafted
