"""The smallest kernel with a loop whose end is read from memory: whether Triton's interpreter runs kernels at all."""

import torch
import triton
import triton.language as tl


@triton.jit
def _count(end, out):  # type: ignore[no-untyped-def]
    counted = 0
    for _ in range(tl.load(end)):
        counted += 1
    tl.store(out, counted)


def count_to(end: int) -> int:
    """`end`, counted by a kernel; raises what the interpreter raises."""
    given, out = torch.tensor([end], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    _count[(1,)](given, out)
    return int(out)
