"""What a token of each draft model costs: beside the target's own token on the device, and beside a server's step."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.figure import Comparison, Figure, in_turns
from benchmarks.steps import CONTEXT
from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import ModelDrafter
from opensled.messages import SamplingParams
from opensled.noise import noise_key
from opensled.sampling import Sampler
from opensled.store import model_file
from opensled_testbed.provenance import SEED
from verify_server.engine import torch_engine
from verify_server.engine.base import Segment
from verify_server.engine.kv_memory import BLOCK_SIZE

TARGET, DRAFT = "smollm2", "smollm2-draft"
DTYPES = ("bfloat16", "float32")
TOKENS = 16  # of a sample
HALF, SHARE = 0.5, 0.15  # the project's bars: of the target's own token, of a server's bfloat16 step


def measure(quick: bool) -> Figure:
    """Raises NotFound if target or draft are not here (`opensled pull smollm2`)."""
    torch.set_num_threads(1)
    contenders: dict[str, Callable[[], float]] = {
        f"{model}, {drafter}": partial(_draft_s, _drafter(model, drafter))
        for model, drafter in ((DRAFT, "llamacpp"), (TARGET, "llamacpp"), (DRAFT, "onnx"))
    }
    contenders |= {f"step, {dtype}": partial(_step_s, _engine(dtype)) for dtype in DTYPES}
    samples = in_turns(contenders, 2 if quick else 15)
    return Figure(
        title="A draft token's cost",
        unit="ms",
        more_is_better=False,
        compared=(
            f"One token of {DRAFT} and of its target's own GGUF file (4 bits a weight), one thread each, behind "
            f"{CONTEXT} tokens; and one row of a step of engine torch (one thread, the same weights "
            "dequantized)."
        ),
        loses="The output matrix, which draft and target share, is most of a draft token's cost.",
        samples={name: [1000 * value for value in values] for name, values in samples.items()},
        ratios=(
            Comparison(
                "draft against its target, llama.cpp", f"{DRAFT}, llamacpp", f"{TARGET}, llamacpp", 1 / HALF
            ),
            Comparison(
                "draft, llama.cpp, against a bfloat16 step",
                f"{DRAFT}, llamacpp",
                "step, bfloat16",
                round(1 / SHARE, 2),
            ),
            Comparison("draft, llama.cpp, against a float32 step", f"{DRAFT}, llamacpp", "step, float32"),
            Comparison("draft, ONNX Runtime, against llama.cpp", f"{DRAFT}, onnx", f"{DRAFT}, llamacpp"),
        ),
        facts={
            "draft": model_file(DRAFT, "*.gguf").name,
            "target": model_file(TARGET, "*.gguf").name,
            "processor": torch.backends.cpu.get_cpu_capability(),
        },
    )


def _drafter(model: str, drafter: str) -> ModelDrafter:
    """Behind CONTEXT tokens."""
    made: ModelDrafter = DRAFTERS.get(drafter)(model, 1).create()
    made.begin(
        [20 + number % 900 for number in range(CONTEXT)],
        Sampler(SamplingParams(temperature=0), noise_key(SEED)),
    )
    made.forward([20 + number % 900 for number in range(CONTEXT)], 0)
    return made


def _draft_s(drafter: ModelDrafter) -> float:
    """Seconds of a token."""
    drafter.truncate(CONTEXT)
    started = time.perf_counter()
    for number in range(TOKENS):
        drafter.forward([100 + number], CONTEXT + number)
    return (time.perf_counter() - started) / TOKENS


def _engine(dtype: str) -> torch_engine.TorchEngine:
    return torch_engine.load(
        str(model_file(TARGET, "*.gguf")), dtype=dtype, numerics="auto", kv_tokens=4 * CONTEXT
    )


def _step_s(engine: torch_engine.TorchEngine) -> float:
    """Seconds of a step of one row."""
    blocks = tuple(range((CONTEXT + BLOCK_SIZE) // BLOCK_SIZE))
    started = time.perf_counter()
    for number in range(TOKENS // 4):
        engine.forward([Segment((100 + number,), CONTEXT, blocks, 1)])
    return (time.perf_counter() - started) / (TOKENS // 4)
