"""Profiles of links for tests."""

from dataclasses import replace

from hw_profiles import catalog
from hw_profiles.profiles import Quantity


def exactly(value: float) -> Quantity:
    return Quantity(value, value, value, "test")


def profile(rtt=(0.0, 0.0), up=1e6, down=1e6, loss=0.0, burst=1.0):
    median, p99 = map(exactly, rtt)
    rates = {"up_mbit_s": exactly(up), "down_mbit_s": exactly(down)}
    link = replace(catalog.link("wifi-good"), rtt_p50_ms=median, rtt_p99_ms=p99, **rates)
    return replace(link, loss=exactly(loss), burst=burst)


def without_loss(name: str):
    return replace(catalog.link(name), loss=exactly(0.0))
