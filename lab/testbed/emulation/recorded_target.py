"""A target that writes what was recorded: a server of an emulation stands for any recorded pair, without its weights.

As `engine` of an emulated server (lab/testbed/fleet.py): lab.testbed.emulation.recorded_target:load. Of the
model only the tokenizer and the chat template must be here. What follows a wrong draft token was not recorded and never
counts: any id stands for it.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from lab.testbed.recordings import PAIRS, recording
from lab.testbed.target_text import text_of
from lab.testbed.traces import ItemTrace, eos_ids, read_traces
from opensled.core.trees import path_to
from verify_server.engine.base import MAX_TREE, EngineInfo, SampleRequest, Scores, Segment, TargetEngine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel

ENGINE = "lab.testbed.emulation.recorded_target:load"
ANY = 0  # the id after a place that was not recorded
CONTEXT, BLOCK_SIZE, BLOCKS = 1 << 13, 16, 1 << 14  # positions of a session; tokens of a KV block; blocks


def load(config: ServeConfig) -> ServedModel:
    """The target of a pair by its name, with the texts recorded by its draft model. Raises NotFound or UsageError."""
    pair = next(name for name, each in PAIRS.items() if each.target == config.model)
    text = text_of(config.model)
    return ServedModel(pair, RecordedEngine(read_traces(recording(pair)).items, text.vocab_size), text)


class RecordedEngine(TargetEngine):
    """`TargetEngine` whose KV is the tokens themselves: what they say decides which text goes on, and where."""

    def __init__(self, items: Iterable[ItemTrace], vocab_size: int) -> None:
        self.info = EngineInfo(
            model_id="recorded",
            vocab_size=vocab_size,
            context_length=CONTEXT,
            eos_ids=tuple(sorted(eos_ids(items := tuple(items)))),
            numerics="exact",
            dtype="float32",
            device="cpu",
            num_blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            shares_blocks=True,
            max_tree=MAX_TREE,
        )
        self._tokens = np.zeros((BLOCKS, BLOCK_SIZE), np.int32)
        self._next = {key: token for item in items for key, token in _places(item)}

    def forward(self, segments: Sequence[Segment]) -> Scores:
        """See `TargetEngine`."""
        rows = [token for segment in segments for token in self._rows(segment)]
        return cast(Scores, RecordedScores(rows))

    def _rows(self, segment: Segment) -> list[int]:
        """What follows each of the last rows of a segment."""
        kept, end = np.array(segment.blocks), segment.start + len(segment.tokens)
        places = np.arange(segment.start, end)
        self._tokens[kept[places // BLOCK_SIZE], places % BLOCK_SIZE] = segment.tokens
        if not segment.rows:
            return []
        text = self._tokens[kept].ravel()
        first = end - segment.rows + 1
        if segment.parents:
            paths = [path_to(segment.parents, index) for index in range(-1, segment.rows - 1)]
            texts = [np.concatenate((text[:first], text[first:][path])) for path in paths]
        else:
            texts = [text[:length] for length in range(first, end + 1)]
        return [self._next.get(each.tobytes(), ANY) for each in texts]

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """See `TargetEngine`."""
        kept, places = np.array(blocks), np.array(moves)
        old, new = places.T
        self._tokens[kept[new // BLOCK_SIZE], new % BLOCK_SIZE] = self._tokens[
            kept[old // BLOCK_SIZE], old % BLOCK_SIZE
        ]


class RecordedScores:
    """Every row's own token, as recorded. Rule `match` asks for nothing else."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._own = rows

    def sample(self, requests: Sequence[SampleRequest]) -> list[list[int]]:
        """See `Scores`."""
        return [[self._own[row] for row in request.rows] for request in requests]


def _places(item: ItemTrace) -> Iterable[tuple[bytes, int]]:
    """Each beginning of prompt and text, with the token that follows."""
    whole = np.array((*item.prompt_ids, *item.target_ids), np.int32)
    for length in range(len(item.prompt_ids), len(whole)):
        yield whole[:length].tobytes(), int(whole[length])
