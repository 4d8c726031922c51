"""What the target answers to the held-out prompts, greedily and at temperature 0.8: what the learning curve is of."""

import json
from collections.abc import Iterator
from pathlib import Path

from transformers import LlamaForCausalLM

from lab.training.distil.self_prompts import Frame, Given, Script, Written
from lab.training.distil.self_text import SelfTextWriter, save_shard
from opensled.core.messages import ChatMessage

PROMPTS = Path(__file__).with_name("heldout_prompts.json")
TOKENS = 128  # of an answer, at most
LENGTH = 512  # of a text
SEED = 5


def heldout_prompts() -> dict[str, list[str]]:
    """Prompts by kind of text."""
    document = json.loads(PROMPTS.read_text())
    return {kind: prompts for kind, prompts in document.items() if kind != "about"}


def write_heldout_texts(target: LlamaForCausalLM, frame: Frame, folder: Path) -> None:
    """A shard for each temperature, `greedy.npz` and `sampled.npz`; the same texts each time."""
    for name, temperature in (("greedy", 0.0), ("sampled", 0.8)):
        scripts = list(_scripts(frame, temperature))
        writer = SelfTextWriter(target, iter(scripts), len(scripts), LENGTH, SEED)
        texts = sorted(writer.texts(), key=lambda text: (text.kind, text.ids))
        assert len(texts) == len(scripts), "a held-out prompt is too long"
        save_shard(texts, folder / f"{name}.npz")


def _scripts(frame: Frame, temperature: float) -> Iterator[Script]:
    for kind, prompts in heldout_prompts().items():
        for prompt in prompts:
            asked = Given(frame.text.render([ChatMessage("user", prompt)]))
            yield Script(kind, (asked, Written(TOKENS, temperature, answer=True)))
