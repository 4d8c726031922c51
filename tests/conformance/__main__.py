"""`make conformance`: every case by the official clients into docs/conformance.md, and a long look at the description.

The JavaScript clients are installed by npm into build/conformance, as package-lock.json has it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance import python_client
from tests.conformance.judge import Observations, faults
from tests.conformance.system import CASES, KEY, device

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORKSHOP = ROOT / "build" / "conformance"
TABLE = ROOT / "docs" / "conformance.md"
FILES = ("package.json", "package-lock.json", "javascript_client.mjs")
FAKE_EXAMPLES, REAL_EXAMPLES = 1500, 150  # per operation
LOOK = ["tests/openapi_run.py", "-q", "-k", "keeps_to_its_description"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        with device(Path(folder)) as url:
            python = python_client.observe(url, KEY, CASES)
            javascript = _javascript(url)
        wrong = _judged({"Python": python, "JavaScript": javascript})
        TABLE.write_text(_table(python, javascript), "utf-8")
        print(f"{len(CASES)} cases, {len(wrong)} faults; {TABLE.relative_to(ROOT)} is written", flush=True)
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


def _table(python: Observations, javascript: Observations) -> str:
    packages = json.loads((HERE / "package.json").read_text("utf-8"))["dependencies"]
    python_names = " and ".join(f"`{name}` {version(name)}" for name in ("openai", "anthropic"))
    script_names = " and ".join(f"`{name}` {packages[name]}" for name in ("openai", "@anthropic-ai/sdk"))
    answered = sum("expect" in case for case in CASES)
    rows = [f"| {case['name']} | {_word(case, python)} | {_word(case, javascript)} |" for case in CASES]
    return "\n".join(
        [
            "# Conformance",
            "",
            "What the official clients of OpenAI and Anthropic get from a device: `opensled edge` and",
            "`opensled serve` of the tiny family as real processes. `make conformance` runs the cases and writes",
            "this page; the cases are data in [`tests/conformance/cases.json`](../tests/conformance/cases.json).",
            "",
            f"{len(CASES)} cases: {answered} are answered as OpenAI or Anthropic answers them,",
            f"{len(CASES) - answered} are refused by the name of the field that is wrong or not served.",
            "",
            f"| case | Python {python_names} | JavaScript {script_names} |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _word(case: dict[str, Any], observed: Observations) -> str:
    found = faults(case, observed)
    if found:
        return f"**{found[0]}**"
    if "expect" in case:
        return "ok"
    param = case["refused"]["param"]
    return f"refused by name `{param}`" if param else f"refused, {case['refused']['status']}"


def _look(where: dict[str, str], examples: int) -> int:
    """Schemathesis, thoroughly; the exit status."""
    environment = {**os.environ, **where, "OPENSLED_API_EXAMPLES": str(examples)}
    return subprocess.run([sys.executable, "-m", "pytest", *LOOK], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
