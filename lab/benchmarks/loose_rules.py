"""What loose rules bring and cost: `opensled quality` with the rules of docs/loose-rules.md, kept as figures.

    python -m lab.benchmarks.loose_rules tiny|smollm2-fly|smollm2-pad [--items N] [--work build/quality] [--out FOLDER]

Writes quality-NAME.json and its picture. Answers are kept in --work: a run that was ended goes on there; remove it to
measure anew.
"""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from lab.benchmarks import quality_plot
from lab.benchmarks.program import FOLDER, exit_code, parser_of, write_json
from opensled.core.errors import OpenSledError

SMOLLM2 = ("--model", "smollm2", "--draft-model", "smollm2-draft", "--users", "8")
# Name -> items of each task, and words of `opensled quality`
ASKED: dict[str, tuple[int, tuple[str, ...]]] = {
    "tiny": (
        400,
        (
            *("--model", "tiny", "--users", "4", "--rule"),
            "fly:theta=0.3 fly:theta=0.1 fly:theta=0 pad pad:sigma=0.1 pad:sigma=0.3 pad:sigma=0.7",
        ),
    ),
    "smollm2-fly": (150, (*SMOLLM2, "--tasks", "sums", "--rule", "fly:theta=0.3 fly:theta=0")),
    "smollm2-pad": (100, (*SMOLLM2, "--tasks", "comparisons", "--rule", "pad pad:sigma=0.2 pad:sigma=0.3")),
}


def main(words: list[str] | None = None) -> int:
    parser = parser_of("loose_rules", __doc__)
    parser.add_argument("name", choices=ASKED)
    parser.add_argument("--items", type=int, default=0, help="of each task; default: enough for the page")
    parser.add_argument("--work", type=Path, default=Path("build/quality"), help="default %(default)s")
    parser.add_argument("--out", type=Path, default=FOLDER, help="default %(default)s")
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measured(arguments))


def _measured(arguments: Namespace) -> int:
    items, words = ASKED[arguments.name]
    folder = arguments.work / arguments.name
    command = ["quality", *words, "--items", str(arguments.items or items), "--out", str(folder)]
    if code := subprocess.run([sys.executable, "-m", "opensled", *command]).returncode:
        raise OpenSledError(f"opensled {' '.join(command)} ended with exit code {code}")
    path = arguments.out / f"quality-{arguments.name}.json"
    write_json(path, json.loads((folder / "quality.json").read_text("utf-8")))
    quality_plot.main([str(path)])
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
