"""The Triton kernels compiled for GPUs that are not here: what each takes of a multiprocessor, one JSON line each.

    python -m tests.triton_compiled 80,90 bfloat16

Triton brings NVIDIA's assembler and needs no driver for this. It shows that the kernels compile, fit, and how much of
what they work on stays in registers; their speed and their bits it does not show.
"""

# ruff: noqa: E402
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # as it is on a GPU without this variable

import torch

torch.cuda.is_available = lambda: True  # the module asks for a GPU; only kernels are compiled here

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from verify_server.engine.torch import triton_attention
from verify_server.engine.torch.packing import Attend
from verify_server.engine.torch.triton_kernels import attend_split, join_splits

SUMS = {torch.float64: "*fp64"}
TABLES = ("tiles", "row_table", "contexts", "blocks", "near", "near_depths")
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}
# Query heads of a KV head and their size: Llama 8B and Qwen3 8B, Llama 70B, SmolLM2, Gemma, Phi
HEADS = ((4, 128), (8, 128), (3, 64), (1, 256), (2, 96))


def signature(kernel: Any, dtype: torch.dtype) -> dict[str, str]:
    types = dict.fromkeys(("query", "keys", "values", "out"), "*" + NAMES[dtype])
    types |= dict.fromkeys(("sums", "peaks", "masses"), SUMS.get(dtype, "*fp32"))
    types |= dict.fromkeys(TABLES, "*i32") | dict.fromkeys(("scaling", "softcap"), "fp32")
    names = {parameter.name: parameter.is_constexpr for parameter in kernel.params}
    return {
        name: "constexpr" if is_constant else types.get(name, "i32") for name, is_constant in names.items()
    }


def compiled(
    kernel: Any, dtype: torch.dtype, constants: dict[str, Any], capability: int, warps: int
) -> dict[str, int]:
    """Registers a thread, bytes of stack a thread (what registers could not hold), bytes of shared memory."""
    source = ASTSource(kernel, signature(kernel, dtype), constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", said.stdout).groups()
    return {"registers": int(registers), "stack": int(stack), "shared": made.metadata.shared}


def rows(capabilities: list[int], dtypes: list[torch.dtype], heads: int) -> Iterator[dict[str, Any]]:
    """Of the first `heads` of HEADS."""
    for capability in capabilities:
        for dtype in dtypes:
            for folded, size in HEADS[:heads]:
                facts = {"capability": capability, "dtype": NAMES[dtype], "folded": folded, "size": size}
                for how in (Attend(0, 1.0), Attend(0, 1.0, window=4096, softcap=50.0)):
                    constants = triton_attention.attend_constants(dtype, folded, size, size, how)
                    found = compiled(attend_split, dtype, constants, capability, triton_attention.WARPS)
                    yield {"kernel": "attend_split", **facts, "window": how.window or 0, **found}
                constants = triton_attention.join_constants(dtype, folded, size)
                yield {
                    "kernel": "join_splits",
                    **facts,
                    **compiled(join_splits, dtype, constants, capability, 4),
                }


if __name__ == "__main__":
    wanted = [getattr(torch, name) for name in sys.argv[2].split(",")]
    heads = int(sys.argv[3]) if len(sys.argv) > 3 else len(HEADS)
    for row in rows([int(each) for each in sys.argv[1].split(",")], wanted, heads):
        print(json.dumps(row), flush=True)
