"""Makes the draft model of a fetched target, of the layers that OpenSLED ships and the target's embedding."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from opensled.models.download import keeping
from opensled.models.draft_assembly import assemble_gguf
from opensled.models.onnx_assembly import assemble_onnx
from opensled.models.packed_gguf import unpack
from opensled.models.store import ASSEMBLED, fetched_folder, shipped_layers

LAYERS = "layers.gguf.z"  # as `packed_gguf` packs them
OF_LAYERS = "layers.sha256"  # beside a draft model: the digest of the layers that it was made of
PAPERS = ("LICENSE", "README.md")  # go with the weights


def drafts_of(target: str) -> list[str]:
    """Names of the draft models that this installation can make for a target."""
    drafts = (draft for draft, its_target in ASSEMBLED.items() if its_target == target)
    return [draft for draft in drafts if (shipped_layers(draft) / LAYERS).is_file()]


def make_draft(name: str, target: Path) -> bool:
    """Make the draft model `name` with the embedding of the GGUF file `target`, unless it is there; was it made?

    It is made anew where OpenSLED ships other layers than before. Raises NotFound, UnsupportedModel, ModelError.
    """
    shipped, folder = shipped_layers(name), fetched_folder(name)
    digest = hashlib.sha256((shipped / LAYERS).read_bytes()).hexdigest()
    if _read_digest(folder) == digest:
        return False
    with (
        keeping(folder.parent),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pull-") as temporary,
    ):
        made = Path(temporary) / name
        _make(name, shipped, target, made)
        (made / OF_LAYERS).write_text(digest)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return True


def _make(name: str, shipped: Path, target: Path, folder: Path) -> None:
    folder.mkdir()
    gguf = folder / f"{name}.Q4_1.gguf"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        layers = Path(scratch) / "layers.gguf"
        unpack(shipped / LAYERS, layers)
        assemble_gguf(layers, target, gguf)
    assemble_onnx(shipped, gguf, folder)
    for paper in PAPERS:
        shutil.copyfile(shipped / paper, folder / paper)


def _read_digest(folder: Path) -> str:
    """The digest that a made draft model has beside it; "" without one."""
    path = folder / OF_LAYERS
    return path.read_text() if path.is_file() else ""
