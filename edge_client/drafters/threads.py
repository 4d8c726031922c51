"""How many threads a draft model may use without hurting the device.

One thread too many is far worse than one too few: on a busy 2-core machine a second llama.cpp thread made a
token 5 to 70 times slower, because every thread waits for the one that was descheduled. A llama.cpp draft model has
fewer while those are faster.
"""

import re

from hw_profiles.detect import usable_cores

MODELS = ("llamacpp", "onnx")  # drafters that compute a draft model


def model_drafter(name: str) -> str:
    """The drafter that computes a model in `name`, such as `chain:cacheback,llamacpp`; "" = none does."""
    return next((member for member in re.split("[:,]", name) if member in MODELS), "")


def draft_threads(wanted: int) -> int:
    """`wanted` if positive; else one less than the physical cores that this process may use, at least 1."""
    return wanted if wanted > 0 else max(1, usable_cores() - 1)
