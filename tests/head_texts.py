"""Texts on which small draft heads are trained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from lab.training.heads.pupil import Pupil, new_pupil
from lab.training.heads.windows import TOP, Shard, Window, save_shard
from tests.lab.micro_llama import micro_llama
from verify_server.drafting.heads.collapse import best_chain, best_trie

VOCABULARY, END, LENGTH = 90, 7, 4
CYCLE = (11, 30, 12, 55, 41, 80, 23)


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return micro_llama(VOCABULARY, END, hidden=32, layers=3, heads=4)


@torch.no_grad()
def states_of(target: LlamaForCausalLM, ids: list[int]) -> np.ndarray:
    states = target.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.stack([states[tap][0] for tap in (0, 1, 2, 3)], dim=1).half().numpy()


def window(target: LlamaForCausalLM, ids: list[int], given: int = 0) -> Window:
    """Of a text that the target is sure of, behind the first `given` tokens."""
    top_ids, log_probs = np.zeros((len(ids), TOP), np.int32), np.full((len(ids), TOP), -np.inf, np.float16)
    top_ids[:-1, 0], log_probs[:-1, 0] = ids[1:], 0
    own = np.arange(len(ids)) >= given
    return Window(0, np.array(ids, np.int32), own, states_of(target, ids), top_ids, log_probs)


def around(phase: int, count: int = 32) -> list[int]:
    return [CYCLE[(phase + place) % len(CYCLE)] for place in range(count)]


def pupil_of(target: LlamaForCausalLM, kind: str, length: int = LENGTH) -> Pupil:
    torch.manual_seed(1)
    return new_pupil(target, kind, np.sort(np.array(CYCLE)), length)


def saved(target: LlamaForCausalLM, folder: Path) -> list[Path]:
    """Three shards of two texts each."""
    paths = [folder / f"{number}.npz" for number in range(3)]
    for phase, path in enumerate(paths):
        texts = [window(target, around(phase)), window(target, around(phase + 3))]
        save_shard(Shard((0, 1, 2, 3), texts), path)
    return paths


def heldout(target: LlamaForCausalLM, kind: str = "specformer") -> list[Window]:
    """Other lengths and beginnings of the cycle."""
    found = [window(target, around(phase, 26)) for phase in (2, 6)]
    return [replace(each, hidden=each.hidden[:, 0 if kind == "specformer" else -1 :]) for each in found]


@torch.inference_mode()
def drafts(pupil: Pupil, held: Window, rows: np.ndarray) -> list[list[int]]:
    """Greedy ones from each row, as ids of the target."""
    found = pupil.log_probs(pupil.batch([held], [rows])).numpy()
    if pupil.head.shape.kind == "ctc":
        chains = [best_chain(best_trie(frames, len(CYCLE))).ids for frames in found]
    else:
        chains = found.argmax(-1).tolist()
    return [pupil.parts.draft_ids[chain].tolist() for chain in chains]


def collapse(path: Sequence[int], blank: int) -> list[int]:
    """The text of a path of frames: [7, 7, b, 7, 3, 3] is [7, 7, 3]."""
    before = [blank, *path[:-1]]
    return [id for id, previous in zip(path, before) if id not in (blank, previous)]
