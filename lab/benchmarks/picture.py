"""How figures become pictures: one style, and files that are the same bytes for the same figure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

DARK = "#222222"
OURS, THEIRS, ACCENT, OTHER = "#2f7fd6", "#8b95a3", "#d9822b", "#2a9d7f"
STYLE: Any = {
    "svg.fonttype": "none",  # words stay words
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "hatch.linewidth": 0.6,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), DARK),
}


def write_picture(plot: Callable[[], Figure], path: Path) -> None:
    """What `plot` draws, as SVG or whatever the name of the file says."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": path.stem}):
        figure = plot()
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, bbox_inches="tight", metadata=metadata, dpi=120)
