"""Text that the target writes itself, with its most likely tokens at every position that it wrote.

A stream of texts over the rows of a RowDecoder: a row whose text has ended takes the next script. Texts are kept in
shards, and a run that is stopped loses what it has not kept yet.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lab.training.distil.row_decoder import RowDecoder
from lab.training.distil.self_prompts import Given, Script, Written

TOP = 64  # most likely tokens that are kept of every distribution
GIVEN, QUESTION, ANSWER = range(3)  # who wrote a token
SHARD_TOKENS = 25_000  # written ones
SORT_STEPS = 64  # between two sortings of the rows


@dataclass
class Text:
    """A text and what is known of it: for every written token a row of TOP, and the target's last hidden state."""

    kind: str
    ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    top_ids: list[np.ndarray] = field(default_factory=list)
    top_log_probs: list[np.ndarray] = field(default_factory=list)
    features: list[np.ndarray] = field(default_factory=list)  # float16, after the last norm

    @property
    def written(self) -> int:
        return len(self.top_ids)


class _Row:
    """A text on its way through its script. `next_id` is what the decoder reads next."""

    def __init__(self, script: Script) -> None:
        self.text = Text(script.kind)
        self._parts = list(script.parts)
        self._given: list[int] = []
        self.turn: Written | None = None
        self._left = 0
        self._begin_part()

    @property
    def position(self) -> int:
        return len(self.text.ids) - 1

    @property
    def writes(self) -> bool:
        """Whether its next token is the target's to choose."""
        return not self._given and self.turn is not None

    @property
    def ended(self) -> bool:
        return not self._given and self.turn is None

    def read(self) -> None:
        """Take the next given token."""
        self._append(self._given.pop(0), GIVEN)
        if not self._given:
            self._begin_part()

    def write(self, token: int, ends: bool) -> None:
        """Take the token that the target chose."""
        assert self.turn is not None
        self._append(token, ANSWER if self.turn.answer else QUESTION)
        self._left -= 1
        if ends or not self._left:
            self._begin_part(cut=not ends)

    def _append(self, token: int, role: int) -> None:
        self.text.ids.append(token)
        self.text.roles.append(role)

    def _begin_part(self, cut: bool = True) -> None:
        """`cut`: the turn before it has no end yet; the given part that follows begins with it."""
        self.turn = None
        while self._parts and self.turn is None and not self._given:
            part = self._parts.pop(0)
            if isinstance(part, Given):
                self._given = list(part.ids if cut else part.ids[1:])
            else:
                self.turn, self._left = part, part.most


class SelfTextWriter:
    """Texts of a target by `scripts`; `rows` at once, of `length` tokens at most. Longer scripts are left out."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        scripts: Iterator[Script],
        rows: int,
        length: int,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._decoder = RowDecoder(model, rows, length, dtype)
        self._scripts = (script for script in scripts if script.most <= length)
        self._eos = ends(model)
        self._generator = torch.Generator().manual_seed(seed)
        self._rows = [self._fresh() for _ in range(rows)]

    def texts(self) -> Iterator[Text]:
        """As they end, until the scripts do."""
        for step in itertools.count():
            if step % SORT_STEPS == 0:
                self._sort()
            for number, row in enumerate(self._rows):
                if row and row.ended:
                    yield row.text
                    self._rows[number] = self._fresh()
            if not any(self._rows):
                return
            self._step()

    def _sort(self) -> None:
        """Texts of like lengths side by side."""
        order = sorted(range(len(self._rows)), key=lambda number: _length(self._rows[number]))
        self._rows = [self._rows[number] for number in order]
        self._decoder.reorder(torch.tensor(order))

    def _fresh(self) -> _Row | None:
        """None: there is no script left."""
        script = next(self._scripts, None)
        if script is None:
            return None
        row = _Row(script)
        row.read()
        return row

    def _step(self) -> None:
        """A row without a text reads token 0 in vain."""
        places = [(row.text.ids[-1], row.position) if row else (0, 0) for row in self._rows]
        tokens, positions = torch.tensor(places).unbind(1)
        hidden = self._decoder.advance(tokens, positions)
        writing = [number for number, row in enumerate(self._rows) if row and row.writes]
        if writing:
            self._write([row for row in self._rows if row and row.writes], hidden[writing])
        for number in set(range(len(self._rows))).difference(writing):
            if row := self._rows[number]:
                row.read()

    @torch.inference_mode()
    def _write(self, rows: list[_Row], hidden: Tensor) -> None:
        likely, log_probs = self._decoder.likeliest(hidden, TOP)
        picked = self._sampled(log_probs, [row.turn.temperature for row in rows if row.turn])
        chosen = likely.gather(1, picked[:, None])[:, 0].tolist()
        ids, kept = likely.to(torch.int32).numpy().astype(np.uint16), log_probs.half().numpy()
        features = hidden.half().numpy()
        for number, row in enumerate(rows):
            row.text.top_ids.append(ids[number])
            row.text.top_log_probs.append(kept[number])
            row.text.features.append(features[number])
            row.write(chosen[number], chosen[number] in self._eos)

    def _sampled(self, log_probs: Tensor, temperatures: list[float]) -> Tensor:
        """Columns [rows]: at temperature 0 the first, else drawn among the TOP."""
        scale = torch.tensor(temperatures)[:, None]
        weights = (log_probs / scale.clamp_min(1e-6)).softmax(-1)
        drawn = torch.multinomial(weights, 1, generator=self._generator)
        return torch.where(scale > 0, drawn, torch.zeros_like(drawn))[:, 0]


def _length(row: _Row | None) -> int:
    return len(row.text.ids) if row else 0


def ends(model: LlamaForCausalLM) -> frozenset[int]:
    """The ids that end a turn."""
    ids = model.config.eos_token_id
    return frozenset(ids if isinstance(ids, list) else [ids])


def write_shards(writer: SelfTextWriter, folder: Path, name: str, tokens: int) -> None:
    """Write at least `tokens` more tokens in shards `NAME-NUMBER.npz` of `folder`, after those that are there."""
    number, total = len(list(folder.glob(f"{name}-*.npz"))), 0
    batch: list[Text] = []
    started = time.monotonic()
    for text in writer.texts():
        batch.append(text)
        if (written := sum(each.written for each in batch)) < min(SHARD_TOKENS, tokens - total):
            continue
        save_shard(batch, folder / f"{name}-{number:05}.npz")
        total, number, batch = total + written, number + 1, []
        print(f"{name} {number}: {total:,} tokens, {total / (time.monotonic() - started):.0f}/s", flush=True)
        if total >= tokens:
            return


def save_shard(texts: list[Text], path: Path) -> None:
    """Written beside and moved, so that a shard is never there in part."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(
            file,
            kinds=np.array([text.kind for text in texts]),
            lengths=np.array([len(text.ids) for text in texts], np.int32),
            ids=np.concatenate([np.array(text.ids, np.uint16) for text in texts]),
            roles=np.concatenate([np.array(text.roles, np.uint8) for text in texts]),
            top_ids=np.concatenate([np.stack(text.top_ids) for text in texts]),
            top_log_probs=np.concatenate([np.stack(text.top_log_probs) for text in texts]),
            features=np.concatenate([np.stack(text.features) for text in texts]),
        )
    part.replace(path)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))
