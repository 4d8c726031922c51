"""How figures become pictures: one style, and files that are the same bytes for the same figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from lab.testbed.report.plots import STYLE

DARK = "#222222"
INKED: Any = dict.fromkeys(
    ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), DARK
)


def write_picture(plot: Callable[[], Figure], path: Path) -> None:
    """What `plot` draws, as SVG or whatever the name of the file says."""
    with matplotlib.rc_context(STYLE | INKED | {"svg.hashsalt": path.stem}):
        figure = plot()
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, bbox_inches="tight", metadata=metadata, dpi=120)
