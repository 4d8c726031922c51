"""How often device, hub and target agree: from given rates, or as three recorded tiers show it."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial

from hw_profiles.speculation import LONGEST
from lab.testbed.planner.hierarchy_blocks import Agreement, Dependence
from lab.testbed.planner.hierarchy_site import DRAFT, MIDDLE, TARGET, TierDrafts
from lab.testbed.planner.task_acceptance import MOST
from lab.testbed.recordings import BUNDLED_PAIR, PAIRS, recording
from lab.testbed.tiers import TIERS, TieredTrace, joined, read_hub
from lab.testbed.traces import TraceSet, read_traces
from opensled.core.protocol import common_prefix

# As recorded with the tiny family (docs/planning.md): of the device's tokens that the target accepts, those that the
# hub says, too; and how often the target says another token than device and hub both, to how often another than the hub
SHARED, DOUBT = 0.96, 0.55
BLOCK = 4  # draft tokens of the device's blocks whose fate at the hub is looked at (chosen: as a device sends them)
VETTED = 8  # tokens of the hub's blocks (chosen: the relay's default)
LEAST = 30  # places of a block that were judged fewer times say nothing of their own (chosen)


def of_rates(draft: float, hub: float, draft_at_hub: float | None = None) -> TierDrafts:
    """The target accepts a share `draft` of the device's tokens and `hub` of the hub's, at each position.

    `draft_at_hub`: of the device's tokens, those that the hub accepts; None = as many as follow from the other two, if
    the levels depend on each other as those of the tiny family do.
    """
    both = 1 - DOUBT * (1 - hub)
    share = min(MOST, SHARED * draft / both) if draft_at_hub is None else draft_at_hub
    other = min(1.0, max(0.0, (hub - share * both) / (1 - share)))
    pairs = {(DRAFT, TARGET): draft, (MIDDLE, TARGET): hub, (DRAFT, MIDDLE): share}
    return TierDrafts(
        {pair: Agreement.uniform(rate) for pair, rate in pairs.items()},
        {(DRAFT, MIDDLE, TARGET): Dependence(share, both, other)},
        f"{draft:g} of the device's tokens and {hub:g} of the hub's are the target's, {share:.2g} of the device's "
        "the hub's",
    )


@cache
def tiers() -> TraceSet:
    """The packaged recording of three tiers. Raises UsageError where it is not there."""
    return joined(read_traces(recording(BUNDLED_PAIR)), read_hub(TIERS))


@cache
def recorded() -> TierDrafts:
    """As that recording shows it."""
    traces = tiers()
    return of_recordings(
        traces, f"recorded with {traces.target}, {traces.origin['hub']} and {PAIRS[traces.target].draft}"
    )


def of_recordings(traces: TraceSet, source: str = "recorded") -> TierDrafts:
    """As recorded; `traces` hold items of three tiers. `source`: for a sentence."""
    counts = _Counts()
    for item in traces.items:
        assert isinstance(item, TieredTrace), "these traces have no hub in them"
        counts.add(item)
    pairs = {pair: tally.agreement for pair, tally in counts.tallies.items()}
    return TierDrafts(pairs, {(DRAFT, MIDDLE, TARGET): counts.dependence}, source)


class _Tally:
    """Of tokens at each place of blocks of each length: how many were judged, and how many of them stood."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._judged: Counter[tuple[int, int]] = Counter()  # by length and place
        self._stood: Counter[tuple[int, int]] = Counter()

    def replay(self, end: int, right: Callable[[int], int]) -> None:
        """A text of `end` tokens, in blocks of each length; `right`: of the tokens drafted after so many of it, those
        before the first that is not the text's."""
        for length in range(1, self._longest + 1):
            place = 0
            while place < end:
                stand = min(right(place), end - place)
                judged = min(stand + 1, length + 1, end - place)  # with the guess behind the block
                self._judged.update((length, index) for index in range(judged))
                self._stood.update((length, index) for index in range(min(stand, length + 1)))
                place += min(stand, length) + 1

    @property
    def agreement(self) -> Agreement:
        """As it was counted."""
        return Agreement(tuple(self._row(length) for length in range(1, self._longest + 1)))

    def _row(self, length: int) -> tuple[float, ...]:
        """A chance for each place that was judged often, and one for all places from the last of these on."""
        judged, stood = (
            [counter[length, place] for place in range(length + 1)] for counter in (self._judged, self._stood)
        )
        last = max((place for place, count in enumerate(judged) if count >= LEAST), default=0)
        rest = sum(stood[last:]) / max(1, sum(judged[last:]))
        return (*(right / many for right, many in zip(stood[:last], judged)), rest)


class _Counts:
    """All that is counted of the three models."""

    def __init__(self) -> None:
        longest = {(DRAFT, TARGET): LONGEST, (MIDDLE, TARGET): LONGEST, (DRAFT, MIDDLE): VETTED}
        self.tallies = {pair: _Tally(length) for pair, length in longest.items()}
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
        self.tallies[DRAFT, TARGET].replay(len(text), cache(partial(_right, item, text)))
        place = 0
        while place < len(text):
            vetted = item.vetted_after(text[:place])
            stands = common_prefix(vetted, text[place:])
            self._at_hub(item, (*text[:place], *vetted[: VETTED + 1]), place, stands)
            place += min(stands, VETTED) + 1
        leaves = [aside.place for aside in item.asides] + [len(text)]
        self.tallies[MIDDLE, TARGET].replay(
            len(text), lambda place: leaves[bisect_left(leaves, place)] - place
        )

    def _at_hub(self, item: TieredTrace, text: Sequence[int], place: int, stands: int) -> None:
        """The device's blocks along what the hub vets behind `place`, whose first `stands` tokens the target says."""
        right = cache(lambda offset: _right(item, text, place + offset))
        count = len(text) - place
        self.tallies[DRAFT, MIDDLE].replay(count, right)
        agreed: list[bool] = []
        while len(agreed) < count:
            agreed += [True] * min(right(len(agreed)), BLOCK) + [False]
        judged = agreed[: min(stands + 1, count, VETTED)]
        self._vetted.update((each, index < stands) for index, each in enumerate(judged))


def _right(item: TieredTrace, text: Sequence[int], place: int) -> int:
    """Of the tokens that the device drafts after `place` tokens of `text`, those before the first that is another."""
    known, count = (*item.prompt_ids, *text[:place]), 0
    while count <= LONGEST and place + count < len(text):
        found = item.following(known, len(known), count)
        if found is None or found[0] != text[place + count]:
            break
        count += 1
    return count
