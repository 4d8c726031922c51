"""What the tests at load found in an earlier start, by everything that it depends on.

A file here shortens the tests and is never believed alone: `torch_engine` tries a sample of it again, and tests all
anew where that fails. Only for processors: a GPU's library chooses its kernels in more ways than are listed here.
"""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PreTrainedModel

from hw_profiles.detect import usable_cores
from opensled.models import remembered
from verify_server.engine.torch.packing import Geometry

ENGINE = Path(__file__).parent  # its sources, and those it takes from the folder above, are part of each key
# By which the libraries behind torch choose kernels and threads
LIBRARY_VARIABLES = ("MKL_", "OMP_", "KMP_", "GOMP_", "DNNL_", "ONEDNN_", "OPENBLAS_", "ATEN_", "TORCH_")
CHANGING = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "apicid", "initial apicid", "core id")


@dataclass(frozen=True)
class Known:
    """A geometry that kept the bits, and the number of layers by which that is tried: see `selftest.agree`."""

    geometry: Geometry
    layers: int


@dataclass(frozen=True)
class Memory:
    """The place of one result; `path` None = there is none."""

    path: Path | None

    def recall(self) -> Known | None:
        """None for what is missing, damaged or of another form."""
        document = remembered.recall(self.path)
        try:
            known = Known(Geometry(**document["geometry"]), document["layers"])
        except (TypeError, KeyError):
            return None
        fields = (*asdict(known.geometry).values(), known.layers)
        return known if all(isinstance(value, int) for value in fields) else None

    def keep(self, known: Known) -> None:
        """Write it for the next start."""
        remembered.keep(self.path, asdict(known))


def memory_of(network: PreTrainedModel, weights: Path | None, backend: str, max_rows: int) -> Memory:
    """Where the result for this target on this machine is kept. `weights`: a file, or a folder of safetensors."""
    if weights is None or network.device.type != "cpu":
        return Memory(None)
    facts = [backend, max_rows, str(network.dtype), *_model(network, weights), *_machine(), *_sources()]
    return Memory(remembered.place(facts))


def _model(network: PreTrainedModel, weights: Path) -> Iterator[object]:
    yield type(network).__qualname__
    yield network.config.to_json_string(use_diff=False)
    yield version("transformers")
    files = sorted(weights.glob("*.safetensors")) if weights.is_dir() else [weights]
    for file in (*files, Path(inspect.getfile(type(network)))):
        status = file.stat()
        yield from (file.name, status.st_size, status.st_mtime_ns)


def _machine() -> Iterator[object]:
    """Processor, libraries and threads."""
    yield torch.__version__
    yield torch.__config__.show()
    yield torch.backends.cpu.get_cpu_capability()
    yield from (torch.get_num_threads(), usable_cores(), *platform.uname())
    yield from _processor()
    yield sorted(item for item in os.environ.items() if item[0].startswith(LIBRARY_VARIABLES))


def _processor() -> list[str]:
    """What Linux says of the first one; nothing on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except (OSError, UnicodeDecodeError):
        return []
    return [line for line in first.splitlines() if line.partition(":")[0].strip() not in CHANGING]


def _sources() -> list[bytes]:
    return [file.read_bytes() for file in sorted([*ENGINE.glob("*.py"), *ENGINE.parent.glob("*.py")])]
