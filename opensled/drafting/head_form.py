"""A draft head in the form that devices load: a folder that `opensled export-head` writes.

`read.onnx` makes of hidden states what the head keeps of them, `draft.onnx` drafts from that, all at once or of a
recurrent head one token; `parts.npz` has the ids that it drafts. The target's embedding, last norm and output layer are
in the graph, cut to these ids.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from opensled.errors import NotFound, UnsupportedModel, first_line
from opensled.features import MAX_LAYERS

ABOUT, READ, DRAFT, PARTS = "device-head.json", "read.onnx", "draft.onnx", "parts.npz"
FORMAT = 1
KINDS = ("specformer", "ctc", "owl")  # heads that servers and devices draft with
LARGEST, LONGEST = 1 << 16, 256  # a hidden state, and a draft, that a file may state
# Newest positions that a head attends to, and the whole numbers of positions by which the window moves: as beside the
# target (verify_server/heads/context.py).
WINDOW, SPAN = 256, 16


@dataclass(frozen=True)
class HeadAbout:
    """What a device must know of a head."""

    kind: str
    taps: tuple[int, ...]  # hidden states that it reads
    size: int  # of a hidden state
    length: int  # tokens or frames that it drafts at once
    has_blank: bool  # whether outputs are frames, of which some are blank
    by_steps: bool  # whether it is recurrent: it drafts token by token, and reads the newest row alone
    target: str  # its name, and
    vocabulary: str  # the fingerprint of its vocabulary


def write_about(folder: Path, about: HeadAbout) -> None:
    (folder / ABOUT).write_text(json.dumps({"format": FORMAT} | asdict(about), indent=2) + "\n")


def read_about(folder: Path) -> HeadAbout:
    """Raises NotFound and UnsupportedModel."""
    path = folder / ABOUT
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        about = HeadAbout(**{**values, "taps": tuple(values["taps"])})
        _check(about)
    except OSError as error:
        raise NotFound(
            f"{folder} holds no head for devices: {path} cannot be read; opensled export-head writes one",
            "model",
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnsupportedModel(
            f"{path} does not describe a head: {first_line(error)}; export it again with opensled export-head"
        ) from error
    return about


def _check(about: HeadAbout) -> None:
    """Raises ValueError."""
    if not 1 <= len(about.taps) <= MAX_LAYERS or not all(type(tap) is int and tap >= 0 for tap in about.taps):
        raise ValueError(f"taps {about.taps}")
    for each, most in ((about.size, LARGEST), (about.length, LONGEST)):
        if type(each) is not int or not 0 < each <= most:
            raise ValueError(f"size {str(each)[:40]}")
    for flag in (about.has_blank, about.by_steps):
        if type(flag) is not bool:
            raise ValueError(f"{str(flag)[:40]} for what is true or false")
    if about.by_steps and (about.has_blank or len(about.taps) > 1):
        raise ValueError("a recurrent head with blanks, or of more than one hidden state")
    if not all(isinstance(each, str) for each in (about.kind, about.target, about.vocabulary)):
        raise ValueError("names that are none")
