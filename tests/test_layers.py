"""The architecture, checked: who may import whom, one home for each heavy library, names, comments and sizes."""

import ast
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.layers import (
    ALLOWED,
    COMPOSING,
    EVERYTHING,
    HOMES,
    MAX_ROOMS,
    PLUG_INS,
    ROOMS,
    ROOT,
    UPWARD,
    _absolute,
    _imports,
    _module,
    _room,
    _source,
    _sources,
)

INDEPENDENT = tuple(
    f"lab/testbed/{name}.py"
    for name in ("reference", "loose_reference", "gguf_reference", "vision_reference")
)

LONG_FILE_LINES, MAX_FILE_LINES = 300, 500  # above the first a line is printed
MAX_FUNCTION_LINES = 60


def _within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _forbidden(files: list[str], allowed: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Imports of product packages that are not allowed, as "file:line imports name"."""
    for file in files:
        for name, line in _imports(file):
            if _within(name, EVERYTHING) and not _within(name, allowed[file]):
                yield f"{file}:{line} imports {name}"


def test_every_package_has_rules():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == set(EVERYTHING) == set(ALLOWED)


def test_packages_import_only_what_lies_below_them():
    files = _sources(*EVERYTHING)
    packages = {file: file.split("/")[0] for file in files}
    allowed = {file: (top, *ALLOWED[top]) for file, top in packages.items()}
    allowed |= {file: (*allowed[file], *PLUG_INS) for file in COMPOSING}
    assert list(_forbidden(files, allowed)) == []


def test_plug_ins_are_known_only_where_programs_are_put_together():
    knowing = {
        file
        for file in _sources(*(name for name in EVERYTHING if name not in (*PLUG_INS, "lab")))
        if any(_within(name, PLUG_INS) for name, _ in _imports(file))
    }
    assert knowing == set(COMPOSING)


@cache
def _rooms(package: str) -> tuple[str, ...]:
    return tuple(f"{package}/{room}" for room in ROOMS[package].split())


def _arrows(package: str) -> set[tuple[str, str]]:
    """(room, a room that a file of it imports), wherever in the file."""
    files = {_module(file): file for file in _sources(package)}
    found = set()
    for file in files.values():
        for name, _ in _imports(file):
            there = files.get(name) or files.get(name.rpartition(".")[0])
            if there and _room(there) != _room(file):
                found.add((_room(file), _room(there)))
    return {(here, there) for here, there in found if package not in (here, there)}


@pytest.mark.parametrize("package", ROOMS)
def test_every_file_lies_in_a_room(package):
    rooms = {_room(file) for file in _sources(package)} - {package}
    assert rooms == set(_rooms(package)) and len(rooms) <= MAX_ROOMS
    entry = {f"{package}/__init__.py", "opensled/__main__.py"}  # `python -m opensled`
    assert {file for file in _sources(package) if _room(file) == package} <= entry


def test_rooms_import_only_what_lies_below_them():
    upward = {
        f"{here} -> {there}"
        for package in ROOMS
        for here, there in _arrows(package)
        if _rooms(package).index(here) < _rooms(package).index(there)
    }
    assert upward == UPWARD


def test_heavy_libraries_stay_at_home():
    strays = [
        f"{file}:{line} imports {name}"
        for file in _sources(*EVERYTHING)
        for name, line in _imports(file)
        for library, homes in HOMES.items()
        if _within(name, (library,)) and not file.startswith(homes)
    ]
    assert strays == []


def test_no_home_stands_empty():
    files = _sources(*EVERYTHING)
    lived_in = {
        (library, home)
        for library, homes in HOMES.items()
        for home in homes
        for file in files
        if file.startswith(home) and any(_within(name, (library,)) for name, _ in _imports(file))
    }
    assert {(library, home) for library, homes in HOMES.items() for home in homes} == lived_in


def test_the_references_share_nothing_with_the_product():
    each_other = tuple(map(_module, INDEPENDENT))
    assert list(_forbidden(list(INDEPENDENT), dict.fromkeys(INDEPENDENT, each_other))) == []


def test_a_device_loads_nothing_of_the_server():
    heavy = ("torch", "ray", "transformers", "verify_server")
    code = f"import sys, edge_client.round.generate; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def _graph(files: list[str]) -> dict[str, set[str]]:
    """module -> the modules that it imports as it is loaded."""
    modules = {_module(file) for file in files}
    graph: dict[str, set[str]] = {}
    for file in files:
        found = graph[_module(file)] = set()
        for node in _source(file).loaded:
            base = "" if isinstance(node, ast.Import) else _absolute(file, node) + "."
            for name in (base + alias.name for alias in node.names):
                found.add(name if name in modules else name.rpartition(".")[0])
        found &= modules - {_module(file)}
    return graph


def _circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Circles of modules; each is found once, and its modules are then left out."""
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(set(error.args[1]))
            graph = {name: names - found[-1] for name, names in graph.items() if name not in found[-1]}
        else:
            return found


def test_no_modules_import_one_another():
    assert [{"a", "b"}] == _circles({"a": {"b", "c"}, "b": {"a"}, "c": set()})
    assert _circles(_graph(_sources(*EVERYTHING))) == []


class _Group:
    """An open bracket, and what stands in it."""

    def __init__(self, token: tokenize.TokenInfo, before: tokenize.TokenInfo | None) -> None:
        self.line = token.start[0]
        names = before is not None and before.type == tokenize.NAME and not keyword.iskeyword(before.string)
        called = names or (before is not None and before.string in (")", "]", "}"))
        self.groups = token.string == "(" and not called
        self.lines: set[int] = set()
        self.commented = self.tuple = False

    @property
    def wraps(self) -> bool:
        """Whether it only makes room for a comment beside a value of one line."""
        return self.groups and self.commented and not self.tuple and len(self.lines) == 1


def _wrapped(source: str) -> Iterator[int]:
    """Lines in which brackets open that the formatter put round a value because its comment was too long."""
    groups: list[_Group] = []
    before = None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type == tokenize.COMMENT:
            if groups:
                groups[-1].commented = True
            continue
        if token.type == tokenize.OP and token.string in "([{":
            groups.append(_Group(token, before))
        elif token.type == tokenize.OP and token.string in ")]}":
            closed = groups.pop()
            if closed.wraps:
                yield closed.line
            if groups:
                groups[-1].lines |= {closed.line, token.end[0]}
        elif groups:
            groups[-1].lines |= {token.start[0], token.end[0]}
            groups[-1].tuple |= token.string == ","
        before = token


def test_no_comment_is_wrapped_round_its_value():
    assert list(_wrapped("a = (\n    5  # why\n)\nb = [\n    5,  # why\n]\nf(\n    5  # why\n)\n")) == [1]
    assert list(_wrapped("def f():\n    return (  # why\n        g(5)\n    )\n")) == [2]
    texts = ((file, (ROOT / file).read_text("utf-8")) for file in _sources(*EVERYTHING, "tests"))
    likely = ((file, text) for file, text in texts if re.search(r"\((\s*#|\n.*#)", text))
    assert [f"{file}:{line}" for file, text in likely for line in _wrapped(text)] == []


def test_files_and_functions_stay_readable():
    long = []
    for file in _sources(*EVERYTHING, "tests"):
        lines = (ROOT / file).read_text("utf-8").count("\n")
        if lines > LONG_FILE_LINES:
            print(f"{file}: {lines} lines")
        if lines > MAX_FILE_LINES:
            long.append(f"{file}: {lines} lines")
        long += [
            f"{file}:{line} {name}: {length} lines"
            for line, name, length in _source(file).functions
            if length > MAX_FUNCTION_LINES
        ]
    assert long == []
