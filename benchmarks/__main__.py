"""`python -m benchmarks`: measure figures, write them as JSON, and the table over all of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks import FIGURES
from benchmarks.peer_server import LLAMA_SERVER
from benchmarks.readme import table, write_readme
from opensled.errors import OpenSledError
from opensled_testbed.provenance import provenance

FOLDER = Path("docs/benchmarks")


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES.names())}; none = all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes: shows that it runs, no more"
    )
    parser.add_argument(
        "--out", type=Path, help=f"folder to write to; default {FOLDER}, and nowhere with --quick"
    )
    parser.add_argument(
        "--llama-server",
        metavar="PATH",
        help=f"llama.cpp's own server, for figure peer; default: the environment's {LLAMA_SERVER}",
    )
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    if arguments.llama_server:
        os.environ[LLAMA_SERVER] = arguments.llama_server
    out = arguments.out or (None if arguments.quick else FOLDER)
    try:
        for name in arguments.names or FIGURES.names():
            _measure(name, arguments.quick, out)
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if out:
        print(f"written: {write_readme(out)}")
    return 0


def _measure(name: str, quick: bool, out: Path | None) -> None:
    measure = FIGURES.get(name)
    origin = provenance(f"python -m benchmarks {name}{' --quick' if quick else ''}")
    figure = measure(quick).as_json(origin)
    print(table(figure), flush=True)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(figure, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
