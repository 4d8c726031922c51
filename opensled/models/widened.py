"""Quantized GGUF files of few parameters, widened to 16 bits a weight: once, in this user's cache.

Targets are, and draft models that may have to answer alone.

llama.cpp multiplies quantized weights with activations that it rounds to 8 bits. A small model often has two tokens
that are nearly as likely, so this rounding changes its answers: of twenty plain questions SmolLM2-135M answered 8 as in
float32 from its Q4_1 file, 8 from a Q8_0 file made of it, and all 20 from the same weights in F16
(docs/benchmarks/first_answer.md). Large models are served as they are stored: widened, an 8B model has 16 GB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opensled.core.errors import ModelError, OpenSledError
from opensled.models import llama, llama_api
from opensled.models.derived import DerivedModels
from opensled.models.download import keeping
from opensled.models.draft_assembly import Part, write_gguf
from opensled.models.gguf_file import Head, TensorInfo, read_head
from opensled.models.onnx_assembly import dequantize
from opensled.process.host_memory import available_host_bytes
from opensled.process.logs import announce, tell, tell_long

# Values of --dtype for a GGUF file. Others are for engine torch.
AUTO, STORED, F16 = "auto", "stored", "float16"
MAX_BYTES = 600_000_000  # of a file that `auto` widens: 300 million parameters (chosen)
MEMORY_SHARE = 0.25  # of the memory that can become free, for such a file (chosen)
PLAIN = {0, 1, 30}  # ggml's numbers of F32, F16 and BF16
FILES = DerivedModels("widened", ".gguf")


def file_to_run(path: Path, dtype: str) -> Path:
    """`path`, or the file of the same weights in F16, which is made now if it is not there.

    `dtype`: "auto" widens quantized files that are small enough, "float16" any, "stored" none. Raises NotFound,
    UnsupportedModel, and ModelError where "float16" finds no room.
    """
    FILES.sweep()
    head = read_head(path)
    size = wide_bytes(head)
    if dtype == STORED or not is_quantized(head) or (dtype == AUTO and size > MAX_BYTES):
        return path
    try:
        if dtype == AUTO and size > MEMORY_SHARE * available_host_bytes():
            raise ModelError(
                f"in 16 bits a weight it takes {size / 1e6:.0f} MB, and too little memory is free"
            )
        place = FILES.place(path)
        if not FILES.is_whole(place):
            _make(path, place, size)
        else:
            tell(f"{path.name} runs in 16 bits a weight: {place}")
        return place
    except OpenSledError as error:
        if dtype == F16:
            raise
        announce(f"{path.name} runs as it is stored, and its answers may suffer: {error}")
        return path


def is_quantized(head: Head) -> bool:
    """Whether matrices have fewer bits than 16 a weight. Parts of a split file are not told from their whole."""
    whole = head.metadata.get("split.count", 0) <= 1
    return whole and any(info.kind not in PLAIN for info in head.tensors.values())


def wide_bytes(head: Head) -> int:
    """About the size of the file in F16; vectors are kept in F32."""
    sizes = (math.prod(info.shape) * (2 if len(info.shape) > 1 else 4) for info in head.tensors.values())
    return sum(sizes) + min((info.start for info in head.tensors.values()), default=0)


def _make(path: Path, place: Path, size: int) -> None:
    """Raises UnsupportedModel and ModelError."""
    with tell_long("still widening the weights") as spell, make_f16(path, size) as file:
        FILES.keep(file, path, size)
    announce(
        f"{path.name} runs in 16 bits a weight: in fewer, rounding changes the answers of a model this small. "
        f"Written once, {place.stat().st_size / 1e6:.0f} MB in {spell.seconds:.0f} s: {place} "
        "(a server does without by --dtype stored)"
    )


@contextmanager
def make_f16(path: Path, size: int) -> Iterator[Path]:
    """While inside, a file of `path`'s weights in F16, of about `size` bytes; it may be moved away.

    Raises UnsupportedModel and ModelError.
    """
    with FILES.part(path, size) as part:
        with keeping(part.parent, size):
            part.touch()
        if llama_api.package() == llama_api.PREBUILT:  # whose library does not export the quantizer
            _write_f16(path, part)
        else:
            llama.requantize(path, part, "F16")
        yield part


def _write_f16(path: Path, sink: Path) -> None:
    """As `llama.requantize` does, for the types that SmolLM2's files have. Raises UnsupportedModel for others."""
    head = read_head(path)

    def part(name: str, info: TensorInfo) -> Part:
        kind, dtype = (1, "<f2") if len(info.shape) > 1 else (0, "<f4")
        return Part(name, info._replace(kind=kind), lambda: dequantize(path, info).astype(dtype).tobytes())

    with path.open("rb") as source, sink.open("wb") as file:
        keys = {key: (source, span) for key, span in head.spans.items()}
        write_gguf(file, keys, [part(*each) for each in head.tensors.items()])
