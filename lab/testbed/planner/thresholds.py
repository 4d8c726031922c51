"""PipeSD in the law: devices of `sled-continuous` whose blocks end by a pair of thresholds, and which pair is best.

The law has no word of its own for it: the server is that of `sled-continuous`, and only what drafts are worth differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from lab.testbed.fleet import Fleet
from lab.testbed.planner.acceptance import DraftWorth, of_rule
from lab.testbed.planner.capacity_law import Capacity, Setting, capacity
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.rules import rule_of
from lab.testbed.tuning import TRIGGERS, Tuning
from opensled.core.errors import UsageError


class PairCapacity(NamedTuple):
    """What the law says to one pair of thresholds."""

    tuning: Tuning
    setting: Setting  # with what drafts are worth by them
    found: Capacity  # of mode `sled-continuous`


def pairs(setting: Setting, source: RecordedDrafts, pace: float) -> list[PairCapacity]:
    """All of TRIGGERS, the one that holds most users at `pace` tokens/s first. Raises UsageError for made-up drafts."""
    found = []
    for tuning, worth in _worth(source).items():
        each = replace(setting, acceptance=worth)
        found.append(PairCapacity(tuning, each, capacity(each, "sled-continuous", tuning.draft_length, pace)))
    return sorted(found, key=lambda pair: -pair.found.by_speed)


@cache
def _worth(source: RecordedDrafts) -> Mapping[Tuning, DraftWorth]:
    if source.acceptance:
        raise UsageError("drafts that are made up are all sure, so that no threshold ends a block")
    traces = traces_of(source)
    groups = {tuning: tuning.of(Fleet()).groups[0] for tuning in TRIGGERS}
    return {tuning: of_rule(traces, rule_of(group)) for tuning, group in groups.items()}
