"""The attention backend by itself, on random keys, against a dense formula: part of the self-test at load."""

from dataclasses import replace

import torch
from torch import Tensor

from opensled.core.errors import SelfTestFailed
from verify_server.engine.base import Segment
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.kv_memory import KVMemory
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.packing import Attend, pack

LENGTH, BLOCKS = 37, (7, 2, 15)  # of the sequence, and its KV blocks
# Largest root-mean-square error of a sequence's logits, relative to their own spread. Plain attention rounds its
# probabilities to float32 even in a float64 model.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}


def twin_parents(count: int) -> tuple[int, ...]:
    """Parents of a tree of `count` tokens: of two twins the second one has children."""
    return tuple([(index - index % 2) - 1 for index in range(count)])


@torch.inference_mode()
def check_backend(model: PackedModel) -> None:
    """Also with windows that are too short for the model's own. Raises SelfTestFailed."""
    parameter = next(model.network.parameters())
    noise = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(LENGTH, heads, 16, generator=noise).to(parameter.device, parameter.dtype)
        for heads in (4, 2, 2)
    )
    for how in (Attend(0, 0.3), Attend(0, 0.3, window=5), Attend(0, 0.3, window=21, softcap=2.0)):
        given = _attend(model, how, query, key, value).double()
        expected = _dense_attention(how, query.double(), key.double(), value.double())
        error = ((given - expected).square().mean().sqrt() / expected.std()).item()
        if not error <= TOLERANCE[parameter.dtype]:
            raise SelfTestFailed(f"attention backend {model.backend!r} is off by {error:.1e} for {how}")


def _attend(model: PackedModel, how: Attend, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The backend's output for one sequence computed in two steps, the second one a path through a tree."""
    memory, first, backend = KVMemory(max(BLOCKS) + 1), 30, backend_of(model.backend)
    geometry = replace(model.geometry, rows=1, queries=1)

    def step(segment: Segment, *tensors: Tensor) -> Tensor:
        batch = pack([segment], geometry, memory, backend, query.device)
        memory.write(how.layer, batch.slots, *tensors[1:])
        memory.clear(how.layer, batch.tails)
        return backend.attend(tensors[0], batch, how)

    whole = (query, key, value)
    begun = step(Segment((0,) * first, 0, BLOCKS, 0), *[tensor[:first] for tensor in whole])
    doubled = [tensor[first:].repeat_interleave(2, 0)[1:] for tensor in whole]
    for tensor in doubled[1:]:
        tensor[1::2] *= -1  # each twin comes before its like
    count = len(doubled[0])
    tree = Segment((0,) * count, first, BLOCKS, 0, twin_parents(count - 1))
    return torch.cat([begun, step(tree, *doubled)[::2]])


def _dense_attention(how: Attend, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Plain attention of one sequence, [length, heads, size]."""
    folded = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(folded, 1)) * how.scaling
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    distance = torch.arange(len(query))[:, None] - torch.arange(len(query))
    seen = (distance >= 0) & (distance < (how.window or len(query)))
    probs = scores.masked_fill(~seen.to(scores.device), -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", probs, value.repeat_interleave(folded, 1))
