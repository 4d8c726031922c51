"""What the benchmark programs share: command line, messages, complete files, worker processes, Markdown tables."""

import json
import os
import sys
import threading
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TypeVar

from lab.testbed import provenance
from opensled.cli.main import INTERRUPTED
from opensled.core.errors import OpenSledError, UsageError

FOLDER = Path("docs/benchmarks")
CORES = os.sched_getaffinity(0)
SPAWN = get_context("spawn")  # gRPC and torch do not work in forked processes

Unit = TypeVar("Unit")
Done = TypeVar("Done")


def parser_of(name: str, description: str | None) -> ArgumentParser:
    """The command line of `python -m lab.benchmarks.NAME`."""
    return ArgumentParser(
        prog=f"python -m lab.benchmarks.{name}",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
    )


def add_quick_and_out(parser: ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that it works")
    parser.add_argument("--out", type=Path, help=f"folder; default {FOLDER}, and none with --quick")


def folder_of(arguments: Namespace) -> Path | None:
    """The folder to write to; None = write nothing."""
    return arguments.out or (None if arguments.quick else FOLDER)


def names_of(text: str, known: Collection[str]) -> list[str]:
    """The names of a list with commas, or with semicolons, as names with commas need; raises UsageError for one that is
    not known."""
    chosen = [name.strip() for name in text.rstrip("; ").split(";" if ";" in text else ",")]
    if unknown := [name for name in chosen if name not in known]:
        raise UsageError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return chosen


def exit_code(work: Callable[[], int]) -> int:
    """The exit code of a program; an OpenSledError is printed and gives its own."""
    try:
        return work()
    except OpenSledError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def say(line: str) -> None:
    """Progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write the complete file or nothing: a run may end at any moment. Its provenance says when that was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    origin = document.get("provenance")
    if isinstance(origin, dict) and "machine" in origin:
        provenance.end(origin)
    half = path.with_suffix(".half")
    half.write_text(json.dumps(document, indent=1) + "\n")
    half.replace(path)


def spawned(work: Callable[..., object], *arguments: object) -> SpawnProcess:
    """A process of `SPAWN` that works on this, and ends with this program, however that ends."""
    process = SPAWN.Process(target=_spawned, args=(work, *arguments), daemon=True)
    process.start()
    return process


def _spawned(work: Callable[..., object], *arguments: object) -> None:
    end_with_parent()
    work(*arguments)


def end_with_parent() -> None:
    """Called in a process of `SPAWN`: a parent that is killed leaves it behind otherwise."""
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def mapped(work: Callable[[Unit], Done], units: Iterable[Unit], jobs: int) -> Iterator[Done]:
    """`work` of each unit, in order; `jobs` processes work at the same time, 1 = this one alone.

    They are ended where the caller does not take all.
    """
    if jobs == 1:
        yield from map(work, units)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=SPAWN, initializer=end_with_parent)
    try:
        yield from pool.map(work, units)
    except BaseException:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes that start within stay on one core; so does this one meanwhile. Nothing happens without it."""
    before = os.sched_getaffinity(0)
    if core in CORES:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def write_page(folder: Path, name: str, document: Mapping[str, Any], body: str) -> None:
    """NAME.json, and NAME.md: the title, where the figures come from, and `body`, which is Markdown."""
    write_json(folder / f"{name}.json", document)
    origin = document["provenance"]
    machine, libraries = origin["machine"], origin["libraries"]
    told = ", ".join(
        f"{each} {libraries[each]}" for each in ("llama-cpp-python", "torch") if each in libraries
    )
    lines = [
        f"# {document['title']}",
        "",
        f"*{document['label'].capitalize()}*: {machine['cpu']}, {machine['cores']} cores, load "
        f"{machine['load_average'][0]} at the start; {told}; {origin['date'][:10]}, `{origin['command']}`.",
        "",
        body,
    ]
    (folder / f"{name}.md").write_text("\n".join(lines).rstrip() + "\n")
