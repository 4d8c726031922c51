"""A target for `opensled serve --engine tests.gated_target:load`: as slow as a small real one, so that drafts arrive
in time, and in mid-answer it stops until a file says go on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests import fake_target
from tests.fakes import FakeEngine
from verify_server.config import ServeConfig
from verify_server.target import Target

GATE = "TEST_GATE"  # environment variable with the path of the file
STOP_AT = 60  # positions, prompt included
STEP_SECONDS = 0.004


class SlowEngine(FakeEngine):
    def forward(self, segments):
        time.sleep(STEP_SECONDS)
        return super().forward(segments)


def load(config: ServeConfig) -> Target:
    target = fake_target.load(config)
    return Target("fake", SlowEngine(num_blocks=200, target=_gated), target.text)


def _gated(context: list[int]) -> int:
    while len(context) == STOP_AT and not Path(os.environ[GATE]).exists():
        time.sleep(STEP_SECONDS)
    return fake_target.cycle(context)
