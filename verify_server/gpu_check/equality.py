"""Answers of a target on a GPU, judged by the same weights on the processor with transformers' own attention.

A GPU rounds otherwise, so at a near tie it may choose the other token. Every token that it wrote must be the
processor's choice after the same text, or have a logit that lies within rounding of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from verify_server.engine.base import Segment
from verify_server.engine.torch.backend_check import TOLERANCE
from verify_server.engine.torch.selftest import attending_by
from verify_server.engine.torch.torch_engine import TorchEngine

TOKENS = 32  # of an answer
TOGETHER = 16  # answers in a step
PROMPTS = (4, 200)  # tokens, at least and at most
CHUNK = 48  # rows of a prompt in a step, at most
# Both logits of a near tie may be off by as much as the self-test allows in the mean, and a few times that at worst.
SPREADS = 4


class Equality(NamedTuple):
    """What a comparison found."""

    answers: int
    tokens: int
    flips: int  # tokens that the processor would have chosen otherwise, at a near tie
    worst: float  # how far such a logit lay below the best, in spreads of the logits
    allowed: float  # likewise
    wrong: int  # tokens beyond that

    @property
    def holds(self) -> bool:
        return self.wrong == 0


class Text:
    """A prompt, and the answer that grows behind it."""

    def __init__(self, prompt: Sequence[int], blocks: Sequence[int]) -> None:
        self.tokens, self.prompt, self.blocks = list(prompt), len(prompt), tuple(blocks)
        self.held = 0  # tokens in KV

    @property
    def is_done(self) -> bool:
        return len(self.tokens) - self.prompt >= TOKENS

    def segment(self, most: int) -> Segment:
        """The next rows to compute; of the last token's the logits are wanted."""
        end = min(len(self.tokens), self.held + most)
        return Segment(
            tuple(self.tokens[self.held : end]), self.held, self.blocks, int(end == len(self.tokens))
        )


def answers(engine: TorchEngine, count: int, seed: int = 0) -> Iterator[Text]:
    """Greedy answers to random prompts, computed together in steps of many shapes."""
    draw = random.Random(seed)
    size = -(-(PROMPTS[1] + TOKENS) // engine.info.block_size)
    together = max(1, min(TOGETHER, engine.info.num_blocks // size))
    for first in range(0, count, together):
        texts = [
            Text(
                draw.choices(range(engine.info.vocab_size), k=draw.randint(*PROMPTS)),
                range(place * size, (place + 1) * size),
            )
            for place in range(min(together, count - first))
        ]
        _write(engine, texts, draw)
        yield from texts


def _write(engine: TorchEngine, texts: Sequence[Text], draw: random.Random) -> None:
    while waiting := [text for text in texts if not text.is_done]:
        chosen = draw.sample(waiting, draw.randint(1, len(waiting)))
        segments = [text.segment(draw.randint(1, CHUNK)) for text in chosen]
        best = iter(engine.forward(segments).logits.argmax(-1).tolist())
        for text, segment in zip(chosen, segments):
            text.held += len(segment.tokens)
            if segment.rows:
                text.tokens.append(next(best))


def compare(texts: Iterable[Text], reference: PreTrainedModel, dtype: torch.dtype) -> Iterator[Equality]:
    """Judge answers that were computed in `dtype`; yields what is found up to each."""
    found = Equality(0, 0, 0, 0.0, SPREADS * TOLERANCE[dtype], 0)
    with attending_by(reference, "eager"):
        for text in texts:
            gaps = _gaps(reference, text)
            flips = gaps > 0
            wrong = int((gaps > found.allowed).sum())
            worst = max(found.worst, float(gaps.max()))
            found = Equality(
                found.answers + 1,
                found.tokens + len(gaps),
                found.flips + int(flips.sum()) - wrong,
                worst,
                found.allowed,
                found.wrong + wrong,
            )
            yield found


@torch.inference_mode()
def _gaps(reference: PreTrainedModel, text: Text) -> Tensor:
    """[answer] how far the logit of each token of the answer lies below the best, in spreads of the logits."""
    logits = reference(input_ids=torch.tensor([text.tokens[:-1]]), use_cache=False).logits[0].double()
    rows = logits[text.prompt - 1 :]
    chosen = torch.tensor(text.tokens[text.prompt :])[:, None]
    return (rows.amax(-1) - rows.gather(1, chosen)[:, 0]) / rows.std(-1)
