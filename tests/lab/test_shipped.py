"""Files of models that are made of others: byte by byte what was published, or nothing."""

import hashlib
import os
import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lab.shipped.gguf_form import first_number
from lab.shipped.recipes import Recipe, head_path, make, make_all, recipe_path, recipes_in, write_recipe
from lab.shipped.safetensors_form import WeightsFile
from lab.training.eight_bits import NUMBERS, round_weights
from opensled.core.errors import UnsupportedModel
from opensled.models import store

ROOT = Path(__file__).resolve().parents[2]

# Digests of the files that git carried before.
PUBLISHED = {
    "tiny": "5f2e26733308b9f88e74f19e31d88f39c863d1a0c88fa3b8ab0a2a45d6dc4d9f",
    "tiny-hub": "770808735b1914d691a820cdd0c2f973a495e85102bdd5089209e727216490b1",
    "tiny-vision-draft": "7b14e77eacd670c080713646945155537854a69d4a38c8cf3ae7fb36902a3c4a",
}
WEIGHTS = "model.safetensors"
FILE = "tiny-hub-f16.gguf"
HEAD, RECIPE = head_path(Path(FILE)).name, recipe_path(Path(FILE)).name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the hub's model; its GGUF file is not made yet."""
    shipped = store.bundled_folder() / "tiny-hub"
    return shutil.copytree(shipped, tmp_path / "models/tiny-hub", ignore=shutil.ignore_patterns("*.gguf"))


def recipe_of(folder: Path) -> Recipe:
    [recipe] = recipes_in(folder)
    return recipe


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_made_is_what_was_published(name, tmp_path):
    recipe = recipe_of(store.bundled_folder() / name)
    assert recipe.sha256 == PUBLISHED[name]
    copies = shutil.copytree(recipe.folder, tmp_path / name, ignore=shutil.ignore_patterns("*.gguf"))
    for source in recipe.sources:
        path = tmp_path / name / source.file
        path.parent.mkdir(exist_ok=True)
        shutil.copy(recipe.folder / source.file, path)
    assert digest(make(recipe_of(copies))) == PUBLISHED[name]


def test_all_are_made_that_are_missing(folder):
    [made] = make_all(folder.parent)
    assert made == folder / FILE and digest(made) == PUBLISHED["tiny-hub"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("file", [HEAD, WEIGHTS])
@pytest.mark.parametrize("damage", [cut, flipped, emptied, Path.unlink])
def test_nothing_is_made_of_damaged_parts(folder, file, damage):
    damage(folder / file)
    with pytest.raises((UnsupportedModel, OSError, ValueError, struct.error)) as caught:
        make(recipe_of(folder))
    assert damage is not flipped or f"git checkout -- {folder}" in str(caught.value)
    assert not [*folder.glob("*gguf-*"), *folder.glob("*.gguf")]


def test_several_at_once_make_one_whole_file(folder):
    recipe = recipe_of(folder)
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(make, [recipe] * 4))
    assert paths == {recipe.path} and digest(recipe.path) == recipe.sha256
    assert sorted(path.name for path in folder.glob("*f16*")) == [recipe.file, HEAD, RECIPE]


def test_a_file_of_another_version_is_made_anew(folder):
    """As after a checkout of another commit: the file is older than the recipe."""
    recipe = recipe_of(folder)
    for content in (b"GGUF", bytes(recipe.bytes)):
        recipe.path.write_bytes(content)
        os.utime(recipe.path, ns=(0, 0))
        assert digest(make(recipe)) == recipe.sha256


def test_a_file_that_is_there_is_not_made_again(folder):
    """Nor in a wheel, where the installation may write the recipe after it."""
    recipe = recipe_of(folder)
    for age in (recipe.folder.stat().st_mtime_ns + 10**12, 0):
        os.utime(make(recipe), ns=(age, age))
        before = recipe.path.stat().st_ino
        assert make(recipe).stat().st_ino == before


def test_a_recipe_is_written_of_a_file(folder, tmp_path):
    whole = make(recipe_of(folder))
    (tmp_path / "again").mkdir()
    shutil.copy(folder / WEIGHTS, tmp_path / "again")
    again = Path(shutil.copy(whole, tmp_path / "again"))
    write_recipe(again, first_number(again), [WeightsFile(WEIGHTS)])
    for file in (head_path, recipe_path, Path):
        assert file(again).read_bytes() == file(whole).read_bytes()
    again.unlink()
    assert make(recipe_of(again.parent)).read_bytes() == whole.read_bytes()


def test_weights_of_eight_bits(tmp_path):
    """They come close, and rounding them again changes nothing."""
    numbers = np.random.default_rng(1)
    tensors = {
        name: (numbers.standard_normal(shape) * 0.1).astype(np.float16)
        for name, shape in {"a": (6, 64), "b": (6, 40), "c": (7,), "d": (2, 3, 32)}.items()
    }
    tensors["a"][2] = 0
    whole = tmp_path / WEIGHTS
    save_file(tensors, whole, {"format": "pt"})
    size = whole.stat().st_size
    round_weights(tmp_path)
    found = load_file(whole)
    assert whole.stat().st_size == size and (tmp_path / NUMBERS).stat().st_mode & 0o777 == 0o644
    for name, values in tensors.items():
        assert found[name].dtype == np.float16 and found[name].shape == values.shape
        assert np.abs(found[name].astype(np.float32) - values).max() < 0.5 / 127
        assert name in ("a", "d") or np.array_equal(found[name], values)
    assert (found["a"][2] == 0).all() and not np.array_equal(found["a"], tensors["a"])
    before = (tmp_path / NUMBERS).read_bytes()
    whole.unlink()
    assert load_file(make(recipe_of(tmp_path)))["a"].tobytes() == found["a"].tobytes()
    assert (tmp_path / NUMBERS).read_bytes() == before


def test_git_carries_sixty_megabytes_at_most():
    """And nothing that is made of the rest."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    files = [ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name]
    assert sum(path.lstat().st_size for path in files if path.is_symlink() or path.exists()) <= 60_000_000
    recipes = [recipe for folder in (ROOT / "models").iterdir() for recipe in recipes_in(folder)]
    assert recipes and not {recipe.path for recipe in recipes} & set(files)
