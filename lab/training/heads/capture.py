"""Texts that a target writes itself, and its hidden states along them.

A text is written by the decoder of lab/training/distil, many at once. Then one more pass over whole texts gives
the hidden states, which are kept in windows. Shards are of bounded size: a run that is stopped loses the texts that it
was at, and goes on behind its last shard.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from lab.training.distil.self_prompts import Script
from lab.training.distil.self_text import GIVEN, SelfTextWriter, Text
from lab.training.distil.target_model import load_target, working_dtype
from lab.training.heads.pupil import default_taps
from lab.training.heads.windows import TOP, Shard, Window, save_shard, shards, written
from opensled.core.errors import UnsupportedModel
from opensled.models.store import model_file
from verify_server.drafting.heads.context import WINDOW
from verify_server.text.gguf_text import GgufText

SHARD_ROWS = 16_384  # 75 MB of four taps of 576
BATCH_TOKENS = 2560  # padded
LARGEST = 65_504.0  # in float16
MAX_IDS = 1 << 16  # a text keeps its likeliest ids in 16 bits


@dataclass(frozen=True)
class Source:
    """A target, and what it computes in."""

    name: str
    network: LlamaForCausalLM  # in float32
    text: GgufText
    dtype: torch.dtype

    @property
    def taps(self) -> tuple[int, ...]:
        return default_taps(self.network.config.num_hidden_layers)


def load_source(name: str) -> Source:
    """Raises NotFound and UnsupportedModel."""
    path = model_file(name, "*.gguf")
    network = load_target(path)
    if not network.config.tie_word_embeddings:
        raise UnsupportedModel(f"{name} has an output layer of its own; texts are written for tied ones only")
    if (size := network.config.vocab_size) > MAX_IDS:
        raise UnsupportedModel(f"{name} has {size:,} ids; texts are written for {MAX_IDS:,} at most")
    return Source(name, network, GgufText(path), working_dtype())


def writer_of(source: Source, scripts: Iterator[Script], rows: int, length: int, seed: int) -> SelfTextWriter:
    """`rows` texts at once, each of `length` tokens at most."""
    return SelfTextWriter(source.network, scripts, rows, length, seed, source.dtype)


def capture(source: Source, writer: SelfTextWriter, folder: Path, positions: float = math.inf) -> None:
    """Append shards to `folder` until they hold `positions` tokens that the target wrote, or the texts end."""
    folder.mkdir(parents=True, exist_ok=True)
    held, new, started = sum(map(written, shards(folder))), 0, time.monotonic()
    batches = _batches(writer.texts())
    while held + new < positions and (texts := next(batches, None)):
        windows = [window for group in _groups(texts) for window in _windows(source, group)]
        save_shard(Shard(source.taps, windows), folder / f"{len(shards(folder)):05}.npz")
        new += sum(text.written for text in texts)
        rate = new / (time.monotonic() - started)
        print(f"{folder.name}: {held + new:,} positions, {rate:.0f}/s", flush=True)


def _batches(texts: Iterator[Text]) -> Iterator[list[Text]]:
    """Of about SHARD_ROWS tokens."""
    batch: list[Text] = []
    for text in texts:
        batch.append(text)
        if sum(len(each.ids) for each in batch) >= SHARD_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _groups(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Texts of like lengths, as many as a pass takes."""
    group: list[Text] = []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        if group and (len(group) + 1) * len(text.ids) > BATCH_TOKENS:
            yield group
            group = []
        group.append(text)
    yield group


def _windows(source: Source, texts: list[Text]) -> Iterator[Window]:
    for text, hidden in zip(texts, _hidden(source, texts)):
        own = np.array(text.roles) != GIVEN
        top_ids, top_log_probs = _likeliest(text, own)
        for first in range(0, len(own), WINDOW):
            rows = slice(first, min(first + WINDOW, len(own)))
            ids = np.array(text.ids[rows], np.int32)
            yield Window(first, ids, own[rows], hidden[rows], top_ids[rows], top_log_probs[rows])


@torch.inference_mode()
def _hidden(source: Source, texts: list[Text]) -> np.ndarray:
    """float16 [texts, longest, taps, d]; padding stands behind a text, where nothing sees it."""
    longest = max(len(text.ids) for text in texts)
    ids = torch.tensor([text.ids + [0] * (longest - len(text.ids)) for text in texts])
    with torch.autocast("cpu", source.dtype, enabled=source.dtype != torch.float32):
        states = source.network.model(ids, use_cache=False, output_hidden_states=True).hidden_states
    tapped = torch.stack([states[tap] for tap in source.taps], dim=2).float()
    found: np.ndarray = tapped.clamp(-LARGEST, LARGEST).half().numpy()
    return found


def _likeliest(text: Text, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n, TOP] ids and log-probabilities after each row, as they were when the text was written."""
    ids = np.zeros((len(own), TOP), np.int32)
    log_probs = np.full((len(own), TOP), -np.inf, np.float16)
    before = np.flatnonzero(own) - 1
    ids[before], log_probs[before] = np.stack(text.top_ids)[:, :TOP], np.stack(text.top_log_probs)[:, :TOP]
    return ids, log_probs
