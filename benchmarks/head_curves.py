"""What draft heads have learned: tokens a step along held-out texts, by the rows that a head has drafted from.

    python -m benchmarks.head_curves build/heads [--out FOLDER]

Reads the curves that `opensled train-head` has left in its work folder, TARGET/KIND/curve.jsonl: of the likeliest chain
of a draft, and of the best 16 nodes of its tree.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from benchmarks.head_curves_plot import WAYS, write_plot
from benchmarks.head_curves_view import section
from benchmarks.program import FOLDER, exit_code, parser_of, write_json
from benchmarks.readme import write_readme
from opensled.errors import NotFound
from opensled_testbed.provenance import provenance

COMMAND = "python -m benchmarks.head_curves"
HEADS = {
    "specformer": "SpecFormer",
    "ctc": "CTC",
    "ctc-released": "CTC as released",
    "parallel": "the network of CTC, cross-entropy",
}
Curves = dict[str, dict[str, list[list[float]]]]  # target -> name of a line -> points (rows, tokens a step)


def main(words: list[str] | None = None) -> int:
    parser = parser_of("head_curves", __doc__)
    parser.add_argument("work", type=Path, help="work folder of `opensled train-head`")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder; default %(default)s")
    arguments = parser.parse_args(words)
    command = f"{COMMAND} {shlex.join(sys.argv[1:] if words is None else words)}"
    return exit_code(lambda: _write(arguments.work, arguments.out, command))


def _write(work: Path, out: Path, command: str) -> int:
    curves = read_curves(work)
    document = {"figure": "head_curves", "label": "real", "curves": curves, "provenance": provenance(command)}
    write_json(out / "head_curves.json", document)
    write_plot(curves, out / "head_curves.svg")
    print("\n".join(section(document)))
    print(f"written: {out / 'head_curves.json'}, {out / 'head_curves.svg'} and {write_readme(out)}")
    return 0


def read_curves(work: Path) -> Curves:
    """Raises NotFound."""
    found: Curves = {}
    for path in sorted(work.glob("*/*/curve.jsonl")):
        target, kind = path.parts[-3:-1]
        points = [json.loads(line) for line in path.read_text().splitlines()]
        for way in WAYS:
            # A curve of a head that was not measured in this way has no such points.
            if line := [[point["rows"], point[way]] for point in points if way in point]:
                found.setdefault(target, {})[f"{HEADS.get(kind, kind)}, {way}"] = line
    if not found:
        raise NotFound(
            f"{work} has no TARGET/KIND/curve.jsonl; train a head with opensled train-head", "work"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
