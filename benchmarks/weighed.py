"""A policy that costs what the default one costs and does what `fcfs` does.

On a target that computes nothing the default policy rightly decodes by itself and lets devices rest; a round trip could
then not be measured. So it plans every step, its plan is laid aside, and `fcfs`, with an endless wait, is followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hw_profiles.profile import HardwareProfile
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.plan import BatchPlan, PolicyOptions, Snapshot


@dataclass(frozen=True)
class Weighed:
    """`opensled serve --policy benchmarks.weighed:Weighed`."""

    weighs: Goodput
    decides: Fcfs

    @classmethod
    def of(cls, options: PolicyOptions) -> Weighed:
        return cls(Goodput.of(options), Fcfs.of(options))

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        considered = self.weighs.plan(snapshot, profile, now)
        return replace(self.decides.plan(snapshot, profile, now), memory=considered.memory)
