"""A target that costs nothing: the real service over it shows what a round costs without a model.

opensled serve --engine lab.benchmarks.null_engine:load --policy lab.benchmarks.null_engine:Weighed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from hw_profiles.step_cost import HardwareProfile
from opensled.models.store import model_path
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.plan import BatchPlan, PolicyOptions, Snapshot
from verify_server.engine.base import EngineInfo, SampleRequest, Scores, Segment, TargetEngine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.text.hf_text import HFText

CANNED = 7  # the id this target writes at every position
CONTEXT = 1 << 20  # positions
BLOCK_SIZE = 16  # tokens per KV block
BLOCKS = 1 << 18


class CannedScores:
    """Every row's own token is CANNED. Rule `match` asks for nothing else, and no other rule is measured."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[list[int]]:
        return [[CANNED] * len(request.rows) for request in requests]


class NullEngine(TargetEngine):
    """`TargetEngine` without arithmetic."""

    def __init__(self, vocab_size: int) -> None:
        self.info = EngineInfo(
            model_id="null",
            vocab_size=vocab_size,
            context_length=CONTEXT,
            eos_ids=(),
            numerics="exact",
            dtype="float64",
            device="cpu",
            num_blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            shares_blocks=True,
        )
        self._scores = cast(Scores, CannedScores())

    def forward(self, segments: Sequence[Segment]) -> Scores:
        return self._scores


def load(config: ServeConfig) -> ServedModel:
    """The null target, with the tokenizer of the model that `--model` names."""
    text = HFText(model_path(config.model))
    return ServedModel("null", NullEngine(text.vocab_size), text)


@dataclass(frozen=True)
class Weighed:
    """A policy that costs what the default one costs, and decides as `fcfs` does.

    On a target without costs the default policy decodes alone and lets devices rest, so no round trip could be
    measured. Here it plans every step, but the plan of `fcfs`, with an endless wait, is followed.
    """

    weighs: Goodput
    decides: Fcfs

    @classmethod
    def of(cls, options: PolicyOptions) -> Weighed:
        return cls(Goodput.of(options), Fcfs.of(options))

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        considered = self.weighs.plan(snapshot, profile, now)
        return replace(self.decides.plan(snapshot, profile, now), memory=considered.memory)
