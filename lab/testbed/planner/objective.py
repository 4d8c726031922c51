"""What each pick of `opensled plan --curve` looks for.

A user who reads R tokens/s, for whom S is spent, is worth

    value = R / S ** p

    speed      p = 0                      most tokens/s, whatever they cost
    balanced   p = 1/2   S in USD/s       largest product of tokens/s and tokens per USD
    cost       p = 1     S in USD/s       most tokens per USD
    energy     p = 1     S in watts       most tokens per joule

S is the user's share of the accelerator, which is paid and busy for whole hours, with what the user's device and
traffic add (token_cost.py).

`balanced` takes one percent more tokens/s as long as a token becomes no more than one percent dearer. It is Nash's
solution of the bargain between speed and thrift (Econometrica 18, 1950): no exchange rate between seconds and money is
needed, and the units of both are of no matter.

**Sources.** Prices and power of machines: hw_profiles/accelerators and devices, each with its source. Electricity and
traffic have no price unless the operator names one. The size of a message: hw_profiles/profiles.py.
"""

MAX_USD = 1e9  # the highest price: an infinite one would make all plans worth the same
# The exponent p of each objective
POWERS = {"speed": 0.0, "balanced": 0.5, "cost": 1.0, "energy": 1.0}


def value(name: str, rate: float, spent: float) -> float:
    """By one of POWERS; of use for comparisons only. Where nothing is `spent`, `rate` alone counts."""
    return rate / spent ** POWERS[name] if spent else rate
