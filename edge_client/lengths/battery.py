"""A device on its battery drafts nothing below a floor, whatever its policy says."""

from __future__ import annotations

from collections.abc import Callable

from edge_client.lengths.base import DraftLengthPolicy
from hw_profiles.sysfs import BoardState
from opensled.core.messages import DraftToken


class BatterySaver(DraftLengthPolicy):
    """`policy` while the battery is charged or charging. `floor`: percent; `board`: returns its state at once."""

    def __init__(self, policy: DraftLengthPolicy, floor: float, board: Callable[[], BoardState]) -> None:
        self._policy, self._floor, self._board = policy, floor, board
        self.needs_confidence = policy.needs_confidence

    def most(self, limit: int, hint: int | None = None) -> int:
        return 0 if self.rest else self._policy.most(limit, hint)

    def nodes(self, limit: int, hint: int | None = None) -> int:
        return 0 if self.rest else self._policy.nodes(limit, hint)

    def goes_on(self, index: int) -> bool:
        return self._policy.goes_on(index)

    def belongs(self, token: DraftToken, index: int) -> bool:
        return self._policy.belongs(token, index)

    @property
    def ending(self) -> str:
        return self._policy.ending

    @property
    def rest(self) -> str:
        state = self._board()
        left = state.battery_percent
        if left is None or not state.discharging or left >= self._floor:
            return ""
        return f"the battery is at {left:.0f} %, and drafts rest below {self._floor:.0f} %"
