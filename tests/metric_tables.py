"""The tables of metrics in docs/operations.md."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs/operations.md").read_text()


def documented(*kinds: str) -> set[tuple[str, str]]:
    """Name and labels of every metric in the tables of these kinds, such as "servers and devices" or "gateways"."""
    found: set[tuple[str, str]] = set()
    for kind in kinds:
        (table,) = re.findall(rf"^\| metric of {kind} \|.*\n((?:\|.*\n)+)", PAGE, re.M)
        found |= set(re.findall(r"^\| `opensled:(\w+)(?:\{([\w,]+)\})?` \|", table, re.M))
    return found
