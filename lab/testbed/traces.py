"""Recorded drafts: what the target writes on each item, and what the drafter proposes at every place of it.

The text of an item is fixed by its seed, so a drafter's proposals depend on the position alone. Whatever draft
length, stop rule or timing an emulated or simulated device has, its drafts are looked up here.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opensled.core.errors import UsageError
from opensled.core.protocol import common_prefix

PACKAGED = Path(__file__).resolve().parent / "recorded"
WHOLE = 8  # tokens recorded at a place; fewer where the drafter had no more to say


@dataclass(frozen=True)
class Proposal:
    """What the drafter proposes to follow one place of the text."""

    ids: tuple[int, ...]
    confidences: tuple[float, ...]  # the draft model's own probability of each


@dataclass(frozen=True)
class ItemTrace:
    """One item of the workload, as target and drafter wrote it."""

    item: str
    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]  # what the target commits
    finish_reason: str
    proposals: tuple[Proposal, ...]  # [i]: after prompt and target_ids[:i]
    alone_ids: tuple[int, ...] = ()  # what the draft model writes without the target
    task: str = ""  # kind of text; "" in recordings of before there were several pairs

    def proposed(self, place: int, index: int) -> tuple[int, float] | None:
        """Draft token number `index` after `place` tokens of the text, and its confidence; None where none was drafted.

        Drafts depend on what they follow alone: after eight right ones those of the place eight further on come.
        What follows a wrong one is recorded no further, and never counts: the last one then stands for all others.
        """
        if place >= len(self.proposals):
            return None
        found = self.proposals[place]
        while index >= len(found.ids):
            if len(found.ids) < WHOLE:
                return None
            place, index = place + WHOLE, index - WHOLE
            if found.ids != self.target_ids[place - WHOLE : place] or place >= len(self.proposals):
                return found.ids[-1], found.confidences[-1]
            found = self.proposals[place]
        return found.ids[index], found.confidences[index]

    def following(self, tokens: Sequence[int], length: int, index: int) -> tuple[int, float] | None:
        """`proposed` after the first `length` of `tokens`, the prompt included, which are the text's here."""
        return self.proposed(length - len(self.prompt_ids), index)

    def right(self, place: int, most: int) -> int:
        """Of the first `most` tokens drafted after a place, how many are the text's before the first that is not."""
        count = 0
        while count < most and place + count < len(self.target_ids):
            drafted = self.proposed(place, count)
            if drafted is None or drafted[0] != self.target_ids[place + count]:
                break
            count += 1
        return count


@dataclass(frozen=True)
class TraceSet:
    """The traces of one drafter with one target."""

    target: str
    drafter: str
    origin: dict[str, Any]  # provenance: command, commit, versions
    items: tuple[ItemTrace, ...]


def write_traces(path: Path, traces: TraceSet) -> None:
    """As gzipped JSON lines: a head, then one item each; the same traces give the same bytes."""
    head = {"target": traces.target, "drafter": traces.drafter, "origin": traces.origin}
    write_lines(path, head, map(asdict, traces.items))


def write_lines(path: Path, head: dict[str, Any], items: Iterable[dict[str, Any]]) -> None:
    """Gzipped JSON lines, `head` first; the same lines give the same bytes."""
    lines = [json.dumps(head), *(json.dumps(item, separators=(",", ":")) for item in items)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def read_traces(path: Path) -> TraceSet:
    """Raises UsageError for a file that is none."""
    try:
        head, *lines = read_lines(path)
        return TraceSet(**head, items=tuple(trace_of(line) for line in lines))
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} holds no recorded drafts: {error}") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What `write_lines` wrote; raises OSError, EOFError or ValueError for another file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def trace_of(line: dict[str, Any]) -> ItemTrace:
    """One item of a file; raises KeyError, TypeError or ValueError for another object."""
    proposals = tuple(Proposal(tuple(p["ids"]), tuple(p["confidences"])) for p in line.pop("proposals"))
    ids = {name: tuple(line.pop(name)) for name in ("prompt_ids", "target_ids", "alone_ids")}
    return ItemTrace(**{**line, **ids, "proposals": proposals})


def eos_ids(items: Iterable[ItemTrace]) -> frozenset[int]:
    """The tokens that ended a text."""
    return frozenset(item.target_ids[-1] for item in items if item.finish_reason == "eos")


def rounds(trace: ItemTrace, length: int) -> Iterator[tuple[int, int]]:
    """(drafted, accepted) of each round in which one device drafts this text in blocks of `length` tokens.

    A round without a proposal is the server's own token. The last position a limit leaves needs no draft.
    """
    place, end = 0, len(trace.target_ids)
    while place < end:
        room = end - place - 1 if trace.finish_reason == "length" else length
        block = trace.proposals[place].ids[: min(length, room)]
        accepted = common_prefix(block, trace.target_ids[place:])
        yield len(block), accepted
        place += accepted + 1
