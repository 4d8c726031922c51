"""A target for `opensled serve --engine tests.slow_start:load`: it is there once somebody writes into a pipe."""

import os
from pathlib import Path

from opensled.core.errors import ModelError
from tests import fake_target
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel

PIPE = "TEST_LOAD"  # environment variable with the path of the pipe
DONE = "done"


def load(config: ServeConfig) -> ServedModel:
    """Raises ModelError with what was written, unless it is DONE."""
    said = Path(os.environ[PIPE]).read_text()
    if said != DONE:
        raise ModelError(said)
    return fake_target.load(config)
