"""Why a device drafts, or does not: sentences made of the very numbers that decide, so that none contradicts them.

Rates in tokens/s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from opensled.drafting.status import DraftStatus
from opensled.printable import digits

NOTHING_YET = "nothing drafted yet"


@dataclass(frozen=True)
class Decision:
    """What a policy that compares drafts with the server has decided, and by which numbers."""

    expected: float  # with drafts
    servers: float | None  # of the server's own decoding; None = not heard yet
    lead: float = 0.0  # the part by which the server must be faster before drafts rest

    @property
    def faster(self) -> bool:
        """Whether the server alone is."""
        return self.servers is not None and self.servers > self.expected

    @property
    def rates(self) -> tuple[str, str]:
        """Of the server and of drafts, with as many digits as it takes to tell them apart, up to three."""
        servers, expected = self.servers or 0.0, self.expected
        counts = (count for count in (2, 3) if digits(servers, count) != digits(expected, count))
        count = next(counts, 2)
        return digits(servers, count), digits(expected, count)

    @property
    def alone(self) -> str:
        """The server's rate in words."""
        return (
            "server alone not heard yet" if self.servers is None else f"server alone {self.rates[0]} tokens/s"
        )


def resting_words(decision: Decision, on_trial: bool = False) -> str:
    """Why nothing is drafted, or (`on_trial`) just a few blocks to see whether drafts would pay by now."""
    servers, expected = decision.rates
    if on_trial:
        return f"not drafting, but for a short trial now: {expected} tokens/s expected, {decision.alone}"
    if decision.faster:
        return f"not drafting: the server alone is faster, {servers} against {expected} tokens/s"
    return f"not drafting until the next block: {expected} tokens/s expected by now, {decision.alone}"


def drafting_words(decision: Decision, length: int, right: int, drafted: int, tree: int = 0) -> str:
    """Why blocks of `length` tokens are drafted, or trees of `tree` nodes.

    `right` of the latest `drafted` draft tokens are the target's own, also those that came too late. If none is,
    nothing speaks for the expectation.
    """
    shape = f"trees of {tree}" if tree else f"k = {length}"
    facts = f"{right} of the latest {drafted} draft tokens were right"
    if not right:
        return f"{shape} on trial: {decision.alone}; {facts}"
    lead = f", too close to stop: drafts rest once it leads by {100 * decision.lead:.0f} %" * decision.faster
    return f"{shape}: {decision.rates[1]} tokens/s expected, {decision.alone}{lead}; {facts}"


def battery_words(percent: float, floor: float) -> str:
    """Why nothing is drafted with the battery at `percent`."""
    return f"not drafting: the battery is at {percent:.0f} %, and drafts rest below {floor:.0f} %"


def rested(status: DraftStatus) -> DraftStatus:
    """The status while the server wants no drafts, whatever this device would gain by them."""
    words = (
        "not drafting: the server asks for no drafts now; it decides for all users together, or its operator has "
        "switched them off"
    )
    if (status.gain(status.expected_rate) or 0.0) > 1:
        words += f"; this device expected {digits(status.expected_rate or 0.0)} tokens/s with drafts"
    return replace(status, drafting=False, length=0, words=words)


def without_drafter(status: DraftStatus) -> DraftStatus:
    """The status of a device that has nothing to draft with."""
    return replace(
        status, drafting=False, length=0, words="not drafting: this device has nothing to draft with"
    )


def measured(status: DraftStatus, drafted: float | None, plain: float | None) -> DraftStatus:
    """`status` with the rates of whole answers: `drafted` of those with drafts, `plain` of those without.

    The server's rate is the one that the policy goes by; `plain` stands for it where a policy hears none. Whole answers
    may contradict what the latest rounds let expect: then the words say so.
    """
    found = replace(status, measured_rate=drafted, server_rate=status.server_rate or plain)
    expected, came = found.gain(found.expected_rate), found.gain(drafted)
    if not (expected and came and drafted):
        return found
    if found.drafting and came < 1 <= expected:
        told = f"whole answers with drafts still came at {digits(drafted)} tokens/s"
    elif not found.drafting and expected < 1 < came:
        told = f"earlier answers with some drafts came at {digits(drafted)} tokens/s"
    else:
        return found
    return replace(found, words=f"{found.words}; {told}")
