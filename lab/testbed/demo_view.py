"""What the demo shows: answers and a live table on a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lab.testbed.demo_device import DemoDevice


class DemoView:
    """A table of devices that follows them; `quiet` says nothing on standard output."""

    def __init__(self, devices: Sequence[DemoDevice], *, quiet: bool) -> None:
        self._devices = devices
        self._console = Console(stderr=quiet, highlight=False)
        self._quiet = quiet
        self._status = ""
        self._writing: Text | None = None
        self._live = Live(console=self._console, get_renderable=self._frame, refresh_per_second=8)
        self._animated = self._console.is_terminal and not quiet

    def __enter__(self) -> DemoView:
        if self._animated:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._status, self._writing = "", None
        if self._animated:
            self._live.transient = exception[0] is not None  # half a table would look like a result
            self._live.stop()
        elif exception[0] is None and not self._quiet:
            self._console.print(self.table())
        if exception[0] in (KeyboardInterrupt, SystemExit):
            print("stopped before the end: nothing was compared", file=sys.stderr)

    def say(self, status: str) -> None:
        """What happens now."""
        self._status = status
        if not self._animated:
            print(status, file=sys.stderr)

    def refresh(self) -> None:
        if self._animated:
            self._live.refresh()

    def write(self, question: str, answer: str) -> None:
        """An answer as far as it is written."""
        self._writing = _exchange(question, answer)
        self.refresh()

    def keep(self, question: str, answer: str) -> None:
        """An answer that stays above the table."""
        self._writing = None
        if not self._quiet:
            self._console.print(_exchange(question, answer))

    def _frame(self) -> Group:
        return Group(self._writing, self.table()) if self._writing else Group(self.table())

    def table(self) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            caption=self._status or None,
            caption_justify="left",
            padding=(0, 1, 0, 0),
            show_edge=False,
            pad_edge=False,
        )
        for number, name in enumerate(COLUMNS):
            table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
        for device in self._devices:
            table.add_row(*(cell(device) for cell in COLUMNS.values()))
        return table


def _exchange(question: str, answer: str) -> Text:
    return Text.assemble((f"> {question}\n", "bold"), f"{answer.strip()}\n")


def _accepted(device: DemoDevice) -> str:
    return f"{device.report()['acceptance_rate']:.0%}" if device.total("drafted") else "-"


def _per_round(device: DemoDevice) -> str:
    return f"{device.report()['tokens_per_round']:.2f}" if device.total("drafted") else "-"


def _saved(device: DemoDevice) -> str:
    return f"{device.saved:.0%}" if device.tokens else "..."


def _same(device: DemoDevice) -> str:
    compared = min(len(device.replies), len(device.plain))
    return f"{compared - device.unlike_plain}/{compared}" if compared else "..."


def _drafted_speed(device: DemoDevice) -> str:
    return f"{device.speeds[0]:.1f}" if all(device.speeds) else "..."


def _gain(device: DemoDevice) -> str:
    drafted, plain = device.speeds
    return f"{drafted / plain:.2f}x" if drafted and plain else "..."


COLUMNS: dict[str, Callable[[DemoDevice], str]] = {  # heading -> cell of a device
    "device": lambda device: device.name,
    "drafter": lambda device: device.drafter,
    "tok/s": _drafted_speed,
    "gain": _gain,
    "accepted": _accepted,
    "tok/round": _per_round,
    "saved": _saved,
    "same text": _same,
}
