"""Every figure of docs/benchmarks: the command that measures it, and the code that it rests on.

    python -m lab.benchmarks.figures [PART ...]      # measure these parts anew, or all, and tell the minutes of each
    python -m lab.benchmarks.figures --stale         # list the files that are older than the code they rest on
    python -m lab.benchmarks.figures --list          # the parts

A part that fails does not stop the others; the exit code says so. So does the exit code of --stale, for a file that no
reason excuses.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.program import FOLDER, exit_code, parser_of
from opensled.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
DEVICE = (
    "edge_client/drafters",
    "edge_client/round",
    "edge_client/lengths",
    "opensled/core",
    "opensled/drafting",
)
ROUND = ("verify_server/round", "verify_server/rules", "scheduler/goodput", "opensled/core", "opensled/wire")
TORCH = (*ROUND, "verify_server/engine/torch", "verify_server/kv")
LLAMACPP = (*ROUND, "verify_server/engine/llamacpp")
SIMULATED = ("lab/testbed/simulated", "scheduler", "hw_profiles")
PAIR = ("--target", "smollm2")
REAL = "real_prompts.json"


class Part(NamedTuple):
    """One command that writes files into docs/benchmarks."""

    name: str
    files: tuple[str, ...]
    module: str
    words: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()  # files and folders whose change makes it stale
    kept: str = ""  # why a stale file stays; "" = it is to be measured again
    out: str = "--out {}"  # how it is told the folder
    goes_on: bool = False  # its program keeps what the file has, so a stale one is removed first


def _component(name: str, *rests_on: str) -> Part:
    return Part(name, (f"{name}.json",), "lab.benchmarks", (name,), rests_on)


def _real(setup: str) -> Part:
    words = ("--setup", setup, "--contenders", "none,none on both cores,default,lookup,distilled")
    return Part(
        f"real prompts, {setup}",
        (REAL, "real_prompts.svg"),
        "lab.benchmarks.real_prompts",
        (*PAIR, *words, "--prompts", "4"),
        (*DEVICE, *TORCH, *LLAMACPP),
        goes_on=True,
    )


def _speculating(drafters: str) -> Part:
    """Drafters of vLLM's own."""
    return Part(
        f"vllm {drafters}",
        (f"vllm_engine-smollm2-{drafters.replace(',', '-')}.json",),
        "lab.benchmarks.vllm_engine",
        ("--drafters", drafters, "--eager", "--users", "1,8,32,64", "--turns", "2", "--tokens", "32"),
        ("vllm_plugin", "scheduler/goodput"),
        "needs .venv-vllm, and arctic-inference for suffix: run it with that Python",
    )


def _loose(name: str) -> Part:
    files = (f"quality-{name}.json", f"quality-{name}.svg")
    rests_on = ("verify_server/rules", "verify_server/round", "edge_client/round", "opensled/core")
    return Part(f"loose rules, {name}", files, "lab.benchmarks.loose_rules", (name,), rests_on)


GPU = "needs a GPU: bash benchmarks/gpu/run.sh"
PARTS = (
    _component("rounds", "verify_server/front", *ROUND),
    _component("edge_loop", *DEVICE),
    _component("planner", "scheduler"),
    _component("overload", "verify_server/admission", *ROUND),
    _component("hubs", *SIMULATED),
    Part(
        "quick",
        ("quick_baseline.json",),
        "lab.benchmarks.quick",
        ("--write",),
        (*DEVICE, *ROUND),
        out="--baseline {}/quick_baseline.json",
    ),
    Part(
        "attacks",
        ("attacks.json",),
        "lab.benchmarks.attacks",
        ("--seconds", "5", "--repeats", "3"),
        ("verify_server/front", "verify_server/access", "http_api"),
    ),
    Part(
        "attacks, front",
        ("attacks_front.json",),
        "lab.benchmarks.attacks",
        ("--front", "--seconds", "5", "--repeats", "3"),
        ("deploy/front", "verify_server/front", "verify_server/access"),
        "needs HAProxy and root: nft -f deploy/front/opensled.nft",
    ),
    Part("cells", ("regimes.json",), "lab.benchmarks.regimes", (), (*SIMULATED, *ROUND)),
    Part("grid smollm2", ("grid-smollm2.json",), "lab.benchmarks.grid", ("--pair", "smollm2"), SIMULATED),
    Part("hub places", ("hub_places.json", "hub_places.svg"), "lab.benchmarks.hub_places", (), SIMULATED),
    Part("hierarchy", ("hierarchy.json",), "lab.benchmarks.hierarchy", (), ("relay", *SIMULATED)),
    _real("default"),
    _real("torch"),
    Part(
        "server drafts",
        ("server_drafts.json", "server_drafts.svg"),
        "lab.benchmarks.server_drafts",
        ("--engines", "torch", "--prompts", "4"),
        ("verify_server/drafting", *TORCH),
        goes_on=True,
    ),
    Part(
        "heads",
        ("heads.json", "heads.svg"),
        "lab.benchmarks.server_drafts",
        (
            *("--figure", "heads", "--engines", "torch", "--users", "1"),
            *("--kinds", "chat,code,rewriting", "--prompts", "4"),
        ),
        ("verify_server/drafting", *TORCH),
        goes_on=True,
    ),
    Part(
        "serving",
        ("serving.json", "serving.md"),
        "lab.benchmarks.serving",
        ("--engines", "llamacpp,torch", "--users", "1,4,8"),
        ("verify_server/front", "http_api", *LLAMACPP, *TORCH),
    ),
    _loose("tiny"),
    _loose("smollm2-fly"),
    _loose("smollm2-pad"),
    Part(
        "vllm",
        ("vllm_engine-smollm2.json", "vllm_engine-tiny.json"),
        "lab.benchmarks.vllm_engine",
        ("--eager",),
        ("vllm_plugin", "verify_server/rules", "scheduler/goodput", "opensled/core", "opensled/wire"),
        "needs .venv-vllm: run it with that Python",
    ),
    _speculating("draft_model"),
    _speculating("ngram,suffix"),
    Part("gpu", ("gpu-h100/1-facts.json",), "lab.benchmarks.gpu", (), TORCH, GPU),
)

# Figures whose question is closed, by the commit that has their program last.
CLOSED_AT = {
    "c4eddd60": ("adaptation", "doctor", "llamacpp_flips", "prebuilt", "serving_stages", "vocabularies"),
    "eecc1f5d": ("draft_server", "hierarchy_agreement", "hierarchy_capacity"),
    "1356c20d": ("cacheback", "failover", "first_answer"),
    "99a1e10a": ("memory", "ragged", "remote_drafts", "vision_drafts"),
}
CLOSED = {f"{name}.json": commit for commit, names in CLOSED_AT.items() for name in names}


class Stale(NamedTuple):
    """A file that is older than the code it rests on."""

    file: str
    why: str
    kept: str  # see `Part`

    def __str__(self) -> str:
        return f"{self.file}: {self.why}" + (f" ({self.kept})" if self.kept else "")


class Done(NamedTuple):
    """A part that has ended."""

    name: str
    seconds: float
    code: int


def main(words: list[str] | None = None) -> int:
    parser = parser_of("figures", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all that this machine can measure")
    parser.add_argument("--out", type=Path, default=FOLDER, help="default %(default)s")
    parser.add_argument("--stale", action="store_true", help="measure nothing: list what is too old")
    parser.add_argument("--list", action="store_true", help="measure nothing: list the parts and their files")
    arguments = parser.parse_args(words)
    if arguments.list:
        print("\n".join(f"{part.name:18}{', '.join(part.files)}  {part.kept}".rstrip() for part in PARTS))
        return 0
    if arguments.stale:
        return exit_code(lambda: _tell(stale(arguments.out)))
    return exit_code(lambda: _measure(chosen(arguments.parts), arguments.out))


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts of these names; without names, those that need nothing special. Raises UsageError."""
    known = {part.name: part for part in PARTS}
    for name in names:
        if name not in known:
            raise UsageError(f"no figure is called {name!r}; there are {', '.join(known)}")
        if known[name].kept == GPU:
            raise UsageError(f"figure {name!r} {GPU}")
    return [known[name] for name in names] or [part for part in PARTS if not part.kept]


def _measure(parts: Sequence[Part], out: Path) -> int:
    done = [_measured(part, out) for part in parts]
    print(table(done))
    return max(each.code for each in done)


def _measured(part: Part, out: Path) -> Done:
    for file in part.files if part.goes_on else ():
        if file.endswith(".json") and _why(out / file, part.rests_on, commits_since):
            (out / file).unlink(missing_ok=True)
    words = ("-m", part.module, *part.words, *part.out.format(out).split())
    print(f"== {part.name}: python {shlex.join(words)}", flush=True)
    started = time.monotonic()
    code = subprocess.run([sys.executable, *words]).returncode
    return Done(part.name, time.monotonic() - started, int(code != 0))


def table(done: Sequence[Done]) -> str:
    """Minutes of each part and of all."""
    lines = [f"{each.name:18}{each.seconds / 60:7.1f} min{'  FAILED' * each.code}" for each in done]
    return "\n".join([*lines, f"{'all':18}{sum(each.seconds for each in done) / 60:7.1f} min"])


def _tell(found: Sequence[Stale]) -> int:
    print("\n".join(map(str, found)) or "every figure is as new as the code it rests on")
    return int(any(not each.kept for each in found))


def stale(folder: Path, changed: Callable[[str, Sequence[str]], int] | None = None) -> list[Stale]:
    """JSON files of the parts that are too old. `changed`: commits between one and HEAD that touch some paths."""
    return [
        Stale(file, why, part.kept)
        for part in PARTS
        for file in part.files
        if file.endswith(".json") and (why := _why(folder / file, part.rests_on, changed or commits_since))
    ]


def _why(path: Path, rests_on: Sequence[str], changed: Callable[[str, Sequence[str]], int]) -> str:
    """Why a file is too old; "" = it is not."""
    if not path.exists():
        return "was never measured"
    commits = {str(origin.get("commit", "")).rstrip("+") for origin in _origins(json.loads(path.read_text()))}
    if not commits or "" in commits:
        return "does not say where it comes from"
    counts = {commit: changed(commit, rests_on) for commit in commits}
    if gone := [commit for commit, count in counts.items() if count < 0]:
        return f"comes from a commit that is not here, {gone[0][:8]}"
    count, commit = max((count, commit) for commit, count in counts.items())
    return f"{count} commits have touched what it rests on since {commit[:8]}" if count else ""


def _origins(document: Any) -> list[dict[str, Any]]:
    """The provenances of a document, and of its parts where each has its own."""
    if not isinstance(document, dict):
        return []
    own = document.get("provenance")
    if isinstance(own, dict):
        return [own]
    return [origin for part in document.values() for origin in _origins(part)]


def commits_since(commit: str, paths: Sequence[str]) -> int:
    """Commits after `commit` that touch `paths`; -1 = there is no such commit."""
    command = ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return int(run.stdout) if run.returncode == 0 else -1


if __name__ == "__main__":
    sys.exit(main())
