"""How often an exit says what tiny-vision says, by what it sees of the picture. Computed, without servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, LlavaForConditionalGeneration

from ..train_tokenizer import END, load_tokenizer
from .evaluate import load
from .questions import Question
from .rows import ASSISTANT_ID, OPENING
from .scenes import Scene, pixels
from .tokens import IMAGE_ID

MOST = 64  # tokens of an answer


@torch.inference_mode()
def by_sight(target: Path, exit_folder: Path, asked: Sequence[tuple[Scene, Question]]) -> dict[str, float]:
    """The share of the answers' tokens at which the exit's greedy guess is the target's token.

    `features`: the exit reads the rows that the target reads; `int8`: the same with 8 bits and a scale for each row,
    as a server could send them down; `text`: it is told of no picture.
    """
    whole, tokenizer = load(target), load_tokenizer(target)
    draft = LlamaForCausalLM.from_pretrained(exit_folder, dtype=torch.float32).eval()
    right, total = {"features": 0, "int8": 0, "text": 0}, 0
    for scene, question in asked:
        prompt = [*OPENING, *tokenizer(question.text + END)["input_ids"], ASSISTANT_ID]
        shown = torch.from_numpy(pixels(scene.image))[None]
        answer = _answer(whole, prompt, shown)
        rows = whole.get_image_features(pixel_values=shown).pooler_output[0]
        for name, seen in {"features": rows, "int8": _in_8_bits(rows), "text": None}.items():
            guesses = _guesses(draft, prompt, answer, seen)
            right[name] += sum(guess == token for guess, token in zip(guesses, answer, strict=True))
        total += len(answer)
    return {name: round(count / total, 4) for name, count in right.items()}


def _answer(whole: LlavaForConditionalGeneration, prompt: list[int], shown: Tensor) -> list[int]:
    ids = torch.tensor([prompt])
    written = whole.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=shown,
        max_new_tokens=MOST,
        do_sample=False,
    )
    found: list[int] = written[0, len(prompt) :].tolist()
    return found


def _guesses(draft: LlamaForCausalLM, prompt: list[int], answer: list[int], rows: Tensor | None) -> list[int]:
    """What the draft says at the place of each of the answer's tokens."""
    if rows is None:
        prompt = [token for token in prompt if token != IMAGE_ID]
    ids = torch.tensor([[*prompt, *answer[:-1]]])
    embedded = draft.get_input_embeddings()(ids).clone()
    if rows is not None:
        embedded[0, ids[0] == IMAGE_ID] = rows
    logits = draft(inputs_embeds=embedded, use_cache=False).logits[0, len(prompt) - 1 :]
    found: list[int] = logits.argmax(-1).tolist()
    return found


def _in_8_bits(rows: Tensor) -> Tensor:
    """[n, size] through signed bytes and a scale for each row."""
    scale = rows.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 127
    return (rows / scale).round().clamp(-127, 127) * scale
