"""Reads the metrics ports of servers: single samples, and the change between two samples."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from opensled.core.errors import OpenSledError, Unreachable
from opensled.metrics.registry import PREFIX, samples

TIMEOUT = 3.0  # seconds for one answer
LARGEST = 4 << 20  # bytes of one

# By (name without prefix, values of its labels, "a,b"; "" = it has none)
Values = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Sample:
    """All metrics of one server at one moment."""

    at: float  # seconds on the monotonic clock of this process
    values: Values

    def get(self, name: str, label: str = "") -> float:
        """A metric's value; 0 if this server does not have it."""
        return self.values.get((name, label), 0.0)

    def by_label(self, name: str) -> dict[str, float]:
        """The values of a metric that has a label."""
        return {label: value for (found, label), value in self.values.items() if found == name}

    def has(self, name: str) -> bool:
        return any(found == name for found, _ in self.values)


def scrape(address: str) -> Sample:
    """The metrics of the server at http://`address`/metrics.

    Raises Unreachable, or OpenSledError for another program or a device.
    """
    url = f"http://{address}/metrics"
    try:
        # Without a proxy: servers are on this machine or on the own network.
        with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT) as reply:
            text = reply.read(LARGEST).decode("utf-8", "replace")
    except HTTPError as error:
        raise OpenSledError(
            f"{url} answers {error.code}: it is not a metrics address of opensled serve"
        ) from error
    except HTTPException as error:
        raise OpenSledError(
            f"the service at {address} does not speak HTTP; name the metrics port that opensled serve prints, not the "
            "port of --listen"
        ) from error
    except OSError as error:
        cause = error.reason if isinstance(error, URLError) else error
        raise Unreachable(
            f"no metrics at {url}: {_words(cause)}; start the server with --metrics {address}, or name its port"
        ) from error
    at = time.monotonic()
    values = _values(text, url)
    if not values:
        raise OpenSledError(
            f"{url} has no metrics of OpenSLED; name the port that opensled serve printed, and wait until it has loaded"
        )
    sample = Sample(at, values)
    if sample.has("drafters"):
        raise OpenSledError(
            f"{url} has the metrics of a device; opensled top shows servers: name the metrics port that opensled serve "
            "prints"
        )
    return sample


def _words(cause: object) -> str:
    """The operating system's message, without its number."""
    return str(getattr(cause, "strerror", "") or cause or "no answer").lower()


def _values(text: str, url: str) -> Values:
    try:
        found: Iterable[tuple[str, dict[str, str], float]] = list(samples(text))
    except ValueError as error:
        raise OpenSledError(f"{url} sent metrics that cannot be read") from error
    return {
        (name.removeprefix(PREFIX), ",".join(labels.values())): value
        for name, labels, value in found
        if name.startswith(PREFIX) and "le" not in labels
    }


@dataclass(frozen=True)
class Between:
    """The change from one sample of a server to the next."""

    before: Sample
    after: Sample

    @property
    def seconds(self) -> float:
        return max(self.after.at - self.before.at, 1e-9)

    def count(self, name: str, label: str = "") -> float:
        """The growth of a counter; a restarted server began again from 0."""
        now, then = self.after.get(name, label), self.before.get(name, label)
        return now - then if now >= then else now

    def rate(self, name: str, label: str = "") -> float:
        """Per second."""
        return self.count(name, label) / self.seconds

    def total(self, name: str) -> float:
        """The growth of a counter over all its labels."""
        return sum(self.count(name, label) for label in self.after.by_label(name))

    def mean(self, histogram: str) -> float | None:
        """The mean of the observations in between; None without observations."""
        count = self.count(f"{histogram}_count")
        return self.count(f"{histogram}_sum") / count if count else None

    def ratio(self, part: str, whole: str) -> float | None:
        of = self.count(whole)
        return self.count(part) / of if of else None
