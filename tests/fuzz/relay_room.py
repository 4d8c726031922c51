"""A relay for fuzz targets: devices below it as in any room, and above it a server that says what it is told to."""

import contextlib
import logging
from collections.abc import Iterator

from edge_client.link.moves import destination
from edge_client.link.remote import RetryPolicy
from relay.opening import Relay
from relay.uplink import Upstream
from tests.by_hand import Wire
from tests.fuzz.rooms import LINGER, Room
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.round.loaded_model import ServedModel
from verify_server.round.loop import VerifyLoop

PATIENCE = RetryPolicy(silence=5.0, first_open=20.0, give_up=20.0)


class Bugs(logging.Handler):
    """What is logged of errors that are none of ours."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class RelayRoom(Room):
    """See `Room`."""

    def __init__(self) -> None:
        super().__init__()
        self.bugs = Bugs(logging.ERROR)
        logging.getLogger("verify_server").addHandler(self.bugs)
        self.loop.set_exception_handler(lambda loop, context: self.bugs.found.append(str(context)))

    def manager_of(self, loop: VerifyLoop, target: ServedModel) -> SessionManager:
        """See `Room.manager_of`."""
        self.above: list[Wire] = []
        upstream = Upstream(self._connect_above, block=3, patience=PATIENCE)
        self.relay = Relay(loop, target, SessionLimits(max_sessions=4, max_draft=8, linger=LINGER), upstream)
        return self.relay.manager

    def _connect_above(self, address: str = "") -> Wire:
        if address:  # as edge_client/link/link.py has it
            destination(address, "hub:7411", secret_in_clear=False)
        self.above.append(Wire())
        return self.above[-1]

    def hear(self, message: bytes) -> None:
        """The server above says something, on the stream that was opened last; if that is gone, time passes."""
        if self.above and not self.above[-1].broken:
            self.above[-1].at_device.put_nowait(message)
            self.loop.settle()
        else:
            self.loop.advance(2.0)

    @contextlib.contextmanager
    def visit(self) -> Iterator[None]:
        """See `Room.visit`; nothing is left at the other end either."""
        with super().visit():
            yield
            for wire, _ in self.wires:
                wire.tear()
            for wire in self.above:
                wire.tear()
            self.loop.settle()
            self.loop.advance(2 * PATIENCE.give_up + LINGER)
        assert not self.relay.uplinks
        assert all(wire.broken for wire in self.above)
        self.above.clear()

    def require_no_bugs(self) -> None:
        """See `Room.require_no_bugs`; the server above may call its own errors internal."""
        assert not self.bugs.found, self.bugs.found
