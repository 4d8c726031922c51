"""A trained head as an ONNX graph: ONNX Runtime drafts from the same rows what torch does.

Run: pytest tests/test_head_onnx.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from opensled_training.heads.onnx_form import INPUTS, write_onnx
from opensled_training.heads.window_attention import WindowAttention
from verify_server.heads import HEADS
from verify_server.heads.base import DraftHead, HeadShape

TAPS = {"specformer": (0, 2, 3, 4), "ctc": (4,)}


def head_of(kind: str) -> DraftHead:
    torch.manual_seed(1)
    head: DraftHead = HEADS.get(kind)(HeadShape(kind, TAPS[kind], 64, 4, 2, 16, 128, 5, 100, 1e4))
    return head.eval()


@pytest.mark.parametrize("rows", [1, 7, 16, 40])
@pytest.mark.parametrize("kind", TAPS)
def test_onnx_runtime_drafts_the_same(tmp_path: Path, kind: str, rows: int) -> None:
    head = head_of(kind)
    session = onnxruntime.InferenceSession(write_onnx(head, tmp_path))
    hidden, positions, embedded = (
        torch.randn(rows, len(TAPS[kind]), 64),
        torch.arange(rows) + 9,
        torch.randn(1, 64),
    )
    given = dict(zip(INPUTS, (each.numpy() for each in (hidden, positions, embedded))))
    [drafted] = session.run(None, given)
    with torch.inference_mode():
        context = head.read(hidden, positions)
        attend = WindowAttention(context, [rows], [torch.tensor([rows - 1])])
        expected = head.draft(context.inputs[-1:], embedded, positions[-1:], attend)
    assert np.allclose(drafted, expected, atol=1e-5)
    given["embedded"] += 1
    assert not np.allclose(session.run(None, given)[0], expected, atol=1e-3)
