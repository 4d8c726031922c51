"""How much of a draft stands along held-out texts of its target: by position, and in tokens a round.

The target writes every text with the noise that a device and its server share, so at each position the draft's token
either is the target's or is not; the tokens of a draft that stand are those before the first miss.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from lab.training.decoding import Choice, generate, greedy, noisy_draft, noisy_target, proposals

TEMPERATURES = (0.0, 0.8)
AT_ONCE = 12  # texts in one pass

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Texts:
    """What a target wrote at one temperature; a text's number is the seed of its noise."""

    temperature: float
    prompts: list[list[int]]
    written: list[list[int]]


@dataclass(frozen=True)
class Accepted:
    """Along the texts of one temperature. Row t is of text t."""

    temperature: float
    rounds: Counts  # [texts]
    tokens: Counts  # [texts], that a target would write in them: what stands, and one of its own
    tried: Counts  # [texts, length]: drafts whose tokens before place i stood
    stood: Counts  # [texts, length]: of them, those whose token i stood

    @property
    def tokens_per_round(self) -> float:
        return float(self.tokens.sum() / max(1.0, self.rounds.sum()))

    @property
    def acceptance(self) -> float:
        """Share of the draft tokens that were tried and stood, all places alike."""
        return float(self.stood.sum() / max(1.0, self.tried.sum()))

    @property
    def by_position(self) -> list[float]:
        return [float(share) for share in self.stood.sum(0) / np.maximum(1.0, self.tried.sum(0))]

    def facts(self) -> dict[str, object]:
        return {
            "temperature": self.temperature,
            "texts": len(self.rounds),
            "tokens": int(self.tokens.sum()),
            "acceptance": round(self.acceptance, 4),
            "tokens_per_round": round(self.tokens_per_round, 4),
            "by_position": [round(share, 4) for share in self.by_position],
        }


def write_texts(
    target: PreTrainedModel, prompts: Sequence[list[int]], most: int, ends: frozenset[int]
) -> list[Texts]:
    """The target's answers of `most` tokens at most, at each temperature."""
    found = []
    for temperature in TEMPERATURES:
        choose = noisy_target(temperature) if temperature else greedy
        written = [
            text
            for first in range(0, len(prompts), AT_ONCE)
            for text in generate(
                target, prompts[first : first + AT_ONCE], most, _numbered(choose, first), ends
            )
        ]
        found.append(Texts(temperature, list(prompts), written))
    return found


def accepted(draft: PreTrainedModel, texts: Texts, length: int) -> Accepted:
    """With drafts of `length` tokens, of which the last ones of a text are cut where it ends."""
    choose = noisy_draft(texts.temperature) if texts.temperature else greedy
    proposed = [
        own
        for first in range(0, len(texts.prompts), AT_ONCE)
        for own in proposals(
            draft,
            texts.prompts[first : first + AT_ONCE],
            texts.written[first : first + AT_ONCE],
            _numbered(choose, first),
        )
    ]
    walks = [walked(own, text, length) for own, text in zip(proposed, texts.written, strict=True)]
    rounds, tokens, tried, stood = (np.array(column, float) for column in zip(*walks, strict=True))
    return Accepted(texts.temperature, rounds, tokens, tried, stood)


def _numbered(choose: Choice, first: int) -> Choice:
    """For a part of the texts, which begins with number `first`."""
    return lambda row, position, logits: choose(first + row, position, logits)


def walked(
    proposed: Sequence[int], text: Sequence[int], length: int
) -> tuple[int, int, list[int], list[int]]:
    """Rounds, tokens, and by place in the draft how often it was tried and stood."""
    place, rounds = 0, 0
    tried, stood = [0] * length, [0] * length
    while place < len(text):
        rounds += 1
        for index in range(length):
            if place >= len(text):
                break
            tried[index] += 1
            right = proposed[place] == text[place]
            stood[index] += right
            if not right:
                break
            place += 1
        place += 1  # the target's own token
    return rounds, len(text), tried, stood
