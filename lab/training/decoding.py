"""Batched decoding in plain transformers, and what a draft would have proposed along a given text.

Positions count from 0 at the first prompt token, as everywhere in OpenSLED; the padding on the left does not count.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel

from opensled.core.messages import SamplingParams
from opensled.core.noise import gumbel, noise_key
from opensled.core.sampling import Sampler

from .family import END_ID


class Choice(Protocol):
    """How the token at `position` of sequence `row` follows from its logits."""

    def __call__(self, row: int, position: int, logits: NDArray[np.float32]) -> int: ...


def greedy(row: int, position: int, logits: NDArray[np.float32]) -> int:
    return int(logits.argmax())


def noisy_target(temperature: float) -> Choice:
    """The target's own draw: shared noise over the whole vocabulary; the seed of a sequence is its row."""

    def choose(row: int, position: int, logits: NDArray[np.float32]) -> int:
        noise = gumbel(noise_key(row), position, np.arange(len(logits)))
        return int(np.argmax(logits.astype(np.float64) / temperature + noise))

    return choose


def noisy_draft(temperature: float) -> Choice:
    """The product's draft sampler with the noise of `noisy_target`: over its own likeliest candidates only."""
    params = SamplingParams(temperature=temperature)

    def choose(row: int, position: int, logits: NDArray[np.float32]) -> int:
        return Sampler(params, noise_key(row)).draw(logits, position).id

    return choose


@torch.inference_mode()
def generate(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    max_new: int,
    choose: Choice,
    ends: Collection[int] = (END_ID,),
) -> list[list[int]]:
    """The new ids of each prompt, up to and with the first one of `ends`."""
    tokens, mask = _left_padded(prompts)
    cache = DynamicCache(config=model.config)
    written: list[list[int]] = [[] for _ in prompts]
    for step in range(max_new):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        logits = model(
            tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        ).logits
        rows = logits[:, -1].numpy()
        for row, new in enumerate(written):
            if not new or new[-1] not in ends:
                new.append(choose(row, len(prompts[row]) + step, rows[row]))
        if all(new[-1] in ends for new in written):
            break
        tokens = torch.tensor([[new[-1]] for new in written])
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return written


@torch.inference_mode()
def proposals(
    model: PreTrainedModel, prompts: Sequence[list[int]], written: Sequence[list[int]], choose: Choice
) -> list[list[int]]:
    """What `model` would choose at each position of `written`, given the prompt and the written tokens before it."""
    texts = [prompt + new for prompt, new in zip(prompts, written, strict=True)]
    width = max(map(len, texts))
    # Causal attention: padding on the right is never seen by what stands before it.
    logits = model(torch.tensor([text + [END_ID] * (width - len(text)) for text in texts])).logits.numpy()
    return [
        [choose(row, position, logits[row, position - 1]) for position in range(len(prompts[row]), len(text))]
        for row, text in enumerate(texts)
    ]


def _left_padded(prompts: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask [prompts, longest]."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[END_ID] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return tokens, mask
