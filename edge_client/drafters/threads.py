"""How many threads a draft model may use without hurting the device.

One thread too many is far worse than one too few: on a busy 2-core machine a second llama.cpp thread made a
token 5 to 70 times slower, because every thread waits for the one that was descheduled. `opensled profile calibrate`
measures which number is fastest here. A llama.cpp draft model has at most so many, and fewer while those are faster.
"""

import logging
import re

from hw_profiles.calibration import measured_draft
from hw_profiles.detect import usable_cores
from opensled.core.errors import OpenSledError

log = logging.getLogger(__name__)

MODELS = ("llamacpp", "onnx")  # drafters that compute a draft model


def model_drafter(name: str) -> str:
    """The drafter that computes a model in `name`, such as `chain:cacheback,llamacpp`; "" = none does."""
    return next((member for member in re.split("[:,]", name) if member in MODELS), "")


def draft_threads(wanted: int, drafter: str = "", model: str = "") -> int:
    """`wanted` if positive; else the number that was measured to be fastest for this draft model on this machine.

    Where it was not measured, it is the most that a drafter may use.
    """
    if wanted > 0:
        return wanted
    return _calibrated_threads(drafter, model) or max_threads()


def max_threads() -> int:
    """One less than the physical cores that this process may use, at least 1."""
    return max(1, usable_cores() - 1)


def _calibrated_threads(drafter: str, model: str) -> int:
    """The measured number, at most as many as the cores of this process; 0 = not measured."""
    try:
        measured = measured_draft(model_drafter(drafter), model)
    except OpenSledError as error:
        log.warning("%s; the number of threads is guessed: opensled profile calibrate measures it", error)
        return 0
    return min(measured.threads, usable_cores()) if measured else 0
