"""What a round trip takes on a link: on average, and for the slowest of many sessions that wait for each other."""

from math import log

from hw_profiles.profiles import MESSAGE, LinkProfile
from lab.testbed.link_model import MIN_RTO_S, RAREST, way


def mean_s(link: LinkProfile) -> float:
    """Mean seconds of a draft's way up and its verdict's way down: the link's tail, its rates and its losses."""
    each = way(link.rtt_s, link.rtt_p99_ms.typical / 1000)
    delay = each.fixed + each.scale * _mean_of_tail(each.exponent)
    return 2 * delay + _sending_s(link) + _losses(link) * _timeout_s(link)


def slowest_s(link: LinkProfile, sessions: float) -> float:
    """The longest of `sessions` round trips at once: from the median for one to the 99th percentile for a hundred."""
    share = min(1.0, log(max(1.0, sessions)) / log(100))
    p50, p99 = link.rtt_s, link.rtt_p99_ms.typical / 1000
    stalls = 1 - (1 - _losses(link)) ** sessions
    return p50 * (p99 / p50) ** share + _sending_s(link) + stalls * _timeout_s(link)


def _mean_of_tail(exponent: float) -> float:
    """The mean of link_model's Pareto tail of scale 1: of u ** (-1 / exponent) - 1, with u no lower than RAREST."""
    below = RAREST ** (1 - 1 / exponent)
    return exponent / (exponent - 1) * (1 - below) - (1 - RAREST) + (below - RAREST)


def _sending_s(link: LinkProfile) -> float:
    """Seconds on the wires themselves, one message each way."""
    return 8e-6 * MESSAGE * (1 / link.up_mbit_s.typical + 1 / link.down_mbit_s.typical)


def _losses(link: LinkProfile) -> float:
    """Share of round trips that lose a packet; a burst within one trip counts once."""
    return min(1.0, 2 * link.loss.typical / link.burst)


def _timeout_s(link: LinkProfile) -> float:
    """After which TCP sends a lost packet again, at the soonest."""
    return max(MIN_RTO_S, link.rtt_s)
