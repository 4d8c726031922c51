"""The reader's end of a session: what waits to be sent, and who drives."""

from __future__ import annotations

from dataclasses import dataclass, field

from opensled.turns import Turn
from verify_server.outbox import Outbox


@dataclass(eq=False, slots=True)
class Reader:
    """One reader after another; between two of them nobody reads."""

    turn: Turn
    outbox: Outbox = field(default_factory=Outbox)
    present: bool = False
    listens: bool = False  # its device sends nothing more, and reads on
    leaving: bool = False  # it goes on elsewhere

    def attach(self) -> None:
        """A new one takes over: the older stream ends, the server drives again."""
        self.outbox.put(None)
        self.outbox, self.present, self.listens = Outbox(), True, False
        self.turn.reopened(self.turn.hint)

    @property
    def server_drives(self) -> bool:
        """Whether the session is decoded unasked, as no draft is expected."""
        return self.listens or self.turn.server_drives

    @property
    def awaits_draft(self) -> bool:
        """Whether its device is at work on one."""
        return self.present and not self.listens and self.turn.awaits_draft
