"""Fleets whose drafts are recorded, and what a server asks of its drafter there."""

from lab.testbed.baselines import BASELINES
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.traces import TraceSet
from opensled.core.messages import SamplingParams
from verify_server.round.drafter import Ask

HUB = Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=512)


def fleet(name: str, length: int = 4, users: int = 4) -> Fleet:
    group = Group(users, "orin-nano-super", "wifi-good", draft_length=length)
    return BASELINES[name](Fleet(HUB, (group,)))


def ask(traces: TraceSet, place: int, most: int = 4, session: int = 1) -> Ask:
    """After `place` tokens of the first text."""
    item = traces.items[0]
    text = (*item.prompt_ids, *item.target_ids[:place])
    return Ask(session, "", text, most, SamplingParams(), b"")
