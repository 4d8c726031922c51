"""What a target writes behind a text: many sampled answers at once, and what it makes of one token.

All answers of a call share the memory of the text before them. It computes in float32, by the decoder of
lab/training/distil.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from lab.training.distil.row_decoder import RowDecoder
from lab.training.distil.self_text import TOP, ends
from opensled.core.protocol import common_prefix

TEMPERATURE = 0.7  # of rollouts, as in PAD
MAX_POSITIONS = 8192  # of a prompt and its answer
SPARSE = 0.75  # share of rows still writing, below which the others' memory is given up


class TokenFacts(NamedTuple):
    """What a classifier sees of a token."""

    state: np.ndarray  # float32 [size], of the kept layer, after the token
    entropy: float  # nats, of the raw distribution before it
    prob: float  # its own in that distribution


@dataclass(frozen=True)
class Continuations:
    """What follows one token: ids up to and with the end token, if it came."""

    greedy: list[int]
    sampled: list[list[int]]


class Writer(Protocol):
    """A target, as the labeller knows it."""

    ends: frozenset[int]

    def facts(self, before: Sequence[int], token: int) -> TokenFacts:
        """Of `token` behind the text `before`."""

    def continuations(
        self, before: Sequence[int], starts: Sequence[int], most: int, seed: int
    ) -> list[Continuations]:
        """Of at most `most` tokens, behind `before` and each of `starts`."""


class TargetWriter:
    """`rollouts` sampled answers behind each start; `layer` as transformers number `output_hidden_states`."""

    def __init__(self, network: LlamaForCausalLM, layer: int, rollouts: int) -> None:
        self._network, self._layer, self._rollouts = network, layer, rollouts
        self._decoder = RowDecoder(network, 1, min(MAX_POSITIONS, network.config.max_position_embeddings))
        self._cache, self._read_ids = DynamicCache(config=network.config), list[int]()
        self.ends = ends(network)

    def facts(self, before: Sequence[int], token: int) -> TokenFacts:
        """See `Writer`."""
        logits, _ = self._read(before)
        log_probs = logits.log_softmax(-1)
        _, state = self._read([*before, token])
        entropy = -(log_probs.exp() * log_probs).sum()
        return TokenFacts(state.numpy(), float(entropy), float(log_probs[token].exp()))

    @torch.inference_mode()
    def continuations(
        self, before: Sequence[int], starts: Sequence[int], most: int, seed: int
    ) -> list[Continuations]:
        """See `Writer`. Answer r behind each start is drawn with the same noise at the same place.

        What differs between starts is then their doing and not chance, as far as it can be.
        """
        group = 1 + self._rollouts
        self._remember(before, len(starts) * group, most)
        tokens = torch.tensor(starts).repeat_interleave(group)
        rows = _Rows(tokens, group, most, self.ends)
        generator = torch.Generator().manual_seed(seed)
        for step in range(most):
            hidden = self._decoder.advance(rows.newest(), torch.full((len(rows.alive),), len(before) + step))
            ids, log_probs = self._decoder.likeliest(hidden, TOP)
            rows.write(ids, log_probs, self._noise(group, generator))
            if not rows.writing:
                break
            self._forget(rows)
        return [
            Continuations(first, sampled)
            for first, *sampled in (
                rows.written[begin : begin + group] for begin in range(0, len(tokens), group)
            )
        ]

    @torch.inference_mode()
    def _read(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits [vocabulary] and state [size] after the last of `ids`; reads only what is new."""
        kept = min(common_prefix(self._read_ids, ids), len(ids) - 1)
        if surplus := len(self._read_ids) - kept:
            self._cache.crop(-surplus)
        output = self._network(
            torch.tensor([ids[kept:]]),
            past_key_values=self._cache,
            output_hidden_states=True,
            logits_to_keep=1,
        )
        self._read_ids = list(ids)
        return output.logits[0, -1], output.hidden_states[self._layer][0, -1]

    def _remember(self, before: Sequence[int], rows: int, most: int) -> None:
        """The decoder has `rows` texts that begin with `before`."""
        if self._read_ids[: len(before)] != list(before):
            self._read(before)
        for name in ("keys", "values"):
            memory = torch.stack([getattr(layer, name)[0, :, : len(before)] for layer in self._cache.layers])
            room = torch.zeros(len(memory), rows, memory.shape[1], len(before) + most, memory.shape[-1])
            room[:, :, :, : len(before)] = memory[:, None]
            setattr(self._decoder, name, room)

    def _forget(self, rows: _Rows) -> None:
        """Give up the memory of rows that have ended, where they are many."""
        if len(rows.writing) < SPARSE * len(rows.alive):
            keep = rows.drop()
            self._decoder.keys = self._decoder.keys[:, keep]
            self._decoder.values = self._decoder.values[:, keep]

    def _noise(self, group: int, generator: torch.Generator) -> Tensor:
        """Gumbel noise [group, vocabulary]; none for the greedy row."""
        size = self._network.config.vocab_size
        noise = -torch.empty(group, size).exponential_(generator=generator).log()
        noise[0] = 0.0
        return noise


class _Rows:
    """Answers on their way; `alive` numbers those that the decoder still has a row for."""

    def __init__(self, starts: Tensor, group: int, most: int, ends: frozenset[int]) -> None:
        self.written: list[list[int]] = [[] for _ in starts]
        self.alive, self.writing = list(range(len(starts))), set(range(len(starts)))
        self._newest, self._group, self._ends = starts.tolist(), group, ends

    def newest(self) -> Tensor:
        """What the decoder reads next; behind the end of an answer the end again, in vain."""
        return torch.tensor([self._newest[row] for row in self.alive])

    def write(self, ids: Tensor, log_probs: Tensor, noise: Tensor) -> None:
        """Draw a token of each row [alive] from its likeliest ids; a row without noise takes the likeliest one."""
        drawn_with = noise[[row % self._group for row in self.alive]].gather(1, ids)
        picked = (log_probs / TEMPERATURE + drawn_with).argmax(-1, keepdim=True)
        for row, token in zip(self.alive, ids.gather(1, picked)[:, 0].tolist()):
            if row in self.writing:
                self._take(row, token)

    def _take(self, row: int, token: int) -> None:
        self.written[row].append(token)
        self._newest[row] = token
        if token in self._ends:
            self.writing.discard(row)

    def drop(self) -> list[int]:
        """Leave out the rows that have ended; which of the decoder's rows stay."""
        keep = [place for place, row in enumerate(self.alive) if row in self.writing]
        self.alive = [self.alive[place] for place in keep]
        return keep
