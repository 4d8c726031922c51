"""The `torch` engine: any Hugging Face decoder as target, with paged KV and ragged packed batches."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from opensled.errors import EngineError, SelfTestFailed, UsageError
from opensled.logs import told_long
from verify_server.engine import geometry, guards, known_geometry, loading, selftest
from verify_server.engine.attention import BACKENDS
from verify_server.engine.base import MAX_TREE, EngineInfo, Segment, TargetEngine
from verify_server.engine.host_kv import HostKV, allocated
from verify_server.engine.host_memory import free_host_bytes
from verify_server.engine.image_encoder import ImageEncoder, decoder_of, sees
from verify_server.engine.image_selftest import sees_alike
from verify_server.engine.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.load_progress import tell_read, told_tested
from verify_server.engine.onednn_linear import reorder
from verify_server.engine.packed_model import PackedModel
from verify_server.engine.packing import GATHER_TOKENS, Geometry
from verify_server.engine.shape import shape_of
from verify_server.engine.tap import HiddenTap, RowReader
from verify_server.engine.tiles import tile, untile
from verify_server.engine.torch_scores import TorchScores

# Wider spans mean fewer groups and more padded keys: for 16 sessions of 100 to 900 tokens on one x86 core, a step was
# fastest from 128 to 192, with 256 hidden dimensions as with 576; other loads were not tried.
FAST = {"cpu": Geometry(rows=1, queries=1, span=192), "cuda": Geometry(rows=1, queries=1, span=512)}
NUMERICS = ("auto", "exact", "fast")

# Without --kv-tokens: as many full contexts as this, within a part of the free memory.
CONTEXTS = 64
MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.8}


class TorchEngine(TargetEngine):
    """`TargetEngine` over a `PackedModel`."""

    def __init__(self, model: PackedModel, info: EngineInfo, eyes: ImageEncoder | None = None) -> None:
        """`eyes`: of a vision-language model."""
        self._model, self._eyes = model, eyes
        self.info = info
        self._reader: RowReader | None = None
        self._tap: HiddenTap | None = None
        self._kept: HiddenTap | None = None
        self._places: HiddenTap | None = None  # all of them, for devices with draft heads
        self._host: HostKV | None = None

    @property
    def network(self) -> PreTrainedModel:
        """For a draft head, which has its embedding, final norm and output layer in common with it."""
        return self._model.network

    def beside(self, network: PreTrainedModel) -> PackedModel:
        """`network` over the same KV memory, in shapes that suit drafts: their bits decide no text."""
        return dataclasses.replace(self._model, network=network, geometry=FAST[self.network.device.type])

    def attach(self, reader: RowReader) -> None:
        """From now on `reader` reads what it taps of every row. Raises UnsupportedModel, see `HiddenTap`."""
        self._tap = HiddenTap(self._model.network, reader.taps)
        self._reader = reader

    def keep(self, layer: int) -> None:
        """See `verify_server.engine.base.TargetEngine`; raises UnsupportedModel, see `HiddenTap`."""
        self._kept = HiddenTap(self._model.network, (layer,))

    def tap(self) -> int:
        """See `verify_server.engine.base.TargetEngine`; raises UnsupportedModel, see `HiddenTap`."""
        layers = self._model.network.config.get_text_config(decoder=True).num_hidden_layers
        if self._places is None:
            self._places = HiddenTap(self._model.network, range(layers + 1))
            self._places.wanted = frozenset()
            self._places.handed_over()
        return int(self._places.taps[-1])

    def forward(self, segments: Sequence[Segment]) -> TorchScores:
        """See `verify_server.engine.base.TargetEngine`. Raises EngineError for a token the model does not know.

        After an error nothing is lost but the step: KV before each segment's start is as it was.
        """
        self._check(segments)
        if self._places is not None:
            self._places.wanted = frozenset().union(*[segment.features for segment in segments])
        logits, batch = self._model.run(segments)
        if self._reader is not None and self._tap is not None:
            rows = len(batch.slots)
            with torch.inference_mode():
                self._reader.read(self._tap.taken(rows), batch.positions[0, :rows], batch.slots)
        features = {}
        if self._places is not None:
            self._places.wanted, features = frozenset(), self._places.handed_over()
        if self._kept is None:
            return TorchScores(logits, features=features)
        # Of wanted rows only, and on the device: a step does not wait for a copy that no rule may ask for.
        wanted = batch.wanted[: batch.num_wanted]
        kept = self._kept.taken(len(batch.slots))[:, 0].index_select(0, wanted)
        return TorchScores(logits, kept, features)

    def see(self, pixels: NDArray[np.uint8]) -> Tensor:
        """See `verify_server.engine.base.TargetEngine`."""
        return super().see(pixels) if self._eyes is None else self._eyes.encode(pixels)

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        places = self._model.compact(blocks, moves)
        if self._reader is not None:
            with torch.inference_mode():
                self._reader.move(*places)

    def reserve_host(self, num_blocks: int) -> int:
        """See `verify_server.engine.base.TargetEngine`."""
        if self._reader is not None:
            self.forward([Segment((0,), 0, (0,), 0)])  # what the reader writes shows what memory it needs
        memories = (self._model.memory, *(self._reader.memories if self._reader is not None else ()))
        self._host = allocated(memories, num_blocks)
        return self._host.block_bytes

    def swap_out(self, blocks: Sequence[int], host: Sequence[int]) -> Callable[[], None]:
        """See `verify_server.engine.base.TargetEngine`."""
        return super().swap_out(blocks, host) if self._host is None else self._host.out(blocks, host)

    def swap_in(self, host: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        """See `verify_server.engine.base.TargetEngine`."""
        return super().swap_in(host, blocks) if self._host is None else self._host.back(host, blocks)

    def _check(self, segments: Sequence[Segment]) -> None:
        """On a GPU an id out of range would end the process, not the step."""
        for segment in segments:
            if not 0 <= min(segment.tokens) <= max(segment.tokens) < self.info.vocab_size:
                raise EngineError(f"token ids must lie in [0, {self.info.vocab_size})")
            assert len(segment.parents) <= min(MAX_TREE, len(segment.tokens)), "sessions cut their trees"


def load(
    model: str,
    device: str = "auto",
    dtype: str = "auto",
    kv_tokens: int = 0,
    attention: str = "sdpa",
    numerics: str = "auto",
    context: int = 0,
    most_rows: int = 512,
) -> TorchEngine:
    """Loads, guards and tests a target: a folder or a hub id with safetensors, or a GGUF file.

    `kv_tokens`: KV pool in tokens, 0 = by free memory. `numerics`: "exact" insists, "auto" takes what holds here.
    `context`: positions to serve, 0 = all the model has. `most_rows`: rows of the largest step for which level exact is
    to hold. Raises UsageError, NotFound, UnsupportedModel, SelfTestFailed.
    """
    _check_choice("attention", attention, BACKENDS)
    _check_choice("numerics", numerics, NUMERICS)
    place = loading.pick_device(device)
    weights = loading.find_weights(model)
    context_length = guards.check_config(loading.read_config(weights), context)
    with told_long("still reading the weights") as reading:
        network = loading.load_network(weights, place, loading.pick_dtype(dtype, place, weights))
        eyes = ImageEncoder(network, weights.folder) if sees(network.config) else None
    tell_read(network.num_parameters(), reading.seconds)
    network = decoder_of(network) if eyes else network
    guards.check_modules(network)
    shape = shape_of(network, model)
    reorder(network)
    with told_tested():
        tested, level = _tested(network, attention, numerics, most_rows, weights.path)
        if eyes is not None:
            sees_alike(tested, eyes)
    bytes_per_token = tested.memory.bytes_per_token()
    memory = _allocated(tested.memory, _num_blocks(kv_tokens, context_length, bytes_per_token, place))
    info = EngineInfo(
        model_id=model,
        vocab_size=network.config.get_text_config(decoder=True).vocab_size,
        context_length=context_length,
        eos_ids=loading.eos_ids(network),
        numerics=level,
        dtype=str(network.dtype).removeprefix("torch."),
        device=str(place),
        num_blocks=memory.num_blocks,
        block_size=BLOCK_SIZE,
        shares_blocks=True,
        shape=shape,
        max_tree=MAX_TREE,
        tree_reads=GATHER_TOKENS if level == "exact" else 0,
        runtime="torch",
        row_step=tested.geometry.rows,
        hidden_size=network.config.get_text_config(decoder=True).hidden_size,
        images=eyes.facts if eyes else None,
    )
    return TorchEngine(dataclasses.replace(tested, memory=memory), info, eyes)


def _allocated(tested: KVMemory, num_blocks: int) -> KVMemory:
    """KV memory of the same form as that of the self-test. Raises UsageError."""
    memory = KVMemory(num_blocks)
    try:
        memory.allocate_like(tested)
    except (MemoryError, torch.OutOfMemoryError) as error:
        tokens = num_blocks * BLOCK_SIZE
        gib = tokens * tested.bytes_per_token() / 2**30
        raise UsageError(f"KV memory for {tokens} tokens needs {gib:.1f} GiB; lower --kv-tokens") from error
    return memory


def _check_choice(flag: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise UsageError(f"unknown {flag} {value!r}; choose from {', '.join(choices)}")


def _tested(
    network: PreTrainedModel, attention: str, numerics: str, most_rows: int, weights: Path
) -> tuple[PackedModel, str]:
    """The self-tested model on a small memory of its own, and the numerics level that holds for it."""
    if numerics != "fast":
        before = known_geometry.memory_of(network, weights, attention, most_rows)
        exact = _exact_as_before(network, attention, most_rows, before)
        if exact or (exact := _exact(network, attention, most_rows, before)):
            return exact, "exact"
    if numerics == "exact":
        raise SelfTestFailed(
            "a row's bits depend on its batch for this model here; use --numerics fast or auto"
        )
    fast = _on_small_memory(network, FAST[network.device.type], attention)
    selftest.agree(fast)
    return fast, "fast"


def _exact(
    network: PreTrainedModel, attention: str, most_rows: int, before: known_geometry.Memory
) -> PackedModel | None:
    """The self-tested model in a geometry that keeps its bits; None = there is none here."""
    found = geometry.find(network, attention, most_rows)
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
    network: PreTrainedModel, attention: str, most_rows: int, before: known_geometry.Memory
) -> PackedModel | None:
    """The model in the geometry of an earlier start; None = there was none, or it does not hold now."""
    known = before.recall()
    if known is None or not geometry.still_holds(network, attention, most_rows, known.geometry):
        return None
    tile(network, known.geometry)
    exact = _on_small_memory(network, known.geometry, attention)
    if selftest.as_before(exact, known.layers):
        return exact
    untile(network)
    return None


def _on_small_memory(network: PreTrainedModel, shapes: Geometry, attention: str) -> PackedModel:
    return PackedModel(network, KVMemory(selftest.NUM_BLOCKS), shapes, attention)


def _num_blocks(kv_tokens: int, context_length: int, bytes_per_token: int, device: torch.device) -> int:
    if kv_tokens < 0:
        raise UsageError(f"kv_tokens must be positive, or 0 for automatic; got {kv_tokens}")
    if not kv_tokens:
        budget = int(_free_bytes(device) * MEMORY_SHARE[device.type])
        kv_tokens = min(CONTEXTS * context_length, budget // bytes_per_token)
    return max(1, -(-kv_tokens // BLOCK_SIZE))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes()
