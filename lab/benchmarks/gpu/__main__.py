"""`python -m lab.benchmarks.gpu OUT_FOLDER [SECONDS]`: the stages, one after another, each in a process of its own."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from lab.benchmarks.gpu import summary
from lab.testbed.process_guard import guard
from opensled.core.files import write_whole

# Stage -> the most seconds that it gets, its start included. A stage that ends early leaves its rest to stage "users".
SECONDS = {"facts": 25, "kernels": 70, "answers": 70, "steps": 160, "users": 200, "profile": 12}
DEFAULT_SECONDS = 540
START_S = 8.0  # of a stage's seconds, kept for its start and its end
GRACE_S = 3.0  # between SIGTERM and SIGKILL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT_FOLDER")
    parser.add_argument("seconds", type=float, nargs="?", default=DEFAULT_SECONDS, metavar="SECONDS")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"only these of {', '.join(SECONDS)}")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(SECONDS):
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(SECONDS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "run.log").open("wb") as log:
        holds = [
            _run(number, name, options, log)
            for number, name in enumerate(SECONDS, 1)
            if _is_wanted(name, options)
        ]
    print(write_summary(options.out))
    return 0 if all(holds) else 1


BEGAN = time.monotonic()


def _is_wanted(name: str, options: argparse.Namespace) -> bool:
    return not options.stages or name in options.stages


def _run(number: int, name: str, options: argparse.Namespace, log: IO[bytes]) -> bool:
    """Whether the stage ended and holds; it never raises, so the next stage follows."""
    path: Path = options.out / f"{number}-{name}.json"
    path.unlink(missing_ok=True)
    limit = _limit(name, options)
    began = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "lab.benchmarks.gpu.stage",
        name,
        str(path),
        str(max(1.0, limit - START_S)),
    ]
    process = subprocess.Popen(
        words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
    )
    guard(process.pid)
    code = _wait(process, limit)
    seconds = time.monotonic() - began
    if code is None or not path.exists():
        _close(path, name, "cut off" if code is None else f"ended with code {code} before it began", seconds)
    print(f"{number}. {name}: {_state(path)}, {seconds:.1f} s", flush=True)
    write_summary(options.out)
    return code == 0


def _limit(name: str, options: argparse.Namespace) -> float:
    """Seconds for this stage: its own, or for "users" all that the others leave; all shorter for a short run.

    Where stages were chosen, they share all seconds in the same proportion.
    """
    left = options.seconds - (time.monotonic() - BEGAN)
    if options.stages:
        scale = options.seconds / sum(SECONDS[each] for each in options.stages)
        return max(1.0, min(scale * SECONDS[name], left))
    scale = min(1.0, options.seconds / sum(SECONDS.values()))
    wanted = left - SECONDS["profile"] if name == "users" else scale * SECONDS[name]
    return max(1.0, min(wanted, left))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code; None after the limit, when the stage and all of its processes are stopped."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and what it started; a group that is gone already is fine."""
    for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _close(path: Path, name: str, state: str, seconds: float) -> None:
    """Says of a stage that could not say it itself how it ended."""
    document: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"stage": name}
    document |= {"state": state, "seconds": round(seconds, 1)}
    write_whole(path, json.dumps(document, indent=1).encode() + b"\n")


def _state(path: Path) -> str:
    document = json.loads(path.read_bytes())
    wrong = document["state"] == "ended" and not document.get("holds", True)
    return "ended, DOES NOT HOLD" if wrong else str(document["state"])


def write_summary(out: Path) -> str:
    """What is there so far, as Markdown."""
    documents = [json.loads(path.read_bytes()) for path in sorted(out.glob("?-*.json"))]
    text = summary.text({each["stage"]: each for each in documents})
    write_whole(out / "summary.md", text.encode())
    return text


if __name__ == "__main__":
    sys.exit(main())
