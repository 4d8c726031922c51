"""Python processes for which some installed modules are not there."""

from pathlib import Path

# Read by each Python at its start, so that the processes of a process lack the same.
SITE = """
from importlib.machinery import PathFinder
ABSENT = {absent!r}
find = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in ABSENT else find(name, path, target)
PathFinder.find_spec = find_spec
"""


def without(folder: Path, *modules: str) -> dict[str, str]:
    """The variables of an environment whose Pythons find none of `modules`; they need a `folder` of their own."""
    (folder / "sitecustomize.py").write_text(SITE.format(absent=modules))
    return {"PYTHONPATH": f"{folder}:{Path(__file__).parents[1]}"}
