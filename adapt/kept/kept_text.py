"""A text of a tenant whose texts are kept: what is written of it to the disk."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TOP = 32  # likeliest tokens that are kept at each position


class KeptText(NamedTuple):
    """A text on its way to the disk."""

    tenant: str
    opened: float  # Unix time at which its sequence began
    ids: tuple[int, ...]  # the text from its beginning
    first: int  # tokens that the tenant gave; the target wrote the others
    top_ids: npt.NDArray[np.uint32]  # [written, TOP], likeliest first
    top_log_probs: npt.NDArray[np.float16]  # [written, TOP]
