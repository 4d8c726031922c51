"""One stage as a program of its own: `python -m lab.benchmarks.gpu.stage NAME FILE SECONDS`.

It writes FILE as soon as it knows something, and again whenever it knows more, so a stage that is cut off leaves what
it had. Without a GPU it measures the same in miniature on the processor; the Triton kernels then run in Triton's
interpreter.
"""

import json
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.testbed.provenance import provenance
from opensled.core.files import write_whole

# Stage -> what its figures are: "emulated" where a device's and a link's time comes from a profile
LABELS = {
    "facts": "real",
    "kernels": "real",
    "answers": "real",
    "steps": "real",
    "users": "emulated",
    "profile": "real",
}
COMPUTING = ("facts", "kernels", "answers", "steps", "users")  # stages that need torch


@dataclass
class Stage:
    """What a stage is given: where it runs, until when, and the document that it fills."""

    path: Path  # of its document
    deadline: float  # time.monotonic() at which it should have ended
    device: str  # "cuda", or "cpu" for the miniature; "" = it computes nothing
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        """Whether everything is done in miniature, for there is no GPU."""
        return self.device == "cpu"

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def tell(self, **news: Any) -> None:
        """Adds to the document, and writes it."""
        self.document.update(news)
        write_whole(self.path, json.dumps(self.document, indent=1).encode() + b"\n")

    def read(self, name: str) -> dict[str, Any]:
        """The document of an earlier stage of this run; {} where it has none."""
        found = list(self.path.parent.glob(f"?-{name}.json"))
        return dict(json.loads(found[0].read_bytes())) if found else {}


def run(name: str, path: Path, seconds: float) -> int:
    """0 = the stage ended, and what it tested holds; 1 = it does not hold, or the stage failed."""
    began = time.monotonic()
    stage = Stage(path, began + seconds, _device() if name in COMPUTING else "")
    stage.tell(stage=name, label=LABELS[name], state="running", device=stage.device)
    stage.tell(provenance=provenance())
    try:
        import_module(f"lab.benchmarks.gpu.{name}").measure(stage)
        stage.tell(state="ended")
    except Exception as error:
        traceback.print_exc()
        stage.tell(state="failed", error=f"{type(error).__name__}: {error}")
    stage.tell(seconds=round(time.monotonic() - began, 1))
    return 0 if stage.document["state"] == "ended" and stage.document.get("holds", True) else 1


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    torch.set_num_threads(1)
    return "cpu"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
