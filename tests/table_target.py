"""A target and a draft model whose logits are a table: cheap enough to ask for every way that a draft can go."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_client.drafters.base import ModelDrafter
from lab.testbed.reference import Sampling, key_of_seed
from opensled.core.messages import DraftToken, SamplingParams, TreeNode
from tests.fakes import EOS, VOCAB, FakeEngine
from verify_server.engine.base import Scores, Segment
from verify_server.engine.numpy_scores import NumpyScores

TABLE = np.random.default_rng(0).normal(0, 3, (VOCAB, VOCAB))
TABLE[:, EOS] = -99.0


def logits_after(text: Sequence[int]) -> np.ndarray:
    """float64 [VOCAB]: by the last two tokens, so that a text soon repeats itself."""
    return TABLE[text[-1]] + 0.3 * TABLE[text[-2]]


def reference(prompt: Sequence[int], max_tokens: int, seed: int = 0, **settings) -> tuple[int, ...]:
    """What the target alone writes; settings as in `Sampling`."""
    sampling, answer = Sampling(**settings, key=key_of_seed(seed)), []
    while len(answer) < max_tokens:
        text = [*prompt, *answer]
        answer.append(sampling.draw(logits_after(text), len(text), answer))
    return tuple(answer)


@dataclass
class TableEngine(FakeEngine):
    """Reads each text back through the KV blocks, as `FakeEngine` does."""

    scores: Callable[[np.ndarray], Scores] = field(default=NumpyScores)

    def forward(self, segments: Sequence[Segment]) -> Scores:
        contexts = super().forward(segments)._contexts
        rows = [logits_after(context) for context in contexts]
        return self.scores(np.stack(rows) if rows else np.zeros((0, VOCAB)))


class TableDrafter(ModelDrafter):
    """Drafts with the target's own logits, changed by as much `noise`."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__(context_length=400)
        self._noise = noise * np.random.default_rng(1).normal(size=(VOCAB, VOCAB))
        self._line: list[int] = []  # what the cache holds

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        self._line[start:] = tokens
        return logits_after(self._line) + self._noise[self._line[-1]]

    def truncate(self, length: int) -> int:
        del self._line[length:]
        return length


class TreeDrafter(TableDrafter):
    """Puts each token that it would draft among others, which the text has already, each time in another place."""

    def propose_tree(self) -> Iterator[TreeNode]:
        last = count = -1
        for token in self.propose():
            siblings = [token.id, 1 + token.id % 40, self.sequence[-2]]
            siblings = sorted(dict.fromkeys(siblings), key=lambda id: (id + count) % 7)
            parent = last
            for id in siblings:
                count += 1
                yield TreeNode(DraftToken(id), parent)
                last = count if id == token.id else last


CASES = (
    {"temperature": 0.0, "repetition_penalty": 1.6},
    {"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 0.5},
    {"temperature": 0.8, "frequency_penalty": 1.2, "seed": 5},
    {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": -0.4, "min_p": 0.02, "seed": 6},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "frequency_penalty": 2.0, "seed": 7},
    {"temperature": 1.5, "min_p": 0.1, "seed": 8},
)
PROMPT, LENGTH = (3, 1, 4, 1, 5), 40


def params_of(case: dict, max_tokens: int = LENGTH) -> SamplingParams:
    return SamplingParams(**case, max_tokens=max_tokens)
