"""Checks at load, failing closed: the engine must agree with plain attention, and its claim of exactness must hold.

A short script of steps drives it through what serving does: ragged batches, prompts in chunks, scattered KV blocks,
drafts that are rejected and overwritten, and draft trees of which one path stands.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from opensled.core.errors import OpenSledError, SelfTestFailed
from verify_server.engine.base import Segment
from verify_server.engine.torch import attention, guards
from verify_server.engine.torch.backend_check import TOLERANCE, check_backend, twin_parents
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.packing import Attend
from verify_server.engine.torch.short_model import enough_layers, num_layers, shorten

NUM_BLOCKS = 20
# KV blocks of the three sequences: scattered, and one more sequence's worth for the copies of the last.
BLOCKS = ((7, 2, 15), (1,), (4, 0, 16, 3, 8), (19, 5, 11, 9, 13))
LENGTHS = (21, 5, 70)


@dataclass(frozen=True)
class TestChunk:
    """Positions [start, end) of a sequence in one step; a rejected part has other tokens and no meaning.

    In a `tree` every token but the first one has a twin beside it, which is wrong.
    """

    sequence: int
    start: int
    end: int
    rejected: bool = False
    tree: bool = False


Script = Sequence[Sequence[TestChunk]]
Run = Callable[[Sequence[Segment]], Tensor]  # logits of the wanted rows
RAGGED: Script = (
    (TestChunk(0, 0, 13), TestChunk(2, 0, 33)),
    (TestChunk(0, 13, 18, rejected=True), TestChunk(1, 0, 4), TestChunk(2, 33, 60)),
    (TestChunk(0, 13, 17), TestChunk(1, 4, 5), TestChunk(2, 60, 68, tree=True)),
    (TestChunk(0, 17, 21, tree=True), TestChunk(2, 68, 70)),
)
# The same sequences whole, by single tokens (63 is the last of a span, 64 the first of one) and by short verify chunks.
ALONE: Script = (
    (TestChunk(1, 0, 1),),
    (TestChunk(0, 0, 21), TestChunk(1, 1, 5)),
    (TestChunk(2, 0, 62), TestChunk(3, 0, 20)),
    *((TestChunk(2, position, position + 1),) for position in (62, 63, 64)),
    (TestChunk(2, 65, 70),),
)
SHORTEST: Script = ((TestChunk(0, 0, 3),), (TestChunk(0, 3, 5),))


def agree(model: PackedModel) -> int:
    """Compares the whole model with plain attention, and tells how many of its first layers hold one of every kind.

    Raises UnsupportedModel or SelfTestFailed. `model` must have its own small memory of NUM_BLOCKS.
    """
    with failing_closed():
        check_backend(model)
        count = num_layers(model.network)
        logits, calls = play(model, RAGGED, count)
        _compare(model.network, logits)
        enough = enough_layers(model.network, calls)
        return enough if _runs_short(model, enough) else count


def keeps_bits(model: PackedModel, layers: int) -> bool:
    """Whether a row's bits did not depend on its batch in the first `layers` layers; raises as `agree` does.

    Of layers of one kind all have the kernels, and so the independence, of the first one. The output layer was tried by
    itself, in every number of rows that it is given.
    """
    with failing_closed(), shorten(model.network, layers):
        return same_bits(play(model, RAGGED, layers)[0], play(model, ALONE, layers)[0])


def as_before(model: PackedModel, layers: int) -> bool:
    """Whether a model that passed `agree` and `keeps_bits` in an earlier start passes them with its first `layers`
    layers, and agrees on a few tokens as a whole."""
    count = num_layers(model.network)
    if not 1 <= layers <= count:
        return False
    try:
        with failing_closed():
            check_backend(model)
            _compare(model.network, play(model, SHORTEST, count)[0])
            with shorten(model.network, layers):
                ragged, _ = play(model, RAGGED, layers)
                _compare(model.network, ragged)
                return same_bits(ragged, play(model, ALONE, layers)[0])
    except OpenSledError:
        return False  # all tests follow, and say why


def _runs_short(model: PackedModel, layers: int) -> bool:
    """Whether the model works without its other layers; one that counts on them raises errors of any kind."""
    try:
        with shorten(model.network, layers):
            play(model, SHORTEST, layers)
    except Exception:
        return False
    return True


@contextmanager
def failing_closed() -> Iterator[None]:
    try:
        yield
    except OpenSledError:
        raise
    except Exception as error:
        raise SelfTestFailed(
            f"the model fails on a small packed batch: {type(error).__name__}: {error}"
        ) from error


def _vocabulary(network: PreTrainedModel) -> int:
    size: int = network.config.get_text_config(decoder=True).vocab_size
    return size


def _tokens(sequence: int, vocabulary: int) -> list[int]:
    """Any fixed, varied ids; sequence 3 repeats sequence 2."""
    chosen = min(sequence, len(LENGTHS) - 1)
    return [(7919 * (i + 1) + 104_729 * chosen) % vocabulary for i in range(LENGTHS[chosen])]


def _segment(part: TestChunk, vocabulary: int) -> Segment:
    tokens = _tokens(part.sequence, vocabulary)[part.start : part.end]
    if part.rejected:
        tokens = [(token + 1) % vocabulary for token in tokens]
    if part.tree:
        twins = [(token + 1) % vocabulary for token in tokens]
        tokens = [tokens[0], *[each for pair in zip(twins[1:], tokens[1:]) for each in pair]]
    parents = twin_parents(len(tokens) - 1) if part.tree else ()
    rows = 0 if part.rejected else len(tokens)
    return Segment(tuple(tokens), part.start, BLOCKS[part.sequence], rows, parents)


def _settle(model: PackedModel, part: TestChunk, logits: Tensor) -> Tensor:
    """The rows of a part that stand; after a tree their KV, too, is put in order."""
    if not part.tree:
        return logits
    length = part.end - part.start
    moves = [(part.start + 2 * index, part.start + index) for index in range(1, length)]
    model.compact(BLOCKS[part.sequence], moves)
    return logits[::2]


def play(
    model: PackedModel, script: Script, layers: int, run: Run | None = None
) -> tuple[list[Tensor], list[Attend]]:
    """Logits [length, vocabulary] of each sequence, from the parts that were not rejected, and the last step's calls.

    `layers`: how many must attend. `run`: computes the steps in the model's place.
    """
    vocabulary = _vocabulary(model.network)
    rows: list[list[Tensor]] = [[] for _ in BLOCKS]
    calls: list[Attend] = []
    for step in script:
        segments = [_segment(part, vocabulary) for part in step]
        if run is not None:
            logits = run(segments)
        else:
            logits, batch = model.run(segments)
            calls = batch.calls
            guards.check_calls(model.network, calls, layers)
        for part, own in zip(step, logits.split([segment.rows for segment in segments])):
            rows[part.sequence].append(_settle(model, part, own))
    return [torch.cat(parts) for parts in rows[: len(LENGTHS)] if parts], calls


def _compare(network: PreTrainedModel, logits: Sequence[Tensor]) -> None:
    for sequence, given in enumerate(logits):
        tokens = _tokens(sequence, _vocabulary(network))[: len(given)]
        expected = _plain_logits(network, tokens)
        check_close(given, expected, "the engine's logits differ from plain attention")


def check_close(given: Tensor, expected: Tensor, what: str) -> None:
    """By what the dtype allows. Raises SelfTestFailed."""
    allowed = TOLERANCE[given.dtype]
    error = ((given.double() - expected.double()).square().mean().sqrt() / expected.double().std()).item()
    if not error <= allowed:  # NaN fails, too
        raise SelfTestFailed(
            f"{what} by {error:.1e} of their spread (allowed {allowed:.0e}); this model would give wrong tokens"
        )


@torch.inference_mode()
def _plain_logits(network: PreTrainedModel, tokens: list[int]) -> Tensor:
    """By "eager" attention, the one that knows every model's extras: transformers 5.17 drops softcaps under "sdpa"."""
    with attending_by(network, "eager"):
        return network(input_ids=torch.tensor([tokens], device=network.device), use_cache=False).logits[0]


@contextmanager
def attending_by(network: PreTrainedModel, name: str) -> Iterator[None]:
    network.set_attn_implementation(name)
    try:
        yield
    finally:
        network.set_attn_implementation(attention.NAME)


def same_bits(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other))
