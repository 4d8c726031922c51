"""Recorded drafts of three tiers: the target's text, where the hub's model leaves it, and the device's drafts on both.

Vetted tokens follow the text until the hub's own token is another one. From there they follow what the hub's model
writes by itself, until the target's word takes them back. So two recordings say all that three tiers can come to see:
the device's proposals at every place of the text (traces.py), and for each place where the hub's token is not the
text's an `Aside`. No chance is assumed to be independent of another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lab.testbed.traces import PACKAGED, WHOLE, ItemTrace, Proposal, TraceSet, read_lines, write_lines
from opensled.core.errors import UsageError
from opensled.core.protocol import common_prefix


def hub_file(target: str, hub: str) -> Path:
    """What a hub's model wrote beside the texts of a target; it need not be there."""
    return PACKAGED / f"hub-{target}-{hub}.jsonl.gz"


TIERS = hub_file("tiny", "tiny-hub")  # beside the device's drafts (recordings.BUNDLED)
SMALL = hub_file("tiny", "tiny-draft")  # with the device's model on the hub
UNSURE = 0.5  # confidence of a draft token whose model was not asked for one


@dataclass(frozen=True)
class Aside:
    """What the hub's model writes from a place of the text on where its token is another one, to its own end."""

    place: int  # tokens of the text before it
    ids: tuple[int, ...]
    drafts: tuple[int, ...]  # [i]: the draft token that the device proposes after ids[: i + 1],
    confidences: tuple[float, ...]  # and its draft model's own probability of it


@dataclass(frozen=True)
class TieredTrace(ItemTrace):
    """One item as target, hub and device wrote it."""

    asides: tuple[Aside, ...] = ()  # in order of their places

    @cached_property
    def _at(self) -> dict[int, Aside]:
        return {aside.place: aside for aside in self.asides}

    def vetted_after(self, text: Sequence[int]) -> tuple[int, ...]:
        """What the hub's model writes after `text`, prompt left out: its own samples, to its own end.

        Raises AssertionError where neither target nor hub has written such a text.
        """
        place = common_prefix(text, self.target_ids)
        if place < len(text):
            aside, offset = self._at[place], len(text) - place
            assert aside.ids[:offset] == tuple(text[place:]), f"item {self.item}: nobody wrote such a text"
            return aside.ids[offset:]
        leaves = next((aside for aside in self.asides if aside.place >= place), None)
        if leaves is None:
            return self.target_ids[place:]
        return self.target_ids[place : leaves.place] + leaves.ids

    def following(self, tokens: Sequence[int], length: int, index: int) -> tuple[int, float] | None:
        """See `ItemTrace.following`; the tokens may be the hub's own at their end."""
        start = len(self.prompt_ids)
        place = common_prefix(tokens[start:length], self.target_ids)
        offset = length - start - place
        if not offset and (index < WHOLE or place >= len(self.proposals)):
            return self.proposed(place, index)
        return self._along(place, offset, index)

    def _along(self, place: int, offset: int, index: int) -> tuple[int, float] | None:
        """Draft token number `index` after `offset` tokens of the aside at `place`, token by token: after one that
        neither text nor hub has, it stands for all others, for they never count."""
        found = None
        for _ in range(index + 1):
            last, found = found, self._first(place, offset)
            if found is None:
                return last
            if not offset and place < len(self.target_ids) and found[0] == self.target_ids[place]:
                place += 1
                continue
            aside = self._at.get(place)
            if aside is None or offset >= len(aside.ids) or aside.ids[offset] != found[0]:
                return found
            offset += 1
        return found

    def _first(self, place: int, offset: int) -> tuple[int, float] | None:
        """The draft token that the device proposes right there; None where nothing is recorded."""
        if not offset:
            return self.proposed(place, 0)
        aside = self._at.get(place)
        if aside is None or offset > len(aside.drafts):
            return None
        return aside.drafts[offset - 1], aside.confidences[offset - 1]


@dataclass(frozen=True)
class HubTrace:
    """One item as a hub wrote it beside the text."""

    item: str
    target_ids: tuple[int, ...]  # the text that it was recorded with
    asides: tuple[Aside, ...]


@dataclass(frozen=True)
class HubTraces:
    """What one hub's model and one device's draft model wrote beside the texts of one target."""

    target: str
    hub: str
    drafter: str
    origin: dict[str, Any]  # provenance: command, commit, versions
    items: tuple[HubTrace, ...]


def write_hub(path: Path, hub: HubTraces) -> None:
    """As gzipped JSON lines: a head, then one item each."""
    head = {name: getattr(hub, name) for name in ("target", "hub", "drafter", "origin")}
    write_lines(path, head, map(asdict, hub.items))


def read_hub(path: Path) -> HubTraces:
    """Raises UsageError for a file that is none."""
    try:
        head, *lines = read_lines(path)
        return HubTraces(**head, items=tuple(hub_trace_of(line) for line in lines))
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} holds nothing that a hub wrote: {error}") from error


def hub_trace_of(line: dict[str, Any]) -> HubTrace:
    """One item of a file; raises KeyError, TypeError or ValueError for another object."""
    return HubTrace(line["item"], tuple(line["target_ids"]), tuple(map(_aside, line["asides"])))


def _aside(table: dict[str, Any]) -> Aside:
    ids, drafts, confidences = (tuple(table[name]) for name in ("ids", "drafts", "confidences"))
    return Aside(table["place"], ids, drafts, confidences)


def joined(traces: TraceSet, hub: HubTraces) -> TraceSet:
    """The device's drafts with what the hub wrote; raises UsageError where the two were recorded with other texts."""
    written = {item.item: item for item in hub.items}
    for trace in traces.items:
        other = written.get(trace.item)
        if other is None or other.target_ids != trace.target_ids:
            raise UsageError(
                f"item {trace.item}: the hub {hub.hub} was recorded with another text of {traces.target}; record both "
                "again: python -m lab.testbed.emulation.recorder, then lab.testbed.emulation.hub_recorder"
            )
    items = tuple(tiered(trace, written[trace.item].asides) for trace in traces.items)
    return replace(traces, origin={**traces.origin, "hub": hub.hub, "hub_origin": hub.origin}, items=items)


def tiered(trace: ItemTrace, asides: Iterable[Aside]) -> TieredTrace:
    """An item with what the hub wrote beside it."""
    return TieredTrace(**vars(trace), asides=tuple(asides))


def spoken(traces: TraceSet) -> TraceSet:
    """The hub's model as drafter: what it writes at each place is what is proposed there."""
    return replace(traces, items=tuple(map(_spoken, traces.items)))


def _spoken(item: ItemTrace) -> ItemTrace:
    assert isinstance(item, TieredTrace), "these traces have no hub in them"
    ways = [item.vetted_after(item.target_ids[:place])[:WHOLE] for place in range(len(item.target_ids))]
    # A hub whose words are over has nothing more to say: what it repeats there never counts.
    whole = [(*ids, *[ids[-1]] * (WHOLE - len(ids))) for ids in ways]
    return replace(item, proposals=tuple(Proposal(ids, (UNSURE,) * WHOLE) for ids in whole))


def agreement(items: Iterable[ItemTrace]) -> list[str]:
    """Who agrees with whom at the places of the texts, line by line."""
    seen = [each for item in items if isinstance(item, TieredTrace) for each in _judged(item)]
    shares = {
        "hub with the target": [stands for _, stands, _ in seen],
        "device with the target": [right for _, _, right in seen],
        "device with the hub": [agreed for agreed, _, _ in seen],
        "hub with the target where the device says the same": [
            stands for agreed, stands, _ in seen if agreed
        ],
        "hub with the target where not": [stands for agreed, stands, _ in seen if not agreed],
    }
    return [f"{words}: {_share(of)} of {len(of)} places" for words, of in shares.items()]


def _judged(item: TieredTrace) -> Iterable[tuple[bool, bool, bool]]:
    """Of each place: whether the device says what the hub says, whether the hub is right, and whether the device is."""
    for place, token in enumerate(item.target_ids):
        vetted, drafted = item.vetted_after(item.target_ids[:place])[0], item.proposed(place, 0)
        yield (
            drafted is not None and drafted[0] == vetted,
            vetted == token,
            drafted is not None and drafted[0] == token,
        )


def _share(several: Sequence[bool]) -> str:
    return f"{sum(several) / len(several):.3f}" if several else "none"
