"""A target for `opensled serve --engine tests.gated_target:load`: as slow as a small real one, so that drafts arrive
in time, and in mid-answer it stops until a file says go on."""

import os
import time
from functools import partial
from pathlib import Path

from tests import fake_target
from tests.fakes import FakeEngine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel

GATE = "TEST_GATE"  # environment variable with the path of the file
# Positions, prompt included; in the midst of two that are like nothing before them, so that a lookup knows how to go on
STOP_AT = 48
STEP_SECONDS = 0.004
SlowEngine = partial(FakeEngine, before=lambda segments: time.sleep(STEP_SECONDS))


def load(config: ServeConfig) -> ServedModel:
    target = fake_target.load(config)
    engine = SlowEngine(num_blocks=1000, context_length=2000, target=_gated)
    return ServedModel("fake", engine, target.text)


def reached(gate: Path) -> Path:
    """A file that is there once an answer has come to the place where it stops."""
    return gate.with_suffix(".reached")


def _gated(context: list[int]) -> int:
    gate = Path(os.environ[GATE])
    while len(context) == STOP_AT and not gate.exists():
        reached(gate).touch()
        time.sleep(STEP_SECONDS)
    return fake_target.cycle(context)
