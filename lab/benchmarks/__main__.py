"""`python -m lab.benchmarks`: measure figures, write them as JSON, and the table over all of them."""

import argparse
import sys
from pathlib import Path

from lab.benchmarks import FIGURES
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, write_json
from lab.benchmarks.readme import table, write_readme
from lab.testbed.provenance import provenance


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES.names())}; none = all"
    )
    add_quick_and_out(parser)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    return exit_code(lambda: _measure_all(arguments.names, arguments.quick, folder_of(arguments)))


def _measure_all(names: list[str], quick: bool, out: Path | None) -> int:
    for name in names or FIGURES.names():
        _measure(name, quick, out)
    if out:
        print(f"written: {write_readme(out)}")
    return 0


def _measure(name: str, quick: bool, out: Path | None) -> None:
    measure = FIGURES.get(name)
    origin = provenance()
    figure = {"figure": name, **measure(quick).as_json(origin)}
    print(table(figure), flush=True)
    if out:
        write_json(out / f"{name}.json", figure)


if __name__ == "__main__":
    sys.exit(main())
