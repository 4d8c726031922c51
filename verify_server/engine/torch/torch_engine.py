"""The `torch` engine: any Hugging Face decoder as target, with paged KV and ragged packed batches."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from hw_profiles.detect import usable_cores
from opensled.core.errors import EngineError, UsageError
from opensled.models import step_threads
from opensled.models.step_threads import StepThreads
from opensled.process.logs import tell_long
from verify_server.engine.base import MAX_TREE, EngineInfo, Segment, TargetEngine, known_ends
from verify_server.engine.load_progress import tell_read, told_tested
from verify_server.engine.torch import guards, loading
from verify_server.engine.torch.fixed_steps import Capture, FixedSteps
from verify_server.engine.torch.image_encoder import ImageEncoder, decoder_of, sees
from verify_server.engine.torch.image_selftest import sees_alike
from verify_server.engine.torch.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.torch.memory_facts import memory_of
from verify_server.engine.torch.onednn_linear import reorder
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.packing import PackedBatch
from verify_server.engine.torch.sdpa_groups import GATHER_TOKENS
from verify_server.engine.torch.tap import HiddenTap, RowReader
from verify_server.engine.torch.tested_model import (
    FAST,
    backends_of,
    capture_of,
    counts_of_same_bits,
    first_that_works,
)
from verify_server.engine.torch.torch_scores import TorchScores

NUMERICS = ("auto", "exact", "fast")
GRAPHS = ("auto", "off", "shapes")


class TorchEngine(TargetEngine):
    """`TargetEngine` over a `PackedModel`."""

    def __init__(
        self,
        model: PackedModel,
        info: EngineInfo,
        eyes: ImageEncoder | None = None,
        capture: Capture | None = None,
        threads: StepThreads | None = None,
    ) -> None:
        """`eyes`: of a vision-language model; `capture`: computes small steps in fixed shapes.

        `threads`: of each step; None = as torch has them.
        """
        self._model, self._eyes, self._capture, self._threads = model, eyes, capture, threads
        self.info = info
        self._reader: RowReader | None = None
        self._tap: HiddenTap | None = None
        self._kept: HiddenTap | None = None
        self._fixed = self._fixed_steps()

    def _fixed_steps(self) -> FixedSteps | None:
        """Anew for each tap: a captured pass holds what was tapped when it was captured."""
        taps = [tap for tap in (self._tap, self._kept) if tap is not None]
        return None if self._capture is None else FixedSteps(self._model, self._capture, taps)

    @property
    def network(self) -> PreTrainedModel:
        """For a draft head, which has its embedding, final norm and output layer in common with it."""
        return self._model.network

    @property
    def way(self) -> str:
        """How steps are computed, in words."""
        if self._fixed is None:
            return f"attention by {self._model.backend}"
        return f"attention by {self._model.backend}, small steps in fixed shapes"

    @property
    def kv_bytes(self) -> int:
        """Of one token in KV."""
        return self._model.memory.bytes_per_token()

    def pack_draft_model(self, network: PreTrainedModel) -> PackedModel:
        """`network` over the same KV memory, in shapes that suit drafts: their bits decide no text."""
        return dataclasses.replace(self._model, network=network, geometry=FAST[self.network.device.type])

    def attach(self, reader: RowReader) -> None:
        """From now on `reader` reads what it taps of every row. Raises UnsupportedModel, see `HiddenTap`."""
        self._tap = HiddenTap(self._model.network, reader.taps)
        self._reader = reader
        self._fixed = self._fixed_steps()

    def keep(self, layer: int) -> None:
        """See `verify_server.engine.base.TargetEngine`; raises UnsupportedModel, see `HiddenTap`."""
        self._kept = HiddenTap(self._model.network, (layer,))
        self._fixed = self._fixed_steps()

    def forward(self, segments: Sequence[Segment]) -> TorchScores:
        """See `verify_server.engine.base.TargetEngine`. Raises EngineError for a token the model does not know.

        After an error nothing is lost but the step: KV before each segment's start is as it was.
        """
        self._check(segments)
        logits, batch = self._run_by_threads(segments)
        if self._reader is not None and self._tap is not None:
            rows = batch.live
            with torch.inference_mode():
                self._reader.read(self._tap.stack_rows(rows), batch.positions[0, :rows], batch.slots[:rows])
        if self._kept is None:
            return TorchScores(logits)
        # Of wanted rows only, and on the device: a step does not wait for a copy that no rule may ask for.
        wanted = batch.wanted[: batch.num_wanted]
        kept = self._kept.stack_rows(batch.live)[:, 0].index_select(0, wanted)
        return TorchScores(logits, kept)

    def _run_by_threads(self, segments: Sequence[Segment]) -> tuple[Tensor, PackedBatch]:
        if self._threads is None:
            return self._run(segments)

        def run(threads: int) -> tuple[Tensor, PackedBatch]:
            if threads != torch.get_num_threads():
                torch.set_num_threads(threads)
            return self._run(segments)

        return self._threads.run(sum(len(segment.tokens) for segment in segments), run)

    def _run(self, segments: Sequence[Segment]) -> tuple[Tensor, PackedBatch]:
        """In a fixed shape, where there is one: pictures have none."""
        varied = any(segment.images for segment in segments)
        found = None if varied or self._fixed is None else self._fixed.run(segments)
        return found or self._model.run(segments)

    def see(self, pixels: NDArray[np.uint8]) -> Tensor:
        """See `verify_server.engine.base.TargetEngine`."""
        return super().see(pixels) if self._eyes is None else self._eyes.encode(pixels)

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        places = self._model.compact(blocks, moves)
        if self._reader is not None:
            with torch.inference_mode():
                self._reader.move(*places)

    def erase(self, blocks: Sequence[int], start: int) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        self._model.erase(blocks, start)

    def _check(self, segments: Sequence[Segment]) -> None:
        """On a GPU an id out of range would end the process, not the step. Raises EngineError."""
        for segment in segments:
            if not 0 <= min(segment.tokens) <= max(segment.tokens) < self.info.vocab_size:
                raise EngineError(f"token ids must lie in [0, {self.info.vocab_size})")
            assert len(segment.parents) <= min(MAX_TREE, len(segment.tokens)), "sessions cut their trees"


def load(
    model: str,
    device: str = "auto",
    dtype: str = "auto",
    kv_tokens: int = 0,
    attention: str = "auto",
    numerics: str = "auto",
    context: int = 0,
    max_rows: int = 512,
    graphs: str = "auto",
    threads: int | None = None,
    eos_ids: tuple[int, ...] = (),
    host: TargetEngine | None = None,
) -> TorchEngine:
    """Loads, guards and tests a target: a folder or a hub id with safetensors, or a GGUF file.

    `kv_tokens`: KV pool in tokens, 0 = by free memory. `numerics`: "exact" insists, "auto" takes what holds here.
    `context`: positions to serve, 0 = all the model has. `max_rows`: rows of the largest step for which level exact is
    to hold. `attention`: a backend (attention.py), "auto" = the fastest that passes its test here. `graphs`: "auto" =
    small steps in CUDA graphs, where a GPU and the backend can; "off"; "shapes" = in the shapes of graphs without any,
    which is slow, for tests. `threads`: of all steps on a processor, 0 = what is fastest, None = as torch has them now.
    `eos_ids`: ends of a turn, () = those of the network's configs. `host`: the target of a draft model, whose KV memory
    it shares if it can; else it has its own, of what is left. Raises UsageError, NotFound, UnsupportedModel,
    SelfTestFailed.
    """
    _check_options(numerics, graphs, kv_tokens)
    place = loading.pick_device(device)
    backends_of(attention, place)  # refused before the weights are read
    weights = loading.find_weights(model)
    context_length = guards.check_config(loading.read_config(weights), context)
    width = loading.pick_dtype(dtype, place, weights)
    needed = memory_of(weights, place, width, (kv_tokens, context_length), max_rows)
    needed = needed.without_kv() if host else needed
    needed.require()
    network, eyes = _read(weights, place, width)
    return around(
        network,
        model,
        needed.blocks,
        context_length,
        attention=attention,
        numerics=numerics,
        max_rows=max_rows,
        graphs=graphs,
        weights=weights.path,
        eyes=eyes,
        threads=threads,
        eos_ids=eos_ids,
        host=host,
    )


def around(
    network: PreTrainedModel,
    model: str,
    num_blocks: Callable[[int], int],
    context_length: int,
    *,
    attention: str = "auto",
    numerics: str = "auto",
    max_rows: int = 512,
    graphs: str = "auto",
    weights: Path | None = None,
    eyes: ImageEncoder | None = None,
    threads: int | None = None,
    eos_ids: tuple[int, ...] = (),
    host: TargetEngine | None = None,
) -> TorchEngine:
    """Guards and tests a network that is on its device, as `load` does with what it has read.

    `num_blocks`: KV blocks, given the bytes of one token in KV; `weights`: the network's file or folder, None = it was
    read from none; `eyes`: what looks at pictures for it. Raises UsageError, UnsupportedModel, SelfTestFailed.
    """
    guards.check_modules(network)
    place = network.device
    reorder(network)
    steps = None
    if threads is not None and place.type == "cpu":
        steps = StepThreads([threads]) if threads else step_threads.up_to(usable_cores())
        torch.set_num_threads(steps.of(1))
    with told_tested():
        backends = backends_of(attention, place)
        tested, level = first_that_works(network, backends, numerics, max_rows, weights)
        if steps and level == "exact":
            steps = StepThreads(counts_of_same_bits(tested, steps.counts, max_rows))
        capture = capture_of(graphs, tested, level)
        if eyes is not None:
            sees_alike(tested, eyes)
    memory, lodged = _memory_of(tested.memory, num_blocks, host)
    vocab_size = network.config.get_text_config(decoder=True).vocab_size
    info = EngineInfo(
        model_id=model,
        vocab_size=vocab_size,
        context_length=context_length,
        eos_ids=known_ends(eos_ids or loading.eos_ids(network), vocab_size),
        numerics=level,
        dtype=str(network.dtype).removeprefix("torch."),
        device=str(place),
        num_blocks=memory.num_blocks,
        block_size=BLOCK_SIZE,
        shares_blocks=True,
        max_tree=MAX_TREE,
        tree_reads=GATHER_TOKENS if level == "exact" else 0,
        runtime="torch",
        lodged=lodged,
        row_step=tested.geometry.rows,
        hidden_size=network.config.get_text_config(decoder=True).hidden_size,
        images=eyes.facts if eyes else None,
        threads=str(steps or StepThreads([torch.get_num_threads()])) if place.type == "cpu" else "",
    )
    return TorchEngine(dataclasses.replace(tested, memory=memory), info, eyes, capture, steps)


def _read(
    weights: loading.Weights, place: torch.device, width: torch.dtype
) -> tuple[PreTrainedModel, ImageEncoder | None]:
    """The decoder, and what looks at pictures for it."""
    with tell_long("still reading the weights") as reading:
        network = loading.load_network(weights, place, width)
        eyes = ImageEncoder(network, weights.folder) if sees(network.config) else None
    tell_read(network.num_parameters(), reading.seconds)
    return decoder_of(network) if eyes else network, eyes


def _memory_of(
    tested: KVMemory, num_blocks: Callable[[int], int], host: TargetEngine | None
) -> tuple[KVMemory, int]:
    """KV memory for `around`, and `EngineInfo.lodged`. Raises UsageError."""
    lodged = host._model.memory.lodge(tested) if isinstance(host, TorchEngine) else None
    if lodged is not None and host is not None:
        return lodged, lodged.num_blocks // host.info.num_blocks
    wanted = num_blocks(tested.bytes_per_token())
    return _allocate(tested, min(wanted, host.info.num_blocks) if host else wanted), 0


def _allocate(tested: KVMemory, num_blocks: int) -> KVMemory:
    """KV memory of the same form as that of the self-test. Raises UsageError."""
    memory = KVMemory(num_blocks)
    try:
        memory.allocate_like(tested)
    except (MemoryError, torch.OutOfMemoryError) as error:
        tokens = num_blocks * BLOCK_SIZE
        gib = tokens * tested.bytes_per_token() / 2**30
        raise UsageError(f"KV memory for {tokens} tokens needs {gib:.1f} GiB; lower --kv-tokens") from error
    return memory


def _check_options(numerics: str, graphs: str, kv_tokens: int) -> None:
    _check_choice("numerics", numerics, NUMERICS)
    _check_choice("graphs", graphs, GRAPHS)
    if kv_tokens < 0:
        raise UsageError(f"kv_tokens must be positive, or 0 for automatic; got {kv_tokens}")


def _check_choice(flag: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise UsageError(f"unknown {flag} {value!r}; choose from {', '.join(choices)}")
