"""The reader's end of a session."""

from __future__ import annotations

from dataclasses import dataclass, field

from verify_server.outbox import Outbox


@dataclass(eq=False, slots=True)
class Reader:
    """One reader after another; between two of them nobody reads."""

    outbox: Outbox = field(default_factory=Outbox)
    present: bool = False
    listens: bool = False  # its device sends nothing more, and reads on
    leaving: bool = False  # it goes on elsewhere

    def attach(self) -> None:
        """A new one takes over: the older stream ends."""
        self.outbox.put(None)
        self.outbox, self.present, self.listens = Outbox(), True, False
