"""Which backend of attention, which geometry and which level a loaded target is served with: the first that passes its
tests on this machine.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from opensled.core.errors import OpenSledError, SelfTestFailed
from verify_server.engine.memory_plan import GRAPHS as GRAPH_BUDGET
from verify_server.engine.torch import geometry, known_geometry, selftest
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.fixed_steps import (
    Capture,
    FixedSteps,
    GraphCapture,
    check_fixed,
    skip_capture,
)
from verify_server.engine.torch.kv_memory import KVMemory
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.packing import Geometry
from verify_server.engine.torch.paged_table import PagedBackend
from verify_server.engine.torch.short_model import num_layers
from verify_server.engine.torch.tiles import tile, untile

log = logging.getLogger(__name__)

# Wider spans mean fewer groups and more padded keys: for 16 sessions of 100 to 900 tokens on one x86 core, a step was
# fastest from 128 to 192, with 256 hidden dimensions as with 576; other loads were not tried.
FAST = {"cpu": Geometry(rows=1, queries=1, span=192), "cuda": Geometry(rows=1, queries=1, span=512)}


def backends_of(attention: str, device: torch.device) -> list[str]:
    """Those to try, the fastest first. Raises UsageError for one that is asked for and cannot be had."""
    if attention == "auto":
        return ["triton", "sdpa"] if device.type == "cuda" else ["sdpa"]
    backend_of(attention)
    return [attention]


def first_that_works(
    network: PreTrainedModel,
    backends: Sequence[str],
    numerics: str,
    max_rows: int,
    weights: Path | None,
) -> tuple[PackedModel, str]:
    """See `_self_test`; of the last one the error is raised."""
    *others, last = backends
    for name in others:
        try:
            return _self_test(network, name, numerics, max_rows, weights)
        except OpenSledError as error:
            log.warning("attention by %s does not work here (%s); %s computes it", name, error, last)
            untile(network)
    return _self_test(network, last, numerics, max_rows, weights)


def capture_of(graphs: str, tested: PackedModel, level: str) -> Capture | None:
    """How steps in fixed shapes run; None = there are none. Fails closed: a GPU without them only is slower."""
    is_paged = isinstance(backend_of(tested.backend), PagedBackend)
    if graphs == "shapes" and is_paged:
        return skip_capture
    if graphs != "auto" or not is_paged or tested.network.device.type != "cuda":
        return None
    if geometry.has_experts(tested.network):
        log.info("no CUDA graphs: which experts a row goes to is asked in the middle of a step")
        return None
    capture = GraphCapture(GRAPH_BUDGET["cuda"])
    try:
        check_fixed(tested, FixedSteps(tested, GraphCapture(GRAPH_BUDGET["cuda"])), level == "exact")
    except OpenSledError as error:
        log.warning("CUDA graphs do not work here (%s); each step launches its kernels", error)
        return None
    return capture


def _self_test(
    network: PreTrainedModel,
    attention: str,
    numerics: str,
    max_rows: int,
    weights: Path | None,
) -> tuple[PackedModel, str]:
    """The self-tested model on a small memory of its own, and the numerics level that holds for it."""
    if numerics != "fast":
        before = known_geometry.memory_of(network, weights, attention, max_rows)
        exact = _exact_as_before(network, attention, max_rows, before)
        if exact or (exact := _exact(network, attention, max_rows, before)):
            return exact, "exact"
    if numerics == "exact":
        raise SelfTestFailed(
            "a row's bits depend on its batch for this model here; use --numerics fast or auto"
        )
    fast = _on_small_memory(network, FAST[network.device.type], attention)
    selftest.agree(fast)
    return fast, "fast"


def _exact(
    network: PreTrainedModel, attention: str, max_rows: int, before: known_geometry.Memory
) -> PackedModel | None:
    """The self-tested model in a geometry that keeps its bits; None = there is none here."""
    found = geometry.find(network, attention, max_rows)
    if found is None:
        return None
    tile(network, found)
    exact = _on_small_memory(network, found, attention)
    layers = selftest.agree(exact)
    if selftest.keeps_bits(exact, layers):
        before.keep(known_geometry.Known(found, layers))
        return exact
    untile(network)
    return None


def _exact_as_before(
    network: PreTrainedModel, attention: str, max_rows: int, before: known_geometry.Memory
) -> PackedModel | None:
    """The model in the geometry of an earlier start; None = there was none, or it does not hold now."""
    known = before.recall()
    if known is None or not geometry.still_holds(network, attention, max_rows, known.geometry):
        return None
    tile(network, known.geometry)
    exact = _on_small_memory(network, known.geometry, attention)
    if selftest.as_before(exact, known.layers):
        return exact
    untile(network)
    return None


def counts_of_same_bits(exact: PackedModel, counts: Sequence[int], max_rows: int) -> list[int]:
    """The numbers of threads by which a model of level exact keeps its bits, and has those of the present number."""
    now = torch.get_num_threads()
    expected = _short_bits(exact, now)
    same = [count for count in counts if selftest.same_bits(_short_bits(exact, count), expected)]
    untile(exact.network)
    kept = [count for count in same if count == now or _still_holds_by(exact, count, max_rows)]
    tile(exact.network, exact.geometry)
    torch.set_num_threads(now)
    return kept


def _short_bits(exact: PackedModel, threads: int) -> list[Tensor]:
    torch.set_num_threads(threads)
    return selftest.play(exact, selftest.SHORTEST, num_layers(exact.network))[0]


def _still_holds_by(exact: PackedModel, threads: int, max_rows: int) -> bool:
    torch.set_num_threads(threads)
    return geometry.still_holds(exact.network, exact.backend, max_rows, exact.geometry)


def _on_small_memory(network: PreTrainedModel, shapes: Geometry, attention: str) -> PackedModel:
    return PackedModel(network, KVMemory(selftest.NUM_BLOCKS), shapes, attention)
