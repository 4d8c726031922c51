"""What policy `goodput` and `opensled plan` maximise, by `--objective`: all formulas, units and sources.

**The value.** Sessions that get R tokens/s together, and spend S for them, are worth

    value = R * (least / S) ** p          tokens/s

`least` is the smallest S of all that is compared, so a token counts for one at most, and the order is that of R / S**p:

    speed      p = 0                      most tokens/s of all sessions, whatever they cost; the default of a server
    balanced   p = 1/2   S in USD/s       largest product of tokens/s and tokens per USD
    cost       p = 1     S in USD/s       most tokens per USD
    energy     p = 1     S in watts       most tokens per joule

`balanced` takes one percent more tokens/s as long as a token becomes no more than one percent dearer. It is Nash's
solution of the bargain between speed and thrift (Econometrica 18, 1950): no exchange rate between seconds and money is
needed, and the units of both are of no matter.

**What is spent.** With u = share of time in which the target is in a step (0 to 1), d = devices that draft at the same
time on average, and m = messages/s of all sessions (a verdict a round, and a draft where there is one):

    USD/s = server_usd_hour / 3600 * u + kwh_usd / 3.6e6 * device_w * d + gb_usd / 1e9 * MESSAGE * m
    watts = idle_w + (busy_w - idle_w) * u + device_w * d

Only the target's time in steps is paid for: in the rest of it the machine can serve others. Its power stands in its
price, of renting or of owning. The power of a device counts as a whole while it drafts, and not at all while it reads:
it is on for its user anyway.

**Promises.** A kept promise is worth PROMISE * pace tokens/s (assignment.py), under each objective. As no token counts
for more than one beside it, breaking a promise pays no sooner than under `speed`. Nor does any objective make a session
draft that would get less than MIN_GAIN of what decoding gives it.

**At the margin.** A session that spends s more takes from the others' worth, beside the time of steps,

    price * s = p * R / S * s             tokens/s

the derivative of the value at the point where (least / S) ** p is 1. The target's time has this price only while it
idles now and then; a busy one spends the same whoever is in its steps.

**A plan.** `opensled plan` has the same formula for one user: R are the user's tokens/s, and S is a share of the
accelerator, which is paid and busy (u = 1) for whole hours, with what the user's device and traffic add.

**Sources.** Prices and power of machines: hw_profiles/accelerators and devices, each with its source. Electricity and
traffic have no price unless the operator names one. MESSAGE: hw_profiles/profiles.py.
"""

from dataclasses import dataclass
from typing import NamedTuple

from hw_profiles.profiles import MESSAGE
from hw_profiles.speculation import Numbers

HOUR_S = 3600.0
KWH_J = 3.6e6
GB = 1e9  # bytes
FREE = 1e-12  # USD/s or watts that are spent at the least: far below any machine, but a divisor
MAX_USD = 1e9  # the highest price: an infinite one would make all plans worth the same
# The exponent p of each objective
POWERS = {"speed": 0.0, "balanced": 0.5, "cost": 1.0, "energy": 1.0}


@dataclass(frozen=True)
class Prices:
    """What the machines and the network cost, and what the machines draw; 0 = nothing."""

    server_usd_hour: float = 0.0  # of the target's machine
    busy_w: float = 0.0  # of it, while it is in a step
    idle_w: float = 0.0  # and between two
    device_w: float = 0.0  # of one device while it drafts
    kwh_usd: float = 0.0  # of the devices' electricity
    gb_usd: float = 0.0  # of traffic, either way


class Consumption(NamedTuple):
    """What serving takes, of all sessions or, in arrays, of each."""

    busy: Numbers | float  # share of time in which the target is in a step
    drafting: Numbers | float  # devices that draft, on average
    messages: Numbers | float  # a second, both ways


@dataclass(frozen=True)
class Objective:
    """One of POWERS, at some prices."""

    name: str = "speed"
    prices: Prices = Prices()

    @property
    def power(self) -> float:
        """The exponent p."""
        return POWERS[self.name]

    def running(self, used: Consumption) -> Numbers | float:
        """What grows with use: USD/s, or watts for `energy`."""
        prices = self.prices
        if self.name == "energy":
            return (prices.busy_w - prices.idle_w) * used.busy + prices.device_w * used.drafting
        server = prices.server_usd_hour / HOUR_S * used.busy
        devices = prices.kwh_usd / KWH_J * prices.device_w * used.drafting
        return server + devices + prices.gb_usd / GB * MESSAGE * used.messages

    def spent(self, used: Consumption) -> float:
        """All that is spent: USD/s, or watts for `energy`."""
        idle = self.prices.idle_w if self.name == "energy" else 0.0
        return max(FREE, float(self.running(used)) + idle)

    def value(self, rate: float, spent: float, least: float) -> float:
        """Of `rate` tokens/s for which `spent` is spent, where others spend no less than `least`; tokens/s."""
        return rate * (least / spent) ** self.power if self.power else rate

    def price(self, rate: float, spent: float) -> float:
        """Tokens/s that one more USD/s, or watt, must bring."""
        return self.power * rate / spent if self.power else 0.0


SPEED = Objective()
