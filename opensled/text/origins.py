"""Where the tokens of an answer come from, in the words and colours of terminal and page alike."""

from __future__ import annotations

from typing import NamedTuple

from opensled.core.answer import Origin


class OriginFacts(NamedTuple):
    """What people see of an origin."""

    colour: str  # one of the terminal's; the page has a shade for each; "" = as other text
    meaning: str


ORIGINS: dict[str, OriginFacts] = {
    "accepted": OriginFacts("green", "drafted on this device, and accepted by the target"),
    "loose": OriginFacts(
        "red", "drafted on this device, and let stand by a loose rule: the target's own token is another one"
    ),
    "recovered": OriginFacts("yellow", "of the target, in place of a draft token that it rejected"),
    "bonus": OriginFacts("cyan", "of the target, one more after a draft that it accepted as a whole"),
    "server": OriginFacts("", "decoded by the server, without a draft"),
    "provisional": OriginFacts("dim", "drafted, and not confirmed by the target yet: it may change"),
    "local": OriginFacts(
        "magenta", "of the draft model alone, while the target cannot be reached: nothing verifies it"
    ),
    "relay": OriginFacts(
        "magenta", "of a relay's model alone, while the target cannot be reached: nothing verifies it"
    ),
}
OF_DRAFTS: tuple[Origin, ...] = ("accepted", "recovered", "bonus")


def colour_of(origin: Origin) -> str:
    """The colour of a token."""
    return ORIGINS[origin].colour


def possible(drafts: bool, loose: bool, provisional: bool, alone: bool) -> list[str]:
    """The origins that can occur where a device has `drafts`, a `loose` rule, shows `provisional` text while the
    server is away, or lets its model write `alone` then."""
    found: dict[str, bool] = {
        **dict.fromkeys(OF_DRAFTS, drafts),
        "loose": drafts and loose,
        "server": True,
        "provisional": provisional,
        "local": alone,
        "relay": alone,
    }
    return [name for name in ORIGINS if found[name]]
