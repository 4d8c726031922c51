"""How answers are drafted just now, why, and what it brings: what chat, page, API, doctor and demo show alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from opensled.core.messages import Why
from opensled.core.printable import digits

ENOUGH = 200  # tokens with drafts, and as many without, before a gain is told (chosen)
GAIN = ": drafts would give {gain}x"
# By the cause of a hint of 0, see HintCause of verify.proto
WHY = {
    "step": f"a step over {{rows}} tokens takes {{step_times}} times one over 1 here{GAIN}",
    "device": f"this device drafts {{device_rate}} tokens/s, and the server writes {{server_rate}}{GAIN}",
    "link": f"a draft is {{delay}} ms on its way, and the server writes {{server_rate}} tokens/s{GAIN}",
    "acceptance": f"the target would accept {{accepted}} of {{tokens}} draft tokens{GAIN}",
    "others": "drafts of this device would slow other users of the server down",
    "operator": "rested by the server's operator",
    "quota": "as much as the server verifies for this user is used up for the moment",
    "rejected": "the target rejected nearly all of its drafts; now and then it is tried again",
    "untried": "no draft of it has come in time yet, and it is asked again soon",
    "request": "the latest answer could not use drafts",
}
NOT_TOLD = "the server asks for no drafts now, and does not say why"


def why_at_rest(reason: Why) -> str:
    """The reason of a hint of 0, in plain words."""
    if reason is None or reason.cause not in WHY:
        return NOT_TOLD
    told = {name: digits(value) for name, value in reason._asdict().items() if isinstance(value, float)}
    told |= {"delay": digits(1000 * reason.delay)}
    return WHY[reason.cause].format(**told, tokens=reason.tokens, rows=reason.tokens + 1)


@dataclass(frozen=True)
class DraftStatus:
    """The present state. Rates in tokens/s of the latest whole answers, behind their first tokens; None: not known."""

    drafting: bool
    words: str  # what holds and why
    length: int = 0  # tokens of a block
    drafted_rate: float | None = None  # of answers with drafts
    plain_rate: float | None = None  # of answers without
    compared: int = 0  # tokens that were timed of each of the two kinds, at least

    @property
    def gain(self) -> float | None:
        """How many times as fast answers with drafts come; None: too little is known."""
        if not (self.drafted_rate and self.plain_rate) or self.compared < ENOUGH:
            return None
        return self.drafted_rate / self.plain_rate

    @property
    def gain_words(self) -> str:
        """The gain for people."""
        if self.gain is None:
            return f"not enough yet: {self.compared} of {ENOUGH} tokens with drafts, and as many without"
        return f"{digits(self.gain)}x, measured on whole answers"

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"gain": self.gain, "gain_words": self.gain_words}
