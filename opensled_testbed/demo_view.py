"""What the demo shows: a live table on a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from opensled_testbed.demo_device import DemoDevice


class DemoView:
    """A table of devices that follows them; `quiet` says nothing on standard output."""

    def __init__(self, devices: Sequence[DemoDevice], *, quiet: bool) -> None:
        self._devices = devices
        self._console = Console(stderr=quiet)
        self._status = ""
        self._live = Live(console=self._console, get_renderable=self.table, refresh_per_second=8)
        self._animated = self._console.is_terminal and not quiet

    def __enter__(self) -> DemoView:
        if self._animated:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._status = ""
        if self._animated:
            self._live.stop()
        elif exception[0] is None and not self._console.stderr:
            self._console.print(self.table())

    def say(self, status: str) -> None:
        """What happens now."""
        self._status = status
        if not self._animated:
            print(status, file=sys.stderr)

    def refresh(self) -> None:
        if self._animated:
            self._live.refresh()

    def table(self) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            caption=self._status or None,
            caption_justify="left",
            padding=(0, 1, 0, 0),
            show_edge=False,
            pad_edge=False,
        )
        for name in ("device", "drafter"):
            table.add_column(name, no_wrap=True)
        for name in ("answers", "tokens", "tok/s", "accepted", "tok/round", "identical"):
            table.add_column(name, justify="right", no_wrap=True)
        for device in self._devices:
            table.add_row(*_cells(device))
        return table


def _cells(device: DemoDevice) -> list[str]:
    report = device.report()
    drafted = bool(report["drafted"])
    return [
        report["name"],
        report["drafter"],
        f"{len(device.replies)}/{len(device.prompts)}",
        str(report["tokens"]),
        f"{report['tokens_per_second']:.1f}",
        f"{report['acceptance_rate']:.0%}" if drafted else "-",
        f"{report['tokens_per_round']:.2f}" if drafted else "-",
        f"{device.identical}/{device.compared}" if device.compared else "...",
    ]
