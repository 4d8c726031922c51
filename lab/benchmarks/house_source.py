"""A tree of sources that is counted without being imported: its files, their syntax, and what a name stands for."""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from opensled.core.errors import UsageError

PRODUCT = (
    *("opensled", "edge_client", "verify_server", "scheduler", "http_api", "relay", "hw_profiles"),
    *("home", "adapt", "vllm_plugin"),
)
GENERATED = "opensled/v1/"
DATA = (
    ".toml",
    ".html",
    ".css",
    ".js",
    ".mjs",
    ".ts",
    ".conf",
    ".jinja",
    ".service",
    ".json",
    ".txt",
    ".tree",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.While, ast.IfExp, ast.match_case)


class Definition(NamedTuple):
    """A class, function or assignment at the top level of a module."""

    file: str
    name: str
    node: ast.stmt


class SourceTree:
    """The Python and data files of a checkout, by their paths from its root; generated ones are left out."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        names = sorted(name for name in files if not name.startswith(GENERATED))
        self.root = root
        self.texts = {name: (root / name).read_text("utf-8") for name in names if name.endswith(".py")}
        self.data = {name: (root / name).read_text("utf-8") for name in names if name.endswith(DATA)}
        self._modules: dict[str, ast.Module] = {}
        self._scopes: dict[str, _Scope] = {}

    @cached_property
    def product(self) -> dict[str, str]:
        """The product's files and their texts."""
        return {name: text for name, text in self.texts.items() if name.split("/")[0] in PRODUCT}

    def module(self, file: str) -> ast.Module:
        """The syntax of a file."""
        if file not in self._modules:
            self._modules[file] = ast.parse(self.texts[file], file)
        return self._modules[file]

    def lines(self, *packages: str) -> int:
        """Lines of the packages, empty ones, comments and data files too."""
        texts = {**self.texts, **self.data}.items()
        return sum(text.count("\n") for name, text in texts if name.split("/")[0] in packages)

    def matching(self, pattern: str) -> list[str]:
        """The product's files of a pattern; a star stands for no slash."""
        depth = pattern.count("/")
        return [
            name for name in self.product if name.count("/") == depth and PurePosixPath(name).match(pattern)
        ]

    def file_of(self, module: str) -> str | None:
        """The file of a module by its dotted name; None = it is none of this tree."""
        path = module.replace(".", "/")
        return next((name for name in (f"{path}.py", f"{path}/__init__.py") if name in self.texts), None)

    def public_class(self, package: str, name: str) -> Definition | None:
        """The class of a package by its name, in whichever file; None = it is gone. Raises UsageError for two."""
        found = [
            Definition(file, name, node)
            for file, text in self.product.items()
            if file.startswith(f"{package}/") and f"class {name}" in text
            for node in self.module(file).body
            if isinstance(node, ast.ClassDef) and node.name == name
        ]
        if len(found) > 1:
            places = ", ".join(place.file for place in found)
            raise UsageError(f"{package} has {len(found)} classes {name}: {places}")
        return found[0] if found else None

    def definition(self, file: str, name: str, attribute: str = "") -> Definition | None:
        """What a name of a file stands for, or an attribute of the module that it names; imports are followed."""
        scope = self._scope(file)
        if name in scope.definitions:
            return None if attribute else scope.definitions[name]
        for imported in scope.imports.get(name, ()):
            module, _, inner = imported.rpartition(".")
            if attribute:
                module, inner = imported, attribute
            home = self.file_of(module)
            if home and home != file and (found := self.definition(home, inner)):
                return found
        return None

    def named_by(self, file: str, node: ast.AST) -> Iterator[Definition]:
        """What the names in a part of a file stand for, as far as it is defined in this tree."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found = self.definition(file, part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                found = self.definition(file, part.value.id, part.attr)
            else:
                continue
            if found:
                yield found

    def function(self, file: str, first_line: int) -> Function | None:
        """The function that begins in a line, its decorators included."""
        return self._scope(file).functions.get(first_line)

    def _scope(self, file: str) -> _Scope:
        if file not in self._scopes:
            self._scopes[file] = _Scope(file, self.module(file))
        return self._scopes[file]


class _Scope:
    """The definitions, imports and functions of one file."""

    def __init__(self, file: str, module: ast.Module) -> None:
        self.definitions = {
            name: Definition(file, name, node)
            for node in _statements(module.body)
            for name in _names_defined(node)
        }
        self.imports: dict[str, list[str]] = {}
        self.functions: dict[int, Function] = {}
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                folder = file.split("/")[: -node.level] if node.level else []
                home = ".".join([*folder, *(node.module or "").split(".")]).rstrip(".")
                for alias in node.names:
                    self.imports.setdefault(alias.asname or alias.name, []).append(f"{home}.{alias.name}")
            elif isinstance(node, Function):
                lines = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
                self.functions[min(lines)] = node


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements outside of functions and classes, those under a condition included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))


def _names_defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | Function):
        yield node.name
    for name, _ in assignments(node):
        yield name


def assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement assigns to, with their values; `A, B = 1, 2` gives two."""
    if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else []
            if len(values) != len(target.elts):
                values = [node.value] * len(target.elts)
            for part, value in zip(target.elts, values, strict=True):
                if isinstance(part, ast.Name):
                    yield part.id, value


def is_number(value: ast.expr) -> bool:
    """Whether a value is written as a number, or as arithmetic of numbers alone."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.BinOp) and is_number(value.left) and is_number(value.right)


def branches(module: ast.Module) -> int:
    """if, elif, while, conditional expressions, cases, each `and` and `or`, each condition of a comprehension."""
    count = 0
    for node in ast.walk(module):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count


def checkout(root: Path) -> SourceTree:
    """The working tree, with files that are not added yet and without ignored ones."""
    listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard").decode()
    return SourceTree(root, [name for name in listed.splitlines() if (root / name).is_file()])


def commit_of(root: Path, name: str) -> str:
    """The full hash of a commit. Raises UsageError when there is none of this name."""
    return _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()


def extracted(root: Path, commit: str, folder: Path) -> SourceTree:
    """The sources of a commit, with all its files in `folder`."""
    with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    files = (path for path in folder.rglob("*") if path.is_file())
    return SourceTree(folder, [path.relative_to(folder).as_posix() for path in files])


def _git(root: Path, *arguments: str) -> bytes:
    run = subprocess.run(["git", *arguments], cwd=root, capture_output=True)
    if run.returncode:
        raise UsageError(f"git {' '.join(arguments)}: {run.stderr.decode().strip() or 'no such commit'}")
    return run.stdout
