"""Targets and draft models of different vocabularies that know a text: a target writes it, a draft model guesses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

import numpy as np

from edge_client.drafters.base import ModelDrafter
from edge_client.drafters.by_text import ByTextDrafter
from edge_client.drafters.model_text import ModelText
from edge_client.drafters.retokenize import Seam
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.protocol import common_prefix
from opensled.core.sampling import Sampler
from tests.drafter_contract import ids
from tests.fakes import FakeEngine, FakeScores
from tests.five_tokenizers import FamilyTokenizer, family
from verify_server.engine.base import EngineInfo, Segment

# Target and draft
PAIRS = [("llama2", "qwen"), ("qwen", "gemma"), ("gemma", "gpt2"), ("gpt2", "unigram"), ("tiny", "llama2")]
GREEDY = Sampler(SamplingParams(temperature=0.0), noise_key(1))


class KnowingModel(ModelDrafter):
    """A draft model that is sure of `text`, as its own tokenizer writes that, while its context spells the beginning of
    it, and else of nonsense."""

    def __init__(self, tokenizer: FamilyTokenizer, text: bytes) -> None:
        super().__init__(context_length=4000)
        self._tokenizer, self._seam = tokenizer, Seam(tokenizer)
        ids = tokenizer.encode_rendered(text.decode("utf-8", "ignore"))
        self._known = b"".join(map(tokenizer.token_bytes, ids))
        self.cache: list[int] = []
        self.forwarded = 0

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        assert len(self.cache) == start and tokens
        self.cache += tokens
        self.forwarded += len(tokens)
        logits = np.zeros(self._tokenizer.size, np.float32)
        logits[self._next()] = 9.0
        return logits

    def _next(self) -> int:
        frame = len(self._tokenizer.frame)
        assert tuple(self.cache[:frame]) == self._tokenizer.frame
        spelled = b"".join([self._tokenizer.token_bytes(id) for id in self.cache[frame:]])
        if not self._known.startswith(spelled):
            return self._tokenizer.size // 2
        rest = self._known[len(spelled) :]
        following = self._seam.encode(spelled, rest)
        return following[0].id if following else self._tokenizer.end

    def truncate(self, length: int) -> int:
        del self.cache[length:]
        return length


def by_text(target: str, draft: str, text: bytes) -> ByTextDrafter:
    """What drafts for `target` with a `draft` model that knows `text`."""
    model = KnowingModel(family(draft), text)
    return ByTextDrafter(ModelText(model, family(draft)), family(target), (family(target).end,))


def answer_ids(target: str, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prompt, answer) of a target that writes `text`: the first third of its tokens, then the others and the end."""
    tokens = family(target).encode(text)
    cut = max(len(family(target).frame) + 1, len(tokens) // 3)
    return tokens[:cut], (*tokens[cut:], family(target).end)


def spelled(target: str, tokens: Sequence[int]) -> bytes:
    """The text of `tokens` as a drafter hears it: without the frame, and without a space that the tokenizer adds."""
    tokenizer = family(target)
    framed = tuple(tokens[: len(tokenizer.frame)]) == tokenizer.frame
    text = b"".join([tokenizer.token_bytes(id) for id in tokens[len(tokenizer.frame) if framed else 0 :]])
    return Seam(tokenizer).begin(text)


@dataclass
class Rounds:
    """What became of the blocks of one answer."""

    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        return sum(self.accepted) / max(1, sum(self.drafted))

    def add(self, others: Rounds) -> None:
        self.accepted += others.accepted
        self.drafted += others.drafted


def draft_through(
    drafter: ByTextDrafter, prompt: Sequence[int], answer: Sequence[int], block: int = 6, ahead: bool = False
) -> Rounds:
    """Let `drafter` draft while a target writes `answer`, as the edge loop does."""
    rounds, place = Rounds(), 0
    drafter.begin(prompt, GREEDY)
    while place < len(answer):
        tokens = list(islice(drafter.propose(), block))
        if ahead and tokens:
            for _ in drafter.look_ahead(tokens, block):
                pass
        right = common_prefix(ids(tokens), answer[place:])
        rounds.accepted.append(right)
        rounds.drafted.append(min(len(tokens), len(answer) - place))
        drafter.commit(answer[place : place + right + 1])
        place += right + 1
    return rounds


class TextScores(FakeScores):
    """Of a vocabulary of any size."""

    def __init__(self, contexts: list[list[int]], target: Callable[[Sequence[int]], int], size: int) -> None:
        super().__init__(contexts, target)
        self.vocab_size = size

    def _token(self, row: int, mask: bytes | None) -> int:
        return self._target(self._contexts[row])


@dataclass
class TextEngine(FakeEngine):
    """A target that writes with the tokenizer of a family."""

    num_blocks: int = 400
    context_length: int = 600
    family: str = "tiny"

    @property
    def info(self) -> EngineInfo:
        tokenizer = family(self.family)
        return replace(super().info, vocab_size=tokenizer.size, eos_ids=(tokenizer.end,))

    def forward(self, segments: Sequence[Segment]) -> FakeScores:
        scores = super().forward(segments)
        return TextScores(scores._contexts, self.target, family(self.family).size)


def stubborn_answer(target: str, text: str, breaks: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prompt, answer) of a target that writes `text`, but not as its tokenizer would cut it: some tokens byte by byte,
    and some others in between. `breaks`: those may be bytes that are no text."""
    tokenizer = family(target)
    prompt, answer = answer_ids(target, text)
    odd: list[int] = []
    for place, token in enumerate(answer[:-1]):
        piece = tokenizer.token_bytes(token)
        parts = [tokenizer.token_of(piece[at : at + 1]) for at in range(len(piece))]
        if place % 7 == 3 and None not in parts:
            odd += [part for part in parts if part is not None]
        elif place % 11 == 7:
            odd += [_other(tokenizer, token, breaks), token]
        else:
            odd.append(token)
    return prompt, (*(id for id in odd if id != tokenizer.end), tokenizer.end)


def _other(tokenizer: FamilyTokenizer, token: int, breaks: bool) -> int:
    """Another token; whole letters unless it `breaks` the text."""
    others = ((token * 7 + step) % tokenizer.size for step in count(13))
    return next(
        id for id in others if breaks or tokenizer.token_bytes(id).decode("utf-8", "ignore").isalnum()
    )
