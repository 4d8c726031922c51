"""What `opensled export-head` can be told; read without torch, as the options of all verbs are."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.config import option
from opensled.drafting.head_form import KINDS


@dataclass(frozen=True)
class ExportHeadConfig:
    """Which head, and where to."""

    target: str = option(
        "tiny", "the target: a model's name, or the path of its GGUF file or folder", often=True
    )
    head: str = option(
        "specformer",
        f"{' or '.join(KINDS)}: the head that comes with OpenSLED; or the folder of a trained one",
        metavar="HEAD",
        often=True,
    )
    out: str = option("", "folder to write; default: TARGET-KIND-device, here", metavar="DIR", often=True)
