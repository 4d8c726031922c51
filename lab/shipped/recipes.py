"""Recipes of files: git carries no number of a model twice, nor with more bits than it needs.

Beside what a file is made of lie its head, all that comes before its numbers, and its recipe: size and sha256 of the
whole, and where the numbers are. Nothing else is ever written.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab.shipped import gguf_form, safetensors_form
from lab.shipped.safetensors_form import WeightsFile
from opensled.core.errors import UnsupportedModel
from opensled.core.files import write_whole

RECIPES = "*.recipe.json"
# Suffix of a file that is made -> what joins its head and the numbers.
FORMS = {".gguf": gguf_form.join, ".safetensors": safetensors_form.join}


class Recipe(NamedTuple):
    """What FILE.recipe.json in a folder says of FILE."""

    folder: Path
    file: str
    bytes: int
    sha256: str  # hex
    sources: tuple[WeightsFile, ...]  # the first that has a tensor counts

    @property
    def path(self) -> Path:
        """Of the file, whether it is there or not."""
        return self.folder / self.file


def recipe_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.recipe.json")


def head_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.head")


def write_recipe(file: Path, first: int, sources: Sequence[WeightsFile]) -> None:
    """Replace a file by what is made of its first bytes and of `sources`, and write its head and recipe beside it.

    `first`: where its numbers begin.
    """
    head_path(file).write_bytes(file.read_bytes()[:first])
    content = FORMS[file.suffix](head_path(file), file.parent, sources)
    about = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "sources": [source._asdict() for source in sources],
    }
    recipe_path(file).write_text(json.dumps(about, indent=2) + "\n")
    write_whole(file, content)


def recipes_in(folder: Path) -> list[Recipe]:
    return [_recipe(path) for path in sorted(folder.glob(RECIPES))]


def _recipe(path: Path) -> Recipe:
    about = json.loads(path.read_text("utf-8"))
    sources = tuple(WeightsFile(**source) for source in about.pop("sources"))
    return Recipe(path.parent, path.name.removesuffix(RECIPES[1:]), sources=sources, **about)


def make_all(models: Path) -> list[Path]:
    """Make all files that the folders in `models` have recipes of. Raises as `make` does."""
    return [make(recipe) for folder in sorted(models.iterdir()) for recipe in recipes_in(folder)]


def make(recipe: Recipe) -> Path:
    """The whole file, made now if it is not there, or is that of another version.

    Several processes may do so at once: each writes the same bytes beside the file and renames them. Raises
    UnsupportedModel where other bytes come out than the recipe names, and what reading them raises.
    """
    if not _is_there(recipe):
        content = FORMS[recipe.path.suffix](head_path(recipe.path), recipe.folder, recipe.sources)
        if hashlib.sha256(content).hexdigest() != recipe.sha256:
            files = ", ".join([head_path(recipe.path).name, *(source.file for source in recipe.sources)])
            raise UnsupportedModel(
                f"{recipe.path} cannot be made: one of {files} is damaged or of another version; get {recipe.folder} "
                f"again (git checkout -- {recipe.folder})"
            )
        write_whole(recipe.path, content)
    return recipe.path


def _is_there(recipe: Recipe) -> bool:
    """A file that is younger than its recipe was made of it; of another the bytes are looked at."""
    try:
        found = recipe.path.stat()
        if found.st_size != recipe.bytes:
            return False
        if found.st_mtime_ns > recipe_path(recipe.path).stat().st_mtime_ns:
            return True
        return hashlib.sha256(recipe.path.read_bytes()).hexdigest() == recipe.sha256
    except OSError:
        return False
