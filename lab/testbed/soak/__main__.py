"""The soak: an hour of faults of every kind on every kind of target, with every token of every answer checked.

    python -m lab.testbed.soak --minutes 60 --seed N --out FILE        `make soak`

Linux. Exit code 1 if anything is wrong.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.testbed.processes import exit_on_signals
from lab.testbed.provenance import provenance
from lab.testbed.soak.faults import FAULTS
from lab.testbed.soak.kinds import KINDS
from lab.testbed.soak.report import Report
from lab.testbed.soak.run import Soak, SoakRun
from opensled.core.errors import OpenSledError

NAMES = tuple(kind.name for kind in KINDS)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m lab.testbed.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help="how long faults strike")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which questions and which schedule")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the figures as JSON")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all processes there")
    parser.add_argument("--targets", default=",".join(NAMES), metavar="NAMES", help="some of %(default)s")
    parser.add_argument("--faults", default="", metavar="NAMES", help=f"some of {','.join(FAULTS)}")
    parser.add_argument(
        "--questions", type=int, default=16, metavar="N", help="different ones to each target"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="targets that run at the same time, the others before or after them within the minutes; default: the "
        "number of cores, here %(default)s",
    )
    return parser.parse_args(arguments)


def _soak(given: argparse.Namespace) -> Soak:
    names, faults = _chosen(given.targets, NAMES), _chosen(given.faults, tuple(FAULTS))
    kinds = [kind for kind in KINDS if kind.name in names]
    if given.at_once < 1:
        raise OpenSledError(f"--at-once {given.at_once}: at least one target must run at a time")
    return Soak(given.minutes, given.seed, kinds, faults, given.questions, given.at_once)


def _chosen(words: str, known: Sequence[str]) -> list[str]:
    """Raises OpenSledError for a name that is not known."""
    names = [name for name in words.split(",") if name]
    for name in names:
        if name not in known:
            raise OpenSledError(f"unknown name {name!r}; choose from {', '.join(known)}")
    return names


@contextlib.contextmanager
def _folder(logs: Path | None) -> Iterator[Path]:
    """Where every target has a folder; a temporary one unless the logs are to stay."""
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="osled-soak-", dir=logs))
        return
    with tempfile.TemporaryDirectory(prefix="osled-soak-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _conclude(report: Report, start: dict[str, object], out: Path | None) -> int:
    print(report.table())
    for goal, reached in report.goals().items():
        print(f"{'yes' if reached else 'NO':<4}{goal}")
    for wrong in report.wrongs:
        print(f"WRONG {wrong}", file=sys.stderr)
    if out:
        out.write_text(json.dumps({**start, **report.as_json()}, indent=1) + "\n")
    print("every answer is the target's own" if report.right else "NOT right; see above")
    return 0 if report.right else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the top of this file."""
    given = _arguments(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("lab.testbed").setLevel(logging.INFO)
    exit_on_signals()  # so that no process outlives the soak
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start = provenance() | {"seed": given.seed}
    try:
        with _folder(given.logs) as folder:
            report = asyncio.run(SoakRun(_soak(given), folder).run())
    except OpenSledError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return _conclude(report, start, given.out)


if __name__ == "__main__":
    sys.exit(main())
