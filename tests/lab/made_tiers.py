"""Recordings of three tiers by a seeded random process, for tests that need no model: `made_tiers(...)`."""

import random
from dataclasses import replace

from lab.testbed.tiers import Aside, TieredTrace, tiered
from lab.testbed.traces import ItemTrace, Proposal, TraceSet
from tests.lab.made_traces import WRONG, made

EOS = 2  # ends all texts that end by themselves, and stands nowhere else


def made_tiers(
    hub: float = 0.8, device: float = 0.7, items: int = 12, seed: int = 0, tokens: int = 32
) -> TraceSet:
    """`made` texts and drafts of the device, right with chance `device`, beside a hub that says what the target says
    with chance `hub` at each place. On the hub's own ways the device drafts as often what the hub says next."""
    traces, rng = made(items, device, seed, tokens), random.Random(seed)
    longest = max(len(item.target_ids) for item in traces.items)
    texts = tuple(_item(_ended(item), hub, device, longest, rng) for item in traces.items)
    return TraceSet(traces.target, traces.drafter, traces.origin, texts)


def _ended(item: ItemTrace) -> ItemTrace:
    if item.finish_reason != "eos":
        return item
    old, last = item.target_ids[-1], len(item.target_ids) - 1
    proposals = [
        Proposal(
            tuple(EOS if (place + index, id) == (last, old) else id for index, id in enumerate(each.ids)),
            each.confidences,
        )
        for place, each in enumerate(item.proposals)
    ]
    return replace(item, target_ids=(*item.target_ids[:-1], EOS), proposals=tuple(proposals))


def _item(item: ItemTrace, hub: float, device: float, longest: int, rng: random.Random) -> TieredTrace:
    places = [place for place in range(len(item.target_ids)) if rng.random() >= hub]
    return tiered(item, [_aside(place, longest - place, device, rng) for place in places])


def _aside(place: int, most: int, device: float, rng: random.Random) -> Aside:
    """To the end that max_tokens would set."""
    ids = tuple(rng.randrange(3000, 5000) for _ in range(most))
    drafts = tuple(id if rng.random() < device else WRONG for id in ids[1:])
    return Aside(place, ids, drafts, (0.5,) * len(drafts))
