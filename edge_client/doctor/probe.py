"""Tries the draft model in a process of its own: native code that crashes or hangs must not end the doctor.

`python -m edge_client.doctor.probe DRAFTER MODEL THREADS` prints a JSON object a line, each of one step.
"""

import sys
import time
from importlib.util import find_spec

from edge_client.doctor.draft_speed import begin_sequence, measure_rate
from edge_client.doctor.own_process import tell
from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory
from opensled.core.errors import OpenSledError
from opensled.models import llama_api

PROMPT = 16  # tokens
TOKENS = 24  # to measure the speed with, at most
SECONDS = 1.5  # for them


def main(drafter: str, model: str, threads: str) -> int:
    """Run all steps up to the first that fails."""
    try:
        factory = _load(drafter, model, int(threads))
        tell("speed", seconds=_seconds_per_token(factory))
    except OpenSledError as error:
        tell("error", code=error.code, reason=str(error))
    return 0


def _load(drafter: str, model: str, threads: int) -> DrafterFactory:
    _tell_library(drafter)
    started = time.monotonic()
    factory: DrafterFactory = DRAFTERS.get(drafter)(model, threads)
    tell("loaded", name=factory.name, seconds=time.monotonic() - started)
    if drafter == "llamacpp":
        from edge_client.drafters.llamacpp import build

        features, gpu = build()
        tell("build", features=features, gpu=gpu)
    return factory


def _tell_library(drafter: str) -> None:
    """Before it is imported, which may end this process."""
    library = {"llamacpp": llama_api.package(), "onnx": "onnxruntime"}.get(drafter, "")
    if library and find_spec(library):
        tell("library", name=library)


def _seconds_per_token(factory: DrafterFactory) -> float | None:
    """Of one sequence after its prompt; None for a drafter that proposes nothing for it."""
    drafter = factory.create()
    try:
        proposals = begin_sequence(drafter, PROMPT, 0)  # the time of its first token is the prompt's
        rate = measure_rate(proposals, TOKENS, SECONDS) if proposals else 0.0
    finally:
        drafter.close()
    return 1 / rate if rate else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
