"""What may hear of one session's life, beside its reader."""

from __future__ import annotations

from verify_server.rules.decide import StepResult


class Observer:
    """This one has no use for what it hears. All is called on the event loop; `now` in seconds."""

    def reader_changed(self) -> None:
        """A reader came, or is gone."""

    def committed(self, tokens: int, result: StepResult | None, now: float) -> None:
        """A step of the session is over, and so many tokens follow its text; None: the step decided nothing."""

    def forgotten(self) -> None:
        """Nobody comes back for the session."""


NOBODY = Observer()
