"""A target for `opensled serve --engine tests.stuck_target:load` whose tokenizer never comes back, like native code."""

import os
import threading
from pathlib import Path

from tests import fake_target
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel

ENTERED = "TEST_ENTERED"  # environment variable with the path of the file that tells that it is stuck


def load(config: ServeConfig) -> ServedModel:
    target = fake_target.load(config)
    return ServedModel("fake", target.engine, _StuckText())


class _StuckText(fake_target._Text):
    def encode(self, text):
        Path(os.environ[ENTERED]).touch()
        threading.Event().wait()
