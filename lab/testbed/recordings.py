"""The pairs of target and draft model whose drafts are recorded and packaged (lab/testbed/traces.py)."""

from pathlib import Path
from typing import NamedTuple

from lab.testbed.traces import PACKAGED
from opensled.core.errors import UsageError


class Pair(NamedTuple):
    """A target and the draft model that was recorded with it."""

    target: str  # names for `--model` and `--draft-model`
    draft: str
    words: str  # for a sentence


PAIRS = {
    "tiny": Pair("tiny", "tiny-draft", "the tiny family"),
    "smollm2": Pair("smollm2", "smollm2-draft", "SmolLM2-135M-Instruct and its draft"),
}
BUNDLED_PAIR = "tiny"  # comes with OpenSLED
DEFAULT_PAIR = "smollm2"  # what predictions rest on where nothing else is asked for


def recording(pair: str, drafter: str = "llamacpp") -> Path:
    """The file that holds what a drafter proposed for the target of `pair`; it need not be there."""
    return PACKAGED / f"{pair}-{drafter}.jsonl.gz"


BUNDLED = recording(BUNDLED_PAIR)  # for programs whose servers run the bundled target


def packaged_pairs() -> list[str]:
    """Those of PAIRS that are recorded with their draft model."""
    return [name for name in PAIRS if recording(name).is_file()]


def check_pair(name: str) -> None:
    """Raises UsageError for a pair that is not known, or not recorded."""
    if name not in PAIRS:
        raise UsageError(f"no pair {name!r}; choose from {', '.join(PAIRS)}")
    if not recording(name).is_file():
        raise UsageError(
            f"nothing is recorded with the pair {name!r}: {recording(name)} is not there; choose from "
            f"{', '.join(packaged_pairs()) or 'none'}, or record it: python -m "
            f"lab.testbed.emulation.recorder --target {name}"
        )
