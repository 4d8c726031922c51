"""`make check-all`: the rarely run checks, one after the other, with the minutes of each.

A check that fails stops none of the others; the exit code is 1 if one failed.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CHECKS = (  # targets of the Makefile, and what makes them short
    ("browser-test",),
    ("conformance",),
    ("wheel-test",),
    ("service-check",),
    ("home-check",),
    ("soak", "MINUTES=5", "OUT=/dev/null"),
    ("fuzz", "RUNS=20000"),
)


class Outcome(NamedTuple):
    """How one check went."""

    check: str
    passed: bool
    minutes: float


def run(words: tuple[str, ...]) -> Outcome:
    """Run one target; its output goes where this one's goes."""
    print(f"-- make {' '.join(words)}", flush=True)
    begun = time.monotonic()
    passed = subprocess.run(["make", *words], cwd=ROOT).returncode == 0
    return Outcome(words[0], passed, (time.monotonic() - begun) / 60)


def table(outcomes: list[Outcome]) -> str:
    """One line for each check, and their sum."""
    width = max(len(outcome.check) for outcome in outcomes)
    lines = [
        f"{outcome.check:{width}}  {'passed' if outcome.passed else 'FAILED'}  {outcome.minutes:5.1f} min"
        for outcome in outcomes
    ]
    return "\n".join([*lines, f"{'together':{width}}          {sum(o.minutes for o in outcomes):5.1f} min"])


def main(names: list[str]) -> int:
    """Run the checks of these names, all if there are none."""
    unknown = set(names) - {words[0] for words in CHECKS}
    if unknown:
        print(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(w[0] for w in CHECKS)}")
        return 2
    outcomes = [run(words) for words in CHECKS if not names or words[0] in names]
    print(table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
