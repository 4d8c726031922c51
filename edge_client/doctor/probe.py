"""Tries the draft model in a process of its own: native code that crashes or hangs must not end the doctor.

`python -m edge_client.doctor.probe DRAFTER MODEL THREADS` prints a JSON object a line, each of one step. After the
model is loaded it waits for one line on standard input: the target as JSON (null if no server is known).
"""

import json
import sys
import time
from importlib.util import find_spec
from typing import Any

from edge_client.doctor.draft_speed import begin_sequence, measure_rate
from edge_client.doctor.own_process import tell
from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory
from opensled.core.errors import OpenSledError
from opensled.core.messages import Limits, ModelInfo
from opensled.models import llama_api
from opensled.text.tokenizer import TargetTokenizer

PROMPT = 16  # tokens
TOKENS = 24  # to measure the speed with, at most
SECONDS = 1.5  # for them


def main(drafter: str, model: str, threads: str) -> int:
    """Run all steps up to the first that fails."""
    try:
        factory = _load(drafter, model, int(threads))
        target = json.loads(sys.stdin.readline() or "null")
        if target:
            tell("vocabulary", problem=_mismatch(factory, target), **_relation(factory))
        tell("speed", threads=int(threads), seconds=_seconds_per_token(factory))
        if int(threads) > 1:
            tell("speed", threads=1, seconds=_seconds_per_token(_make(drafter, model, 1)))
    except OpenSledError as error:
        tell("error", code=error.code, reason=str(error))
    return 0


def _load(drafter: str, model: str, threads: int) -> DrafterFactory:
    _tell_library(drafter)
    started = time.monotonic()
    factory = _make(drafter, model, threads)
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


def _make(drafter: str, model: str, threads: int) -> DrafterFactory:
    factory: DrafterFactory = DRAFTERS.get(drafter)(model, threads)
    return factory


def _mismatch(factory: DrafterFactory, target: dict[str, Any]) -> str:
    """Why the draft model cannot draft for the target; "" if it can."""
    info = ModelInfo(
        model_id=target["model_id"],
        vocab_size=target["vocab_size"],
        fingerprint=target["fingerprint"],
        eos_ids=tuple(target["eos_ids"]),
        limits=Limits(0, 0),
        rules=(),
        numerics="",
        version="",
        tokenizer_hash="",
        has_chat_template=False,
    )
    tokenizer = TargetTokenizer(target["tokenizer_json"].encode()) if target["tokenizer_json"] else None
    try:
        factory.fit(info, tokenizer)
    except OpenSledError as error:
        return str(error)
    return ""


def _relation(factory: DrafterFactory) -> dict[str, str]:
    return {"kind": factory.vocabulary.kind, "words": factory.vocabulary.words}


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
