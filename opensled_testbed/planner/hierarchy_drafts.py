"""How often device, hub and target agree: from given rates, or as three recorded tiers show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from hw_profiles.hierarchy_blocks import Agreement, Dependence
from hw_profiles.speculation import LONGEST
from opensled.protocol import common_prefix
from opensled_testbed.planner.hierarchy_site import DRAFT, MIDDLE, TARGET, TierDrafts
from opensled_testbed.planner.task_acceptance import MOST
from opensled_testbed.recordings import BUNDLED_PAIR, PAIRS, recording
from opensled_testbed.tiers import TIERS, TieredTrace, joined, read_hub
from opensled_testbed.traces import TraceSet, read_traces

BLOCK = 4  # draft tokens of the device's blocks whose fate at the hub is looked at (chosen: as a device sends them)
VETTED = 8  # tokens of the hub's blocks (chosen: the relay's default)
LEAST = 30  # places of a block that were judged fewer times say nothing of their own (chosen)


def of_rates(draft: float, hub: float, draft_at_hub: float | None = None) -> TierDrafts:
    """The target accepts a share `draft` of the device's tokens and `hub` of the hub's, at each position.

    `draft_at_hub`: of the device's tokens, those that the hub accepts; None = as many as if the target accepted what
    both say as often as what the hub alone says.
    """
    shared = min(MOST, draft / max(hub, draft)) if draft_at_hub is None else draft_at_hub
    pairs = {(DRAFT, TARGET): draft, (MIDDLE, TARGET): hub, (DRAFT, MIDDLE): shared}
    return TierDrafts(
        {pair: Agreement.uniform(rate) for pair, rate in pairs.items()},
        {},
        f"{draft:g} of the device's tokens and {hub:g} of the hub's are the target's, {shared:.2g} of the device's "
        "the hub's",
    )


@cache
def tiers() -> TraceSet:
    """The packaged recording of three tiers. Raises UsageError where it is not there."""
    return joined(read_traces(recording(BUNDLED_PAIR)), read_hub(TIERS))


@cache
def recorded() -> TierDrafts:
    """As that recording shows it."""
    return counted(tiers(), PAIRS[BUNDLED_PAIR].words)


def counted(traces: TraceSet, words: str) -> TierDrafts:
    """As recorded; `traces` hold items of three tiers. `words`: of which models."""
    counts = _Counts()
    for item in traces.items:
        assert isinstance(item, TieredTrace), "these traces have no hub in them"
        counts.add(item)
    pairs = {pair: tally.agreement for pair, tally in counts.tallies.items()}
    return TierDrafts(pairs, {(DRAFT, MIDDLE, TARGET): counts.dependence}, f"recorded ({words})")


@dataclass
class _Tally:
    """Of tokens at each place of a block: how many were judged, and how many of them stood."""

    judged: Counter[int] = field(default_factory=Counter)
    stood: Counter[int] = field(default_factory=Counter)

    def add(self, accepted: int, length: int) -> None:
        """A block of `length` tokens, the first `accepted` of which stood."""
        self.judged.update(range(min(accepted + 1, length)))
        self.stood.update(range(accepted))

    @property
    def agreement(self) -> Agreement:
        """A chance for each place that was judged often, and one for all places from the last of these on."""
        last = max((place for place, judged in self.judged.items() if judged >= LEAST), default=0)
        chances = [self.stood[place] / max(1, self.judged[place]) for place in range(last)]
        rest = sum(self.judged[place] for place in self.judged if place >= last)
        tail = sum(self.stood[place] for place in self.stood if place >= last) / max(1, rest)
        return Agreement((*chances, tail))


class _Counts:
    """All that is counted of the three models."""

    def __init__(self) -> None:
        self.tallies = {pair: _Tally() for pair in ((DRAFT, TARGET), (MIDDLE, TARGET), (DRAFT, MIDDLE))}
        self._vetted: Counter[tuple[bool, bool]] = Counter()  # by whether the device agreed, and the target

    @property
    def dependence(self) -> Dependence:
        """How the target judges what the hub and the device both say, and what the hub alone says."""
        vetted = self._vetted
        both, other = (vetted[agreed, True] + vetted[agreed, False] for agreed in (True, False))
        share = both / max(1, both + other)
        return Dependence(share, vetted[True, True] / max(1, both), vetted[False, True] / max(1, other))

    def add(self, item: TieredTrace) -> None:
        """Replay it: the device's blocks at the target, the hub's, and the device's at the hub behind each of these."""
        text = item.target_ids
        for accepted, length in _rounds(item, (), text, LONGEST):
            self.tallies[DRAFT, TARGET].add(accepted, length)
        place = 0
        while place < len(text):
            vetted = item.vetted_after(text[:place])
            accepted = common_prefix(vetted, text[place:])
            self.tallies[MIDDLE, TARGET].add(min(accepted, LONGEST), min(len(vetted), LONGEST))
            self._at_hub(item, text[:place], vetted[: VETTED + 1], accepted)
            place += min(accepted, LONGEST) + 1

    def _at_hub(self, item: TieredTrace, before: Sequence[int], vetted: Sequence[int], stands: int) -> None:
        """The device's rounds along what the hub vets behind `before`, whose first `stands` tokens the target says."""
        agreed: list[bool] = []
        for accepted, length in _rounds(item, before, vetted, BLOCK):
            self.tallies[DRAFT, MIDDLE].add(accepted, length)
            agreed += [True] * accepted + [False]
        judged = agreed[: min(stands + 1, len(vetted), VETTED)]
        self._vetted.update((each, index < stands) for index, each in enumerate(judged))


def _rounds(
    item: TieredTrace, before: Sequence[int], text: Sequence[int], most: int
) -> Iterator[tuple[int, int]]:
    """(accepted, drafted) of the rounds in which the device drafts `text` behind `before` of it."""
    known, place = (*item.prompt_ids, *before), 0
    while place < len(text):
        drafted = tuple(_drafts(item, (*known, *text[:place]), min(most, len(text) - place)))
        accepted = common_prefix(drafted, text[place:])
        yield accepted, len(drafted)
        place += accepted + 1


def _drafts(item: TieredTrace, tokens: Sequence[int], most: int) -> Iterable[int]:
    """What the device drafts behind these tokens, at most so many."""
    for index in range(most):
        found = item.following(tokens, len(tokens), index)
        if found is None:
            return
        yield found[0]
