"""`opensled top`: shows the work of servers live in the terminal, from their metrics ports."""

import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from opensled.cli.addresses import whole_address
from opensled.cli.config import option
from opensled.cli.top_figures import Figures, figures
from opensled.cli.top_view import frame
from opensled.core.errors import OpenSledError, UsageError
from opensled.metrics.scrape import Between, Sample, scrape

HISTORY = 30  # figures kept for the small graph
FIRST_WAIT = 0.5  # most seconds between the first two samples: a short wait before the first figures
SCRIPT_WIDTH = 120  # columns without a terminal
QUIT = {"q", "Q", "\x04"}  # or Ctrl-D


def addresses(listed: str) -> list[str]:
    """The addresses in a comma-separated list; raises UsageError."""
    found = [whole_address(address, 9410) for address in listed.split(",") if address.strip()]
    if not found:
        raise UsageError("name at least one metrics port, such as --metrics 127.0.0.1:9410")
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class TopConfig:
    """The servers to watch, and the interval."""

    metrics: str = option(
        "127.0.0.1:9410",
        "metrics addresses of servers or gateways, comma-separated",
        metavar="HOST:PORT[,...]",
        check=addresses,
    )
    interval: float = option(1.0, "seconds between readings", low=0.05, high=3600, metavar="S")
    once: bool = option(False, "print one reading and exit")
    json: bool = option(False, "print one reading as JSON and exit")


def top(config: TopConfig) -> int:
    """Run until q is pressed; without a terminal read once."""
    with ThreadPoolExecutor(8) as pool:
        watch = TopScreen(addresses(config.metrics), pool)
        watch.look()
        if len(watch.errors) == len(watch.addresses):
            raise watch.errors[0]
        if config.once or config.json or not sys.stdout.isatty():
            return _once(watch, config)
        return _live(watch, config.interval)


@dataclass
class TopScreen:
    """Servers and their latest samples."""

    addresses: Sequence[str]
    pool: ThreadPoolExecutor
    history: dict[str, deque[float]] = field(default_factory=dict)  # recent tokens/s
    errors: list[OpenSledError] = field(default_factory=list)  # of the latest reading
    _last: Mapping[str, Sample] = field(default_factory=dict)

    def look(self) -> list[Figures]:
        """Read all servers at once; returns for each the figures since the last reading, or an error."""
        replies = dict(zip(self.addresses, self.pool.map(_try_scrape, self.addresses)))
        self.errors = [reply for reply in replies.values() if isinstance(reply, OpenSledError)]
        found = [self._figures(address, reply) for address, reply in replies.items()]
        self._last = {address: reply for address, reply in replies.items() if isinstance(reply, Sample)}
        return found

    def _figures(self, address: str, reply: Sample | OpenSledError) -> Figures:
        if isinstance(reply, OpenSledError):
            return {"server": address, "error": str(reply)}
        found = figures(address, Between(self._last.get(address, reply), reply))
        history = self.history.setdefault(address, deque(maxlen=HISTORY))
        history.append(found.get("tokens_per_s", 0.0))
        return found


def _try_scrape(address: str) -> Sample | OpenSledError:
    try:
        return scrape(address)
    except OpenSledError as error:
        return error


def _once(watch: TopScreen, config: TopConfig) -> int:
    """Read again to get rates; the exit code is that of the first server without an answer."""
    time.sleep(config.interval)
    found = watch.look()
    if config.json:
        print(json.dumps({"servers": found}), flush=True)
    else:
        width = shutil.get_terminal_size((SCRIPT_WIDTH, 24)).columns
        print("\n".join(frame(found, {}, width)), flush=True)
    if watch.errors:
        raise watch.errors[0]
    return 0


def _live(watch: TopScreen, interval: float) -> int:
    from opensled.cli.screen import Screen  # there are systems without such terminals

    watch.history.clear()  # nothing has happened yet
    with Screen() as screen:
        wait = min(interval, FIRST_WAIT)
        while True:
            deadline = time.monotonic() + wait
            while (left := deadline - time.monotonic()) > 0:
                if QUIT & set(screen.keys(left)):
                    return 0
            found = watch.look()
            width, height = os.get_terminal_size(sys.stdout.fileno())
            title = f"opensled top  {time.strftime('%H:%M:%S')}  every {interval:g} s  q quits"
            screen.draw([title[:width], "", *frame(found, watch.history, width)], height)
            wait = interval
