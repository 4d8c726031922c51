"""Traces of a seeded random process, for tests that need no model: `made(...)`; and what holds of any run on them."""

import random

from lab.testbed.cells import REGIMES
from lab.testbed.fleet import Fleet, Group
from lab.testbed.load.records import RequestRecord, RunResult
from lab.testbed.traces import ItemTrace, Proposal, TraceSet

PROPOSED = 8  # tokens proposed at each place, as in the recordings
WRONG = 7  # an id that no text holds


def made(items: int = 12, acceptance: float = 0.7, seed: int = 0, tokens: int = 32) -> TraceSet:
    """Texts of up to `tokens` tokens; each proposed token is the text's with probability `acceptance`."""
    rng = random.Random(seed)
    return TraceSet("made", "made", {}, tuple(_item(n, rng, acceptance, tokens) for n in range(items)))


def _item(number: int, rng: random.Random, acceptance: float, tokens: int) -> ItemTrace:
    text = tuple(rng.randrange(20, 2000) for _ in range(rng.randint(2, tokens)))
    return ItemTrace(
        item=f"item-{number}",
        prompt_ids=tuple(rng.randrange(20, 2000) for _ in range(rng.randint(1, 40))),
        target_ids=text,
        finish_reason="length" if len(text) == tokens else "eos",
        proposals=tuple(_proposal(text[place:], rng, acceptance) for place in range(len(text))),
        alone_ids=text[: rng.randint(1, len(text))],
    )


def _proposal(rest: tuple[int, ...], rng: random.Random, acceptance: float) -> Proposal:
    """After a wrong token come wrong ones; what is right tends to be proposed with more confidence."""
    ids: list[int] = []
    confidences = []
    for index in range(PROPOSED):
        right = index < len(rest) and WRONG not in ids and rng.random() < acceptance
        ids.append(rest[index] if right else WRONG)
        confidences.append(round(rng.uniform(0.4, 1) if right else rng.uniform(0, 0.7), 4))
    return Proposal(tuple(ids), tuple(confidences))


def finished(result: RunResult) -> list[RequestRecord]:
    return [record for record in result.requests if record.finish_reason]


def require_possible(result: RunResult, traces: TraceSet) -> None:
    """Times are in order, only whole texts end, and no more is accepted than was drafted."""
    lengths = {item.item: len(item.target_ids) for item in traces.items}
    assert result.requests
    for record in result.requests:
        times = [record.due, record.sent, *(arrival.time for arrival in record.arrivals), result.end]
        assert times == sorted(times)
        assert (record.tokens == lengths[record.item]) == bool(record.finish_reason)
        assert all(record.sent <= each.sent <= each.answered for each in record.rounds)
        assert all(0 <= each.accepted <= each.drafted for each in record.rounds)
        assert record.wasted >= 0


def place(device: str = "orin-nano-super", link: str = "wifi-good", regime: str = "hub") -> Fleet:
    return Fleet(REGIMES[regime], (Group(1, device, link),))


def perfect_traces() -> TraceSet:
    text = tuple(range(10, 34))
    drafts = [text[place:] for place in range(len(text))]
    proposals = tuple(Proposal(ids, (0.9,) * len(ids)) for ids in drafts)
    return TraceSet("t", "d", {}, (ItemTrace("i", (1, 2), text, "eos", proposals, text),))
