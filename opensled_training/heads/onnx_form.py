"""A trained head in the form that devices load (opensled/drafting/head_form.py): two ONNX graphs in float32.

`read.onnx`: `hidden` [rows, taps, d] at `positions` [rows] to `inputs` [rows, d], `keys` and `values` [rows, KV heads,
head size]. `draft.onnx`: the `inputs` [1, d] of the newest row, which stands at `position` [1], the id `newest` [1] (of
the draft vocabulary) of the token that was decided after it, and the `keys` and `values` of the rows that it sees, to
`outputs` [length, V]: logits, or of frames log-probabilities [length, V + 1], the blank last.

Of a recurrent head, whose `state` and `cell` are [1, width]: `read.onnx` makes them of the `hidden` [1, 1, d] of the
newest row, and `draft.onnx` of them and `newest` [1] the `outputs` [1, V] of one step, `next_state` and `next_cell`.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from opensled.drafting.head_form import DRAFT, PARTS, READ, HeadAbout, write_about
from verify_server.engine.tap import places_of
from verify_server.heads.base import OnePassHead
from verify_server.heads.ctc import BLANK_KIND
from verify_server.heads.head_file import HeadFile
from verify_server.heads.layers import among_themselves
from verify_server.heads.owl import OwlHead, OwlState
from verify_server.heads.target_parts import TargetParts

OPSET = 17
RESULTS = "inputs keys values"  # of reading
ROWS = 16  # of the example that the graphs are traced with; they take any number


def write_onnx(found: HeadFile, network: PreTrainedModel, folder: Path) -> Path:
    """Of a head and its target. Raises UnsupportedModel, and ModuleNotFoundError without package `onnx`."""
    folder.mkdir(parents=True, exist_ok=True)
    head, shape = copy.deepcopy(found.head).float().eval(), found.head.shape
    output = _Output(network, torch.as_tensor(found.draft_ids, dtype=torch.int64))
    by_steps = isinstance(head, OwlHead)
    (_write_steps if by_steps else _write_passes)(head, output, folder)
    markov = head.markov
    bias = {} if markov is None else {"after": markov.after, "towards": markov.towards}
    arrays: dict[str, Any] = {name: weight.detach().numpy() for name, weight in bias.items()}
    np.savez(folder / PARTS, ids=found.draft_ids.astype(np.int64), **arrays)
    has_blank = shape.kind == BLANK_KIND
    about = HeadAbout(
        shape.kind,
        shape.taps,
        shape.size,
        shape.length,
        has_blank,
        by_steps,
        found.target,
        found.vocabulary,
    )
    write_about(folder, about)
    return folder


def _write_steps(head: OwlHead, output: _Output, folder: Path) -> None:
    state, newest = torch.zeros(1, head.shape.inner), torch.zeros(1, dtype=torch.int64)
    hidden = torch.zeros(1, 1, head.shape.size)
    _export(_Beginning(head), (hidden,), folder / READ, "hidden", "state cell", "")
    names = "outputs next_state next_cell"
    _export(_Step(head, output), (state, state, newest), folder / DRAFT, "state cell newest", names, "")


def _write_passes(head: OnePassHead, output: _Output, folder: Path) -> None:
    shape = head.shape
    rows = torch.zeros(ROWS, shape.kv_heads, shape.head_size)
    hidden, positions = torch.zeros(ROWS, len(shape.taps), shape.size), torch.arange(ROWS)
    _export(
        _Reading(head),
        (hidden, positions),
        folder / READ,
        "hidden positions",
        RESULTS,
        f"hidden positions {RESULTS}",
    )
    given = torch.zeros(1, shape.size), torch.zeros(1, dtype=torch.int64), positions[-1:], rows, rows
    names = "inputs newest position keys values"
    _export(_Drafting(head, output), given, folder / DRAFT, names, "outputs", "keys values")


def _export(
    module: nn.Module, example: tuple[Tensor, ...], path: Path, inputs: str, outputs: str, any_rows: str
) -> None:
    """`any_rows`: of inputs and outputs those with any number of rows."""
    with warnings.catch_warnings():
        # The newer exporter needs onnxscript, and makes of these graphs nothing that this one does not.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            module,
            example,
            path,
            dynamo=False,
            input_names=inputs.split(),
            output_names=outputs.split(),
            dynamic_axes={name: {0: "rows"} for name in any_rows.split()},
            opset_version=OPSET,
        )


class _Reading(nn.Module):
    def __init__(self, head: OnePassHead) -> None:
        super().__init__()
        self._head = head

    def forward(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(self._head.read(hidden, positions))


class _Output(nn.Module):
    """The target's embedding, last norm and output layer, cut to a head's ids."""

    def __init__(self, network: PreTrainedModel, ids: Tensor) -> None:
        super().__init__()
        self._norm = copy.deepcopy(places_of(network)[1]).float()
        embedded, rows = _slices(network, ids)
        # [d, V], as the product takes it. Where both are the same matrix, it is in the graph once.
        self._output = nn.Parameter(rows.T.contiguous(), requires_grad=False)
        is_shared = torch.equal(embedded, rows)
        columns = self._output if is_shared else nn.Parameter(embedded.T.contiguous(), requires_grad=False)
        self._embedding = columns

    def embedded(self, ids: Tensor) -> Tensor:
        """[n, d] of ids [n] of the draft vocabulary."""
        return self._embedding.index_select(1, ids).T

    def said(self, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [..., V] of hidden states [..., d], and these as the output layer reads them."""
        normed = self._norm(drafted)
        return normed @ self._output, normed


class _Drafting(nn.Module):
    """A draft behind the newest of the rows, which sees all of them."""

    def __init__(self, head: OnePassHead, output: _Output) -> None:
        super().__init__()
        self._head, self._output = head, output

    def forward(
        self, inputs: Tensor, newest: Tensor, position: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        def attend(queries: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
            seen = keys[None], values[None]
            if own is not None:
                seen = torch.cat([seen[0], own[0]], dim=1), torch.cat([seen[1], own[1]], dim=1)
            return among_themselves(queries, *seen)

        drafted = self._head.draft(inputs, self._output.embedded(newest), position, attend)
        logits, normed = self._output.said(drafted[0])
        if self._head.shape.kind != BLANK_KIND:
            return logits
        with_blank: Tensor = self._head.with_blank(logits, normed)
        return with_blank.log_softmax(-1)


class _Beginning(nn.Module):
    def __init__(self, head: OwlHead) -> None:
        super().__init__()
        self._head = head

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(self._head.begin(hidden[:, 0]))


class _Step(nn.Module):
    def __init__(self, head: OwlHead, output: _Output) -> None:
        super().__init__()
        self._head, self._output = head, output

    def forward(self, state: Tensor, cell: Tensor, newest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self._head.step(OwlState(state, cell), self._output.embedded(newest))
        return self._output.said(self._head.said(found))[0], found.hidden, found.cell


@torch.no_grad()
def _slices(network: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [V, d] each: of the embedding, and of the output layer."""
    parts = TargetParts(network, ids)
    weight = network.get_output_embeddings().weight
    return parts.embedded(parts.draft_ids).float().clone(), weight[parts.draft_ids].float().clone()
