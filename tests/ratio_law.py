"""Rule `ratio` by enumeration: every way a round can go, with its exact probability, against the target's own law.

Only the coins and the draws are replaced; which rows, ids, streams and formulas they stand for is the product's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from unittest import mock

import numpy as np
import torch

from opensled.core.messages import Draft, DraftBlock, DraftToken, SamplingParams, SparseDistribution
from opensled.core.penalties import TokenCounts
from opensled.wire import codec
from tests.rule_contract import decide_alone
from verify_server.engine.torch import torch_scores as scores
from verify_server.rules import ratio
from verify_server.rules.base import DraftCheck

KEY = b"k" * 16


@dataclass
class World:
    """A target and a draft over a few ids: a table of logits for every text up to a length."""

    vocab: int
    length: int  # of drafts
    target: dict[tuple[int, ...], np.ndarray]
    draft: dict[tuple[int, ...], SparseDistribution]
    params: SamplingParams

    @staticmethod
    def random(seed: int, dtype, vocab=4, length=2, kept=3, params=SamplingParams(temperature=0.8)) -> World:
        noise = np.random.default_rng(seed)
        texts = [text for size in range(length + 1) for text in product(range(vocab), repeat=size)]
        target = {text: noise.normal(0, 2, vocab).astype(dtype) for text in texts}
        draft = {text: _sparse(noise, vocab, kept, dtype) for text in texts}
        return World(vocab, length, target, draft, params)

    def rows(self, text: tuple[int, ...]) -> torch.Tensor:
        """Logits of the positions after text[:0], text[:1], ..., text."""
        return torch.tensor(np.stack([self.target[text[:size]] for size in range(len(text) + 1)]))

    def probs(self, text: tuple[int, ...]) -> np.ndarray:
        """The target's distribution after `text`, from the definition: penalties, temperature, top_k, top_p, min_p."""
        params, logits = self.params, self.target[text].astype(np.float64)
        for id in set(text):
            logits[id] *= 1 / params.repetition_penalty if logits[id] > 0 else params.repetition_penalty
            logits[id] -= params.presence_penalty + params.frequency_penalty * text.count(id)
        if self.params.temperature == 0:
            return np.eye(self.vocab)[int(np.argmax(logits))]
        order = np.argsort(-logits, kind="stable")
        scaled = logits[order] / self.params.temperature
        if self.params.top_k:
            scaled[self.params.top_k :] = -np.inf
        weights = np.exp(scaled - scaled[0])
        weights /= weights.sum()
        before = np.cumsum(weights) - weights
        weights[before >= self.params.top_p] = 0
        weights[weights < self.params.min_p * weights[0]] = 0
        probs = np.zeros(self.vocab)
        probs[order] = weights / weights.sum()
        return probs

    def law(self) -> np.ndarray:
        """The target's joint law of the next `length` + 1 tokens."""
        joint = np.zeros((self.vocab,) * (self.length + 1))
        for text in product(range(self.vocab), repeat=self.length + 1):
            joint[text] = np.prod([self.probs(text[:size])[text[size]] for size in range(len(text))])
        return joint


def _sparse(noise, vocab: int, kept: int, dtype) -> SparseDistribution:
    ids = noise.permutation(vocab)[:kept]
    probs = noise.dirichlet(np.ones(kept)).astype(dtype)
    return SparseDistribution(tuple(ids.tolist()), tuple(probs.tolist()))


class Coin:
    """Stands for the uniform number of one test: lands as told, and remembers how likely that was."""

    def __init__(self, falls: bool, weight: list[float]) -> None:
        self._falls, self._weight = falls, weight

    def __ge__(self, accepted: float) -> bool:
        self._weight.append(1 - accepted if self._falls else accepted)
        return self._falls


class Laws(scores.TorchScores):
    """Gives the distribution itself where the product would draw from it."""

    def sample(self, requests):
        return [self._law(request) for request in requests]

    def _law(self, request):
        shaped = self._shape(request.rows, request.params, request.masks, request.emitted)
        return [scores.target_probs(shaped, request.params)[0].numpy()]

    def sample_residual(self, row, draft_probs, params, key, position, mask=None, emitted=None):
        shaped = self._shape([row], params, mask and [mask], emitted and [emitted])
        return scores.residual(scores.target_probs(shaped, params)[0], draft_probs).numpy()


def largest_error(world: World, wire: bool = False) -> float:
    """How far the law of one round, continued by the target alone, is from the target's law at most."""
    joint = np.zeros_like(world.law())
    for text in product(range(world.vocab), repeat=world.length):
        sources = [world.draft[text[:size]] for size in range(len(text))]
        chance = float(np.prod([_prob(source, id) for source, id in zip(sources, text)]))
        if chance:
            tokens = tuple(DraftToken(id, 1.0, source) for id, source in zip(text, sources))
            _add_rounds(world, _travelled(tokens) if wire else tokens, chance, joint)
    return float(np.abs(joint - world.law()).max())


def _prob(source: SparseDistribution, id: int) -> float:
    return source.probs[source.ids.index(id)] / sum(source.probs) if id in source.ids else 0.0


def _travelled(tokens: tuple[DraftToken, ...]) -> tuple[DraftToken, ...]:
    """As they come out of the wire: probabilities in float32."""
    draft = codec.decode_client(codec.encode_client(Draft(1, DraftBlock(9, tokens))))
    assert isinstance(draft, Draft)
    return draft.block.tokens


def _add_rounds(world: World, tokens, chance: float, joint: np.ndarray) -> None:
    emitted = TokenCounts().along([token.id for token in tokens]) if world.params.penalizes else None
    question = DraftCheck(tokens, 9, world.params, KEY, emitted=emitted)
    rows = Laws(world.rows(question.ids))
    seen = set()
    for fates in product([False, True], repeat=len(tokens)):
        weight: list[float] = []
        coins = iter([Coin(falls, weight) for falls in fates])
        with mock.patch.object(ratio, "uniform", lambda key, position: next(coins)):  # noqa: B023
            count, after, *_ = decide_alone(ratio.Ratio(secret=b"s" * 32), question, rows)
        if fates[: len(weight)] in seen:  # the coins after the first that falls are not thrown
            continue
        seen.add(fates[: len(weight)])
        for token in range(world.vocab):
            text = (*question.ids[:count], token)
            _continue(world, text, chance * float(np.prod(weight)) * after[token], joint)


def _continue(world: World, text: tuple[int, ...], chance: float, joint: np.ndarray) -> None:
    if chance == 0:
        return
    if len(text) == joint.ndim:
        joint[text] += chance
        return
    for token, prob in enumerate(world.probs(text)):
        _continue(world, (*text, token), chance * prob, joint)
