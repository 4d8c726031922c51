"""The simulated users: the same arrivals, thinking times and items as in an emulated run (load/load.py)."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from lab.testbed.load.load import Load, asked_by, due_times, start_of, thinking
from lab.testbed.load.records import RequestRecord
from lab.testbed.simulated.device import Done
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.sequences import Script


class Asks(Protocol):
    """A device that answers."""

    def ask(self, record: RequestRecord, script: Script, done: Done) -> None: ...


class SimulatedUser:
    """One user with one device. What the user asks depends on the user's number and the load's seed alone."""

    __slots__ = ("_device", "_events", "_group", "_items", "_number", "_records", "_thinking")

    def __init__(
        self,
        number: int,
        group: int,
        device: Asks,
        scripts: Sequence[Script],
        load: Load,
        events: Events,
        records: list[RequestRecord],
    ) -> None:
        """`records` gets each request at the moment it is asked."""
        self._number, self._group, self._device = number, group, device
        self._events, self._records = events, records
        self._items = asked_by(number, scripts, load)
        self._thinking = thinking(number, load) if load.arrivals == "closed" and load.think else None

    def start(self, users: int, load: Load) -> None:
        """Make a user of `closed`, one of `users`, begin."""
        self._events.at(start_of(self._number, users, load), self._ask_again)

    def ask(self, done: Done) -> None:
        """One request, due now."""
        script = next(self._items)
        record = RequestRecord(self._number, self._group, script.item, self._events.now)
        self._records.append(record)
        self._device.ask(record, script, done)

    def _ask_again(self, _: None) -> None:
        self.ask(self._answered)

    def _answered(self, record: RequestRecord) -> None:
        """A user who is refused and does not think would ask without end: this user gives up."""
        if self._thinking is not None:
            self._events.at(self._events.now + next(self._thinking), self._ask_again)
        elif not record.error:
            self._events.at(self._events.now, self._ask_again)


class Arrivals:
    """The open processes: the n-th request is due for user n modulo their number, also while an answer is under way."""

    def __init__(self, members: dict[int, SimulatedUser], users: int, load: Load, events: Events) -> None:
        """`members`: those of the `users` users who are simulated here, by number."""
        self._events = events
        self._due: Iterator[tuple[float, SimulatedUser]] = (
            (time, members[number % users])
            for number, time in enumerate(due_times(load))
            if number % users in members
        )

    def start(self) -> None:
        found = next(self._due, None)
        if found is not None:
            self._events.at(found[0], self._arrive, found[1])

    def _arrive(self, user: SimulatedUser) -> None:
        user.ask(lambda record: None)  # the next request waits for no answer
        self.start()
