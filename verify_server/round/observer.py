"""Observers of one session, in addition to its reader."""

from __future__ import annotations

from verify_server.rules.decide import StepResult


class Observer:
    """The base class ignores all events. The event loop calls the methods; `now` in seconds."""

    def reader_changed(self) -> None:
        """A reader came, or is gone."""

    def committed(self, tokens: int, result: StepResult | None, now: float) -> None:
        """A step of the session is over and has committed `tokens` tokens; `result`: None = it decided nothing."""

    def forgotten(self) -> None:
        """Nobody comes back for the session."""


NOBODY = Observer()
