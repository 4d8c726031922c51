"""The `llamacpp` engine: a GGUF target through llama.cpp's low-level batch API, for servers without torch.

All sessions share one pool of KV cells; a step is one pass over the tokens of several sequences. What the cache has
lost of a sequence is computed again from its ids, so that no answer of llama.cpp can cost a session its text.

The branches of a draft tree take sequences of their own until the next step. Where a step has more of them than there
are, it is several passes, and the path that stands of an early one is computed once more.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hw_profiles.detect import usable_cores
from opensled.core.errors import EngineError
from opensled.core.trees import runs
from opensled.models import step_threads
from opensled.models.llama import LlamaModel
from opensled.models.step_threads import StepThreads
from opensled.process.logs import tell_long
from verify_server.engine.base import MAX_TREE, EngineInfo, Segment, TargetEngine, known_ends
from verify_server.engine.llamacpp import llama_probe, llama_settings
from verify_server.engine.llamacpp.llama_batch import LlamaPiece
from verify_server.engine.llamacpp.llama_cache import MAX_SEQUENCES, CacheFull, LlamaCache
from verify_server.engine.llamacpp.llama_parked import ParkedBlocks, Run
from verify_server.engine.llamacpp.llama_sequences import LlamaSequences
from verify_server.engine.llamacpp.llama_settings import BLOCK
from verify_server.engine.load_progress import tell_read, told_tested
from verify_server.engine.numpy_scores import NumpyScores

BRANCHES = MAX_TREE  # sequences for branches of draft trees; those of sessions come before them
SEQUENCES = MAX_SEQUENCES - BRANCHES - 1  # the last one is what parked text passes through


class Placed(NamedTuple):
    """A segment, and what llama.cpp computes for it."""

    segment: Segment
    tokens: LlamaPiece


def num_branches(segment: Segment) -> int:
    """Sequences that a segment's tree takes beside its own."""
    return len(list(runs(segment.parents))) - 1 if segment.parents else 0


class LlamaCppEngine(TargetEngine):
    """`TargetEngine` over a `LlamaCache`."""

    def __init__(self, model: LlamaModel, cache: LlamaCache, info: EngineInfo) -> None:
        self.model, self.info = model, info
        self._cache = cache
        self._sequences = LlamaSequences(info.num_blocks, info.block_size, SEQUENCES)
        # Those that hold something, by the sequence they branch from
        self._branches: dict[int, tuple[int, ...]] = {}
        self._free: deque[int] = deque()  # blocks given back since the last step
        self._resting: deque[int] = deque()  # blocks without a session since the last step
        self._parked = ParkedBlocks(cache.longest_saved // info.block_size)
        self._claimed: set[int] = set()  # sequences of the latest step

    def forward(self, segments: Sequence[Segment]) -> NumpyScores:
        """See `verify_server.engine.base.TargetEngine`. Raises EngineError for a token the model does not know.

        After an error nothing is lost but the step: the next one begins by taking away what was left half done.
        """
        self._check(segments)
        self._let_go()
        self._claimed.clear()
        try:
            logits = self._together(segments)
        except CacheFull:
            # Several of them had lost the same text, which takes cells once only if they compute it in turn.
            logits = np.concatenate([self._alone(segment) for segment in segments])
        if not np.isfinite(logits.max(initial=0.0)):
            logits = self._apart(segments)
        self._park()
        return NumpyScores(logits)

    def _apart(self, segments: Sequence[Segment]) -> np.ndarray:
        """Logits of all rows, where no segment sees the cells of another one.

        Without flash attention llama.cpp multiplies what its mask hides by zero: one KV value that is no number, in any
        cell, even a free one, spoils the rows of all.
        """
        rows = []
        for segment in segments:
            self._cache.clear()
            rows.append(self._alone(segment))
        self._cache.clear()
        return np.concatenate(rows)

    def _together(self, segments: Sequence[Segment]) -> np.ndarray:
        """Logits of all rows, in as many passes as there are sequences for."""
        self._drop_branches()
        passes: list[np.ndarray] = []
        group: dict[int, Placed] = {}  # by sequence
        for segment in segments:
            if not self._fits(segment, group):
                passes.append(self._pass(group))
                self._drop_branches()
                group = {}
            sequence = self._claim(segment, group)
            group[sequence] = Placed(segment, self._piece(sequence, segment))
        passes.append(self._pass(group))
        return np.concatenate(passes) if len(passes) > 1 else passes[0]

    def _alone(self, segment: Segment) -> np.ndarray:
        """Logits of one segment, which all cells are for if need be."""
        try:
            return self._together([segment])
        except CacheFull:
            for sequence in self._sequences.idle(()):
                self._cache.truncate(sequence, 0)
                self._sequences.drop(sequence)
            return self._together([segment])

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        settled = self._sequences.settle(blocks, moves)
        branches = self._branches.get(settled.sequence) if settled.sequence is not None else None
        if branches is not None and settled.sequence is not None:
            self._cache.copy(branches[settled.run - 1], settled.sequence, settled.start, settled.stop)
            self._sequences.keep_path(settled)

    def forget(self, blocks: Sequence[int]) -> None:
        """See `verify_server.engine.base.TargetEngine`.

        Attention looks at every cell that is taken, so the cells of sequences that are over would slow all others down.
        """
        self._free.extend(blocks)

    def rest(self, blocks: Sequence[int]) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        self._resting.extend(blocks)

    def _let_go(self) -> None:
        """Takes what is not needed out of the cache."""
        while self._free:
            block = self._free.popleft()
            self._parked.free(block)
            self._shorten(self._sequences.free(block))

    def _park(self) -> None:
        """Texts that are over leave the cells, but those that somebody has just gone on with."""
        resting = {self._resting.popleft() for _ in range(len(self._resting))}
        for sequence in self._sequences.over(resting, self._claimed) if resting else ():
            blocks = self._sequences.blocks_of(sequence)
            for first, stop in self._parked.missing(blocks, resting):
                data = self._cache.save(sequence, first * BLOCK, stop * BLOCK)
                if data is not None:
                    self._parked.park(Run(first, blocks[first:stop], data))
            self._cache.truncate(sequence, 0)
            self._sequences.drop(sequence)

    def _shorten(self, losers: Mapping[int, int]) -> None:
        for loser, length in losers.items():
            self._cache.truncate(loser, length)

    def _fits(self, segment: Segment, group: Collection[int]) -> bool:
        """Whether there are sequences left for one more segment in a pass."""
        branches = self._num_branches() + num_branches(segment)
        return branches <= BRANCHES and self._sequences.has_room(group)

    def _claim(self, segment: Segment, busy: Collection[int]) -> int:
        """The sequence of a segment, which has the cells of other sequences for the text that it shares with them."""
        claim = self._sequences.claim(segment, busy)
        self._claimed.add(claim.sequence)
        self._shorten(claim.losers)
        if claim.source != claim.sequence:
            self._cache.copy(claim.source, claim.sequence, 0, claim.shared)
        return claim.sequence

    def _piece(self, sequence: int, segment: Segment) -> LlamaPiece:
        """What must be computed: the segment, after whatever the cache has lost of the tokens before it."""
        present = self._cache.truncate(sequence, self._sequences.count_kept(sequence))
        if present < segment.start and present % BLOCK == 0:
            present = self._unpark(sequence, segment, present)
        lost = self._sequences.before(sequence)[present:]
        first = SEQUENCES + self._num_branches()
        taken = tuple(range(first, first + num_branches(segment)))
        if taken:
            self._branches[sequence] = taken
        return LlamaPiece(sequence, present, (*lost, *segment.tokens), segment.rows, segment.parents, taken)

    def _unpark(self, sequence: int, segment: Segment, present: int) -> int:
        """Gives a sequence what is parked of the text before its segment from `present` on; how much it has then."""
        blocks = segment.blocks[: segment.start // BLOCK]
        for run, stop in self._parked.follow(blocks, present // BLOCK):
            if not self._cache.load(run.data, sequence, present, stop * BLOCK):
                break
            present = stop * BLOCK
        return present

    def _pass(self, group: Mapping[int, Placed]) -> np.ndarray:
        """Logits of the group's rows."""
        logits = self._cache.decode([piece.tokens for piece in group.values()])
        for sequence, piece in group.items():
            self._sequences.add_computed(sequence, piece.segment)
        return logits

    def _num_branches(self) -> int:
        return sum(map(len, self._branches.values()))

    def _drop_branches(self) -> None:
        for branch in range(SEQUENCES, SEQUENCES + self._num_branches()):
            self._cache.truncate(branch, 0)
        self._branches.clear()

    def _check(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if not 0 <= min(segment.tokens) <= max(segment.tokens) < self.info.vocab_size:
                raise EngineError(f"token ids must lie in [0, {self.info.vocab_size})")
            assert len(segment.parents) <= self.info.max_tree, "sessions cut their trees"


def load(
    path: Path,
    device: str = "auto",
    gpu_layers: int = -1,
    threads: int = 0,
    kv_tokens: int = 0,
    context: int = 0,
    eos_ids: Sequence[int] = (),
) -> LlamaCppEngine:
    """Loads, guards and probes a GGUF target.

    `kv_tokens`: KV pool in tokens, 0 = by free memory. `context`: positions to serve, 0 = all the model has.
    `gpu_layers`: how many layers a build for GPUs puts there, -1 = all. `threads`: 0 = as many as are fastest.
    `eos_ids`: ends of a turn besides those that llama.cpp takes. Raises UsageError, UnsupportedModel, SelfTestFailed.
    """
    layers = llama_settings.gpu_layers(device, gpu_layers)
    with tell_long("still reading the weights") as reading:
        model = LlamaModel(path, layers)
    tell_read(model.params, reading.seconds)
    each_step = StepThreads([threads]) if threads else step_threads.up_to(usable_cores())
    served = llama_settings.context_length(model, context)
    with told_tested():
        takes_trees = llama_probe.run(model, each_step)
    num_blocks = llama_settings.num_blocks(kv_tokens, served, model)
    cache = LlamaCache(model, num_blocks * BLOCK, MAX_SEQUENCES, each_step)
    info = EngineInfo(
        model_id=str(path),
        vocab_size=model.vocab_size,
        context_length=served,
        eos_ids=known_ends((*model.eos_ids(), *eos_ids), model.vocab_size),
        numerics="fast",
        dtype=model.precision(),
        device="cpu" if layers == 0 else "gpu",
        num_blocks=num_blocks,
        block_size=BLOCK,
        shares_blocks=True,
        max_tree=MAX_TREE if takes_trees else 0,
        runtime="llama.cpp",
        threads=str(each_step) if layers == 0 else "",
    )
    return LlamaCppEngine(model, cache, info)
