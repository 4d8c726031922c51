"""How often a draft is right along texts of the target.

The acceptance rate here is per position: along the target's own text, the share of positions at which the draft, given
the same prefix, has the target's token as its likeliest (`agreement`, of greedy texts), and the mean of what both
distributions share, 1 - TV (`overlap`), which bounds what any rule without loss accepts at temperature 1.
`noisy_agreement` is of texts that are drawn with shared noise.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import LlamaForCausalLM

from lab.training.distil.shard_batches import TextBatch, batch_of, read_shard
from opensled.core.noise import gumbel, noise_key

TEXTS = 6  # at once


@dataclass(frozen=True)
class Agreement:
    """Shares between 0 and 1, by kind of text and over them; every kind weighs alike."""

    by_kind: dict[str, float]
    overlap: float  # 1 - TV at temperature 1, all positions alike

    @property
    def mean(self) -> float:
        return fmean(self.by_kind.values())


Answers = Callable[
    [TextBatch], Tensor
]  # a draft's logits at the positions that are the assistant's, [N, vocabulary]


@torch.inference_mode()
def agreement(answers: Answers, shard: Path) -> Agreement:
    """Along the texts of a shard, at the positions that the target answered."""
    right: dict[str, list[float]] = defaultdict(list)
    shared: list[float] = []
    texts = sorted(read_shard(shard), key=lambda text: len(text.ids))
    for begin in range(0, len(texts), TEXTS):
        batch = batch_of(texts[begin : begin + TEXTS])
        logits = answers(batch)
        hits = (logits.argmax(-1) == batch.aims.ids[batch.answers, 0]).float()
        rows = batch.asked.nonzero()[batch.answers, 0]
        for row, kind in enumerate(batch.kinds):
            right[kind] += hits[rows == row].tolist()
        shared += _overlaps(logits, batch)
    return Agreement({kind: fmean(hits) for kind, hits in sorted(right.items())}, fmean(shared))


@torch.inference_mode()
def noisy_agreement(target: Answers, other: Answers, shard: Path, temperature: float) -> dict[str, float]:
    """By kind of text, along a shard: the share of positions at which both models draw the same token.

    Both draw over the whole vocabulary with the same noise, as a target and the model of a relay before it do.
    """
    same: dict[str, list[bool]] = defaultdict(list)
    for number, text in enumerate(read_shard(shard)):
        batch, key = batch_of([text]), noise_key(number)
        places = (batch.asked.nonzero()[batch.answers, 1] + 1).tolist()
        both = [answers(batch).double().numpy() / temperature for answers in (target, other)]
        for position, one, another in zip(places, *both, strict=True):
            noise = gumbel(key, position, np.arange(len(one)))
            same[text.kind].append((one + noise).argmax() == (another + noise).argmax())
    return {kind: fmean(hits) for kind, hits in sorted(same.items())}


def of_model(draft: LlamaForCausalLM) -> Answers:
    def answers(batch: TextBatch) -> Tensor:
        hidden = draft.model(batch.ids, use_cache=False).last_hidden_state[batch.asked][batch.answers]
        return linear(hidden, draft.model.embed_tokens.weight)

    return answers


def of_graph(path: Path, threads: int) -> Answers:
    """Of an ONNX graph of the onnxruntime-genai builder, text by text."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model = json.loads((path.parent / "genai_config.json").read_text())["model"]["decoder"]
    empty = np.zeros((1, model["num_key_value_heads"], 0, model["head_size"]), np.float32)
    past = {each.name: empty for each in session.get_inputs() if each.name.startswith("past_key_values.")}

    def answers(batch: TextBatch) -> Tensor:
        rows = []
        for ids in batch.ids:
            feeds = {"input_ids": ids[None].numpy(), "attention_mask": np.ones((1, len(ids)), np.int64)}
            rows.append(torch.from_numpy(session.run(["logits"], {**feeds, **past})[0][0]))
        return torch.stack(rows)[batch.asked][batch.answers]

    return answers


def _overlaps(logits: Tensor, batch: TextBatch) -> list[float]:
    wanted = batch.aims.log_probs[batch.answers].exp()
    own = logits.log_softmax(-1).gather(1, batch.aims.ids[batch.answers]).exp()
    rest = torch.minimum(1 - wanted.sum(-1), 1 - own.sum(-1)).clamp_min(0)
    overlaps: list[float] = (torch.minimum(wanted, own).sum(-1) + rest).tolist()
    return overlaps
