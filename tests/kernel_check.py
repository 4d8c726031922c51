"""The Triton kernels without a GPU: many random cases in the interpreter, and what they take of GPUs that are not here.

python -m tests.kernel_check --cases 400
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from lab.benchmarks.gpu.attention_cases import error, random_step
from verify_server.engine.torch.attention import backend_of

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CAPABILITIES = "80,89,90,100"


def cases(count: int, first: int) -> None:
    """Print for each precision how many cases and rows, and the largest error against a dense formula in float64."""
    backend = backend_of("triton")
    for dtype in DTYPES:
        rows, errors, start = 0, [], time.monotonic()
        for seed in range(first, first + count):
            step = random_step(seed, 90 + 40 * (seed % 3), 20, 2)
            rows += len(step.query)
            errors.append(error(step.by(backend, dtype, bool(seed % 2)), step.expected(dtype)))
        facts = {"dtype": str(dtype), "cases": count, "rows": rows, "largest error": max(errors)}
        print(json.dumps({**facts, "seconds": time.monotonic() - start}), flush=True)


def compiled() -> list[dict[str, Any]]:
    names = "bfloat16"  # what targets are served in
    command = [sys.executable, "-m", "tests.triton_compiled", CAPABILITIES, names]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in said.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="of each precision")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    options = parser.parse_args()
    cases(options.cases, options.first)
    for row in compiled():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
