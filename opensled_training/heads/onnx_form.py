"""A trained head as an ONNX graph: from the hidden states of a text's newest rows to those of a draft.

Inputs: `hidden` [rows, taps, d] and `positions` [rows] of at most a window of rows (verify_server/heads/context.py),
the newest last; `embedded` [1, d], the target's embedding of the token that was decided after it. Output: `drafted`
[1, length, d], before the target's last norm and output layer. Weights are those of the safetensors file, in float32.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from verify_server.heads.base import DraftHead
from verify_server.heads.layers import among_themselves

GRAPH = "head.onnx"
INPUTS, OUTPUT = ("hidden", "positions", "embedded"), "drafted"
OPSET = 17
ROWS = 16  # of the example that the graph is traced with; it takes any number


def write_onnx(head: DraftHead, folder: Path) -> Path:
    """Raises ModuleNotFoundError without package `onnx`."""
    shape, path = head.shape, folder / GRAPH
    example = torch.zeros(ROWS, len(shape.taps), shape.size), torch.arange(ROWS), torch.zeros(1, shape.size)
    any_rows = {name: {0: "rows"} for name in INPUTS[:2]}
    with warnings.catch_warnings():
        # The newer exporter needs onnxscript, and makes of this graph nothing that this one does not.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            _OfOneText(head),
            example,
            path,
            dynamo=False,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes=any_rows,
            opset_version=OPSET,
        )
    return path


class _OfOneText(nn.Module):
    """A draft behind the newest of the rows, which sees all of them."""

    def __init__(self, head: DraftHead) -> None:
        super().__init__()
        self._head = head

    def forward(self, hidden: Tensor, positions: Tensor, embedded: Tensor) -> Tensor:
        context = self._head.read(hidden, positions)

        def attend(queries: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
            keys, values = context.keys[None], context.values[None]
            if own is not None:
                keys, values = torch.cat([keys, own[0]], dim=1), torch.cat([values, own[1]], dim=1)
            return among_themselves(queries, keys, values)

        return self._head.draft(context.inputs[-1:], embedded, positions[-1:], attend)
