"""`--hub-link`: how far a hub is from the server."""

from math import isfinite

from hw_profiles import catalog
from lab.testbed.planner.trip import mean_s
from opensled.core.errors import NotFound, UsageError

FARTHEST_MS = 10_000


def hub_rtt_s(text: str) -> float:
    """Mean seconds of a round trip, from milliseconds or from the profile of a link. Raises UsageError for others."""
    try:
        ms = float(text)
    except ValueError:
        return _of_profile(text)
    if not (isfinite(ms) and 0 <= ms <= FARTHEST_MS):
        raise UsageError(f"{text!r} is no round trip: give 0 to {FARTHEST_MS} ms")
    return ms / 1000


def _of_profile(name: str) -> float:
    try:
        return mean_s(catalog.link(name))
    except NotFound as error:
        raise UsageError(f"{error}; or give a round trip in ms") from error
