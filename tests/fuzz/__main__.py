"""`make fuzz RUNS=1000000`: that many executions, shared out over the targets, each in a process of its own.

A crash, a hang (an input that takes longer than 10 s) or a process beyond its memory ends the run with a non-zero exit
code and the input's path; put it into tests/fuzz/found/TARGET/, where every test run meets it again. What is
interesting is kept in build/fuzz/ for the next run. Needs atheris (tests/fuzz/requirements.txt).
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "fuzz"
PACKAGES = ["opensled", "http_api", "edge_client", "verify_server", "relay"]
SECONDS, MEGABYTES = 10, 1500  # of one input, of one process
GROWTH = 32  # MiB that a process may grow by after a tenth of its runs: more is a leak
MAX_LENGTH = 4096  # bytes of an input
ROW = "{:16}{executions:>12}{seconds:>10}{per_second:>12}{early_mib:>13}{end_mib:>8}{peak_mib:>6}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=100_000, help="executions of all targets together")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(asked.worker, asked.runs)
    return drive(asked.runs, asked.target)


def drive(runs: int, only: list[str] | None) -> int:
    """Every target after the other; the figures as a table and in build/fuzz/report.json."""
    from tests.fuzz.targets import TARGETS

    names = only or list(TARGETS)
    total = sum(TARGETS[name].share for name in names)
    print("target            executions   seconds  per second  MiB at 10 %  at end  peak")
    report, failed = {}, []
    for name in names:
        share = -(-runs * TARGETS[name].share // total)
        report[name], ok = run_target(name, share)
        print(ROW.format(name, **report[name]), flush=True)
        if not ok:
            failed.append(name)
    done = sum(figures["executions"] for figures in report.values())
    print(
        f"{done} executions; " + (f"failed: {', '.join(failed)}" if failed else "no crash, no hang, no leak")
    )
    (WORK / "report.json").write_text(
        json.dumps({"executions": done, "failed": failed, "targets": report}, indent=1)
    )
    return 1 if failed else 0


def run_target(name: str, runs: int) -> tuple[dict[str, float], bool]:
    """Its figures, and whether it went through all runs and gave its memory back."""
    started = time.monotonic()
    (WORK / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz", "--worker", name, "--runs", str(runs)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    seconds = time.monotonic() - started
    if run.returncode:
        print(run.stdout[-3000:], run.stderr[-6000:], sep="\n", file=sys.stderr)
    known = {"executions": 0, "early_mib": 0, "end_mib": 0, "peak_mib": 0}
    if (WORK / f"{name}.json").exists():
        known = json.loads((WORK / f"{name}.json").read_text())
    per_second = round(known["executions"] / seconds)
    grown = known["end_mib"] - known["early_mib"]
    fine = run.returncode == 0 and known["executions"] >= runs and grown <= GROWTH
    return {**known, "seconds": round(seconds), "per_second": per_second}, fine


def work(name: str, runs: int) -> None:
    """One target in this process; never returns."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    corpus = WORK / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    meter = Meter(WORK / f"{name}.json", runs)

    def one(data: bytes) -> None:
        meter.count()
        target.run(data)

    options = [f"-runs={runs}", f"-max_len={MAX_LENGTH}", "-len_control=5"]
    options += [f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}", f"-artifact_prefix={WORK}/{name}-"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


class Meter:
    """Counts executions and looks at the memory in use: after a tenth of them, and at the end. `figures` is a file."""

    def __init__(self, figures: Path, runs: int) -> None:
        self._figures, self._runs, self._done, self._early = figures, runs, 0, 0

    def count(self) -> None:
        self._done += 1
        if self._done == max(1, self._runs // 10):
            self._early = _used_mib()
        if self._done % 5000 in (0, 1) or self._done == self._runs:
            used, peak = _used_mib(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            known = {"executions": self._done, "early_mib": self._early, "end_mib": used, "peak_mib": peak}
            self._figures.write_text(json.dumps(known))


def _used_mib() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


if __name__ == "__main__":
    sys.exit(main())
