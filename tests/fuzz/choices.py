"""Decisions read from a fuzzer's bytes; where they end, every decision is the first one."""

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Where code that handles numbers goes wrong.
IDS = (1, 0, 2, 3, 48, 49, 50, 51, 52, 255, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS = (
    1.0,
    0.0,
    -0.0,
    0.5,
    1e-6,
    1e-7,
    100.0,
    100.5,
    -1.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    -float("inf"),
)
LENGTHS = (1, 0, 2, 3, 4, 8, 9, 16, 17, 64, 257, 2000)


class Choices:
    """The same bytes give the same decisions, on every machine and with every fuzzer."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        # Once an input something may be very long or many: lists of lists would have no end
        self._lavish = True

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return 0 if self._at > len(self._data) else self._data[self._at - 1]

    def below(self, limit: int) -> int:
        """0 <= number < limit; a byte, or four where that is not enough."""
        number = self.byte() if limit <= 256 else int.from_bytes(self.bytes(4).ljust(4, b"\0"), "little")
        return number % limit

    def flag(self) -> bool:
        return self.byte() & 1 == 1

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def bytes(self, count: int) -> bytes:
        """At most `count`."""
        start = self._at
        self._at += count
        return self._data[start : start + count]

    def rest(self) -> bytes:
        return self.bytes(len(self._data))

    def id(self) -> int:
        """A token id as the wire can carry it."""
        return self.below(2**32) if self.byte() == 255 else self.pick(IDS)

    def small_id(self) -> int:
        return self.below(53)

    def number(self) -> float:
        if self.byte() < 250:
            return self.pick(NUMBERS)
        return float(struct.unpack("<d", self.bytes(8).ljust(8, b"\0"))[0])

    def text(self) -> str:
        length = self.byte()
        return (
            "a" * self.pick(LENGTHS) if self._plenty(length) else self.bytes(length).decode(errors="replace")
        )

    def some(self, make: Callable[[], T], most: int = 6) -> list[T]:
        """Mostly a few of what `make` makes, seldom very many of one."""
        count = self.byte()
        if self._plenty(count):
            return [make()] * self.pick(LENGTHS)
        return [make() for _ in range(count % most)]

    def _plenty(self, byte: int) -> bool:
        plenty = self._lavish and byte > 250
        self._lavish = self._lavish and not plenty
        return plenty
