"""Makes the draft model of a fetched target, of the layers that OpenSLED ships and the target's embedding.

The layers are shipped in less room, without loss: byte k of all blocks of a tensor side by side, then zlib. Scales and
quants of a block have nothing in common; beside their like they are coded with fewer bits.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np

from opensled.core.errors import NotFound, UnsupportedModel
from opensled.models.download import keeping
from opensled.models.draft_assembly import BLOCKS, assemble_gguf, tensor_bytes
from opensled.models.gguf_file import read_head
from opensled.models.onnx_assembly import assemble_onnx
from opensled.models.store import ASSEMBLED, fetched_folder, shipped_layers

LAYERS = "layers.gguf.z"  # as `pack` writes them
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


def unpack(packed: Path, path: Path) -> None:
    """Raises NotFound, or UnsupportedModel for a file that is damaged."""
    try:
        content = zlib.decompress(packed.read_bytes())
    except OSError as error:
        raise NotFound(
            f"{packed} cannot be read: {error.strerror}; install OpenSLED again", "model"
        ) from error
    except zlib.error as error:
        raise UnsupportedModel(f"{packed} is damaged: {error}; install OpenSLED again") from error
    path.write_bytes(content)  # the head says where the tensors are, and is the same
    path.write_bytes(transpose(path, content, back=True))


def transpose(path: Path, content: bytes, back: bool) -> bytes:
    """`content` with all tensors of the head in `path` turned: rows of bytes are blocks, or the other way round."""
    turned = bytearray(content)
    for info in read_head(path).tensors.values():
        width, size = BLOCKS[info.kind][1], tensor_bytes(info)
        place = slice(info.start, info.start + size)
        blocks = np.frombuffer(content[place], np.uint8).reshape((width, -1) if back else (-1, width))
        turned[place] = blocks.T.tobytes()
    return bytes(turned)
