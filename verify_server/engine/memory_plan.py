"""What a target needs of a device's memory, reckoned before it is read: weights, KV, graphs, and room to compute in.

Pure, and without a tensor library. Sizes are in bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import NamedTuple

from opensled.core.errors import UnsupportedModel, UsageError

GIB = 2**30
# Without --kv-tokens: as many full contexts as this, within a part of what is left of the memory.
CONTEXTS = 64
MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.8}
GRAPHS = {"cpu": 0, "cuda": 2 * GIB}  # for recorded steps; chosen
MIN_KV = 16  # tokens: one block
MAX_HEAD = 1 << 27  # bytes of the head of a safetensors file; the format's own limit is 100 MB
FLOATS = {"F64", "F32", "F16", "BF16"}


class StoredTensor(NamedTuple):
    """One tensor of a file of weights."""

    name: str
    kind: str  # as safetensors names types: "BF16"
    elements: int
    size: int  # in the file


class Demand(NamedTuple):
    """What is needed."""

    weights: int
    kv_token: int  # for one token
    graphs: int
    scratch: int  # that a step computes in

    @property
    def fixed(self) -> int:
        return self.weights + self.graphs + self.scratch


class Supply(NamedTuple):
    """What there is."""

    device: str  # "cuda:0"
    free: int
    devices: int = 1  # of this kind on the machine


class Wish(NamedTuple):
    """What is asked for."""

    kv_tokens: int  # 0 = as many as suit
    context: int  # tokens of the longest text
    dtype: str


class MemoryPlan(NamedTuple):
    """Who gets what."""

    demand: Demand
    supply: Supply
    kv_tokens: int

    @property
    def kv(self) -> int:
        return self.kv_tokens * self.demand.kv_token

    def describe(self) -> str:
        """One line."""
        kv = f", KV {gib(self.kv)} for {self.kv_tokens:,} tokens" if self.demand.kv_token else ""
        graphs = f", graphs {gib(self.demand.graphs)}" if self.demand.graphs else ""
        return (
            f"memory on {self.supply.device}: weights {gib(self.demand.weights)}{kv}{graphs}, "
            f"to compute in {gib(self.demand.scratch)}; "
            f"{gib(self.supply.free)} are free"
        )


def plan_memory(demand: Demand, supply: Supply, wish: Wish) -> MemoryPlan:
    """Raises UsageError, with numbers and next steps, where it does not fit."""
    left = supply.free - demand.fixed
    if left < max(wish.kv_tokens, MIN_KV) * demand.kv_token:
        raise UsageError(_lacking(demand, supply, wish))
    if wish.kv_tokens:
        return MemoryPlan(demand, supply, wish.kv_tokens)
    share = MEMORY_SHARE[supply.device.partition(":")[0]]
    suiting = int(left * share) // demand.kv_token if demand.kv_token else CONTEXTS * wish.context
    return MemoryPlan(demand, supply, max(MIN_KV, min(CONTEXTS * wish.context, suiting)))


def _lacking(demand: Demand, supply: Supply, wish: Wish) -> str:
    kv_tokens = max(wish.kv_tokens, MIN_KV)
    needed = demand.fixed + kv_tokens * demand.kv_token
    return (
        f"the target does not fit: it needs {gib(demand.weights)} for weights, "
        f"{gib(kv_tokens * demand.kv_token)} for KV of {kv_tokens:,} tokens, and "
        f"{gib(demand.graphs + demand.scratch)} to compute in, together {gib(needed)}; {supply.device} has "
        f"{gib(supply.free)} free. {'; '.join(_steps(demand, supply, wish))}"
    )


def _steps(demand: Demand, supply: Supply, wish: Wish) -> list[str]:
    """What the user may do about it, the cheapest first."""
    steps = []
    fitting = (supply.free - demand.fixed) // max(1, demand.kv_token)
    if wish.kv_tokens and fitting >= MIN_KV:
        steps.append(f"lower --kv-tokens to {fitting // MIN_KV * MIN_KV} or less")
    if wish.dtype in ("float64", "float32"):
        steps.append("use --dtype bfloat16")
    if supply.devices > 1:
        steps.append(
            f"compute it on up to {supply.devices} GPUs: --engine vllm --vllm tensor_parallel_size={supply.devices}"
        )
    return [
        *steps,
        "serve quantized weights (GGUF with --engine llamacpp, safetensors with --engine vllm), or a smaller model",
    ]


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{(size + 2**20 - 1) >> 20} MiB"


def list_tensors(folder: Path) -> list[StoredTensor]:
    """The tensors of all safetensors of a folder, by the heads of the files. Raises UnsupportedModel."""
    return [tensor for file in sorted(folder.glob("*.safetensors")) for tensor in _head_of(file)]


def _head_of(path: Path) -> Iterable[StoredTensor]:
    """See https://github.com/huggingface/safetensors#format: a length, then JSON."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            head = json.loads(file.read(min(length, MAX_HEAD)))
        return [
            StoredTensor(name, tensor["dtype"], prod(tensor["shape"]), _size(tensor["data_offsets"]))
            for name, tensor in head.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, struct.error, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnsupportedModel(f"the weights in {path} cannot be read; download them again") from error


def _size(offsets: list[int]) -> int:
    begin, end = offsets
    return end - begin


def loaded_size(tensor: StoredTensor, width: int) -> int:
    """Bytes of a tensor in memory, in a dtype of `width` bytes."""
    return tensor.elements * width if tensor.kind in FLOATS else tensor.size
