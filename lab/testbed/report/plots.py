"""matplotlib for the page: inline SVG without a background, its strokes and words in the page's own colour."""

import io
import re
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK = "#010203"  # stands for the page's text colour, and is replaced by it in the SVG
# Mid-tones, legible on white and on black
OURS, THEIRS, ACCENT, OTHER = "#2f7fd6", "#8b95a3", "#d9822b", "#2a9d7f"
STYLE: Any = {
    "svg.fonttype": "none",  # words stay words
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "hatch.linewidth": 0.6,
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def styled(name: str) -> Any:
    """The context in which a plot is drawn and written; `name` makes the same plot the same bytes."""
    return matplotlib.rc_context(STYLE | {"svg.hashsalt": name})


def svg(figure: Figure, name: str, alt: str) -> str:
    """An <svg> for a page that holds other ones: ids start with `name`; `alt` says in words what it shows."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, bbox_inches="tight", metadata=NO_METADATA)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", drawn)
    drawn = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", drawn)
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace(INK, "currentColor")
    return drawn.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
