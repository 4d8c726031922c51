"""`make conformance`: every case by the official clients into docs/conformance.md, and a long look at the description.

The JavaScript clients are installed by npm into build/conformance, as package-lock.json has it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance import python_client
from tests.conformance.judge import Observations, faults
from tests.conformance.system import CASES, KEY, device

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORKSHOP = ROOT / "build" / "conformance"
PAGE = ROOT / "docs" / "conformance.md"
FILES = ("package.json", "package-lock.json", "javascript_client.mjs")
FAKE_EXAMPLES, REAL_EXAMPLES = 1500, 150  # per operation
Case = dict[str, Any]
LOOK = ["tests/openapi_run.py", "-q", "-k", "keeps_to_its_description"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        with device(Path(folder)) as url:
            python = python_client.observe(url, KEY, CASES)
            clients = dict(zip(_clients(), (python, _javascript(url)), strict=True))
        wrong = _judged(clients)
        PAGE.write_text(_page(clients), "utf-8")
        print(f"{len(CASES)} cases, {len(wrong)} faults; {PAGE.relative_to(ROOT)} is written", flush=True)
        look = _look({}, FAKE_EXAMPLES)
        with device(Path(folder), keys=False) as url:
            look |= _look({"OPENSLED_API_URL": url}, REAL_EXAMPLES)
    return 1 if wrong or look else 0


def _javascript(url: str) -> Observations:
    WORKSHOP.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(HERE / name, WORKSHOP / name)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=WORKSHOP, check=True)
    request = json.dumps({"url": url, "key": KEY, "cases": CASES})
    command = ["node", "javascript_client.mjs"]
    done = subprocess.run(
        command, cwd=WORKSHOP, input=request, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    observed: Observations = json.loads(done.stdout)
    return observed


def _judged(clients: dict[str, Observations]) -> list[str]:
    """Every fault, also printed."""
    found = [
        f"{name}: {case['name']}: {fault}"
        for name, observed in clients.items()
        for case in CASES
        for fault in faults(case, observed)
    ]
    for fault in found:
        print(fault, file=sys.stderr)
    return found


def _page(clients: dict[str, Observations]) -> str:
    """docs/conformance.md: what is answered, what is refused, and each client's faults."""
    answered = [case for case in CASES if "expect" in case]
    refused = [case for case in CASES if "expect" not in case]
    wrong = [
        f"| {case['name']} | {name} | {found[0]} |"
        for case in CASES
        for name, observed in clients.items()
        if (found := faults(case, observed))
    ]
    return "\n".join(
        [
            "# Conformance",
            "",
            "What the official clients of OpenAI and Anthropic get from a device: `opensled edge` and",
            "`opensled serve` of the tiny family as real processes. `make conformance` runs the cases and writes",
            "this page; the cases are data in [`tests/conformance/cases.json`](../tests/conformance/cases.json).",
            "",
            f"{len(CASES)} cases, {len(wrong)} faults, by each of these clients:",
            "",
            *(f"- {name}" for name in clients),
            "",
            f"## Answered as OpenAI or Anthropic answers ({len(answered)})",
            "",
            *_rows(("API", "cases"), answered, lambda case: ""),
            "",
            f"## Refused ({len(refused)})",
            "",
            *_rows(("API", "cases, with the field that the error names, or the status"), refused, _refusal),
            "",
            *(["## Faults", "", "| case | client | fault |", "|---|---|---|", *wrong, ""] if wrong else []),
        ]
    )


def _rows(head: tuple[str, str], cases: list[Case], answer: Callable[[Case], str]) -> list[str]:
    """A table of cases by the API in front of their names."""
    named: dict[str, list[str]] = {}
    for case in cases:
        api, _, name = case["name"].partition(": ")
        named.setdefault(api, []).append(name + answer(case))
    return [
        f"| {' | '.join(head)} |",
        "|---|---|",
        *(f"| {api} | {'; '.join(names)} |" for api, names in named.items()),
    ]


def _refusal(case: Case) -> str:
    param = case["refused"]["param"]
    return f" (`{param}`)" if param else f" ({case['refused']['status']})"


def _clients() -> tuple[str, str]:
    """Both languages with the versions of their packages."""
    packages = json.loads((HERE / "package.json").read_text("utf-8"))["dependencies"]
    python = " and ".join(f"`{name}` {version(name)}" for name in ("openai", "anthropic"))
    script = " and ".join(f"`{name}` {packages[name]}" for name in ("openai", "@anthropic-ai/sdk"))
    return f"Python ({python})", f"JavaScript ({script})"


def _look(where: dict[str, str], examples: int) -> int:
    """Schemathesis, thoroughly; the exit status."""
    environment = {**os.environ, **where, "OPENSLED_API_EXAMPLES": str(examples)}
    return subprocess.run([sys.executable, "-m", "pytest", *LOOK], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
