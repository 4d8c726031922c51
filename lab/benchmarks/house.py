"""Count how large the house is: lines, classes, options, fields, constants, branches, and what one block meets.

    python -m lab.benchmarks.house [COMMIT] [--no-block] [--json FILE]

It counts the working tree, and beside it the tree of COMMIT, which need not be installed: both are read as text and
syntax. Only what a block meets is measured by a run of each tree (`classes_of_a_block`); `--no-block` leaves
that out. Where the product's files of both trees are equal, one run counts for both. Between runs of one tree the
counts of the block may differ by one or two; all other rows are exact. The table is Markdown.
"""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.benchmarks.house_source import (
    PRODUCT,
    Definition,
    Function,
    SourceTree,
    assignments,
    branches,
    checkout,
    commit_of,
    extracted,
    is_number,
)
from lab.benchmarks.program import exit_code, parser_of, say, table, write_json
from lab.testbed.provenance import provenance
from tests.layers import KERNEL, OUTSIDE_KERNEL

ROOT = Path(__file__).resolve().parents[2]
LAB = ("lab", "opensled_testbed", "opensled_training", "benchmarks")  # today's folder, and those before it
VERBS = {
    "serve": ("verify_server", "ServeConfig"),
    "edge": ("edge_client", "EdgeConfig"),
    "chat": ("edge_client", "ChatConfig"),
}
WIDE = (  # classes whose fields tell how many features they serve
    ("verify_server", "Session"),
    ("scheduler", "SessionView"),
    ("opensled", "Open"),
    ("opensled", "Verdict"),
    VERBS["serve"],
)
TURNS = ("opensled/turns.py", "opensled/core/turns.py")
CROWDED = ("opensled", "verify_server", "edge_client")
FOLLOWER = Path(__file__).with_name("classes_of_a_block.py")
FOLLOWING_S = 600.0
Count = int | None  # None: what would be counted is not there

# The follower of this tree in any tree: `-c` leaves the folder of the program out of the path of imports.
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def static_counts(tree: SourceTree) -> dict[str, Count]:
    """All that is counted without a run; lines are those of Python and of data files, generated ones left out."""
    counts: dict[str, Count] = {
        "lines of the product": tree.lines(*PRODUCT),
        "lines of testbed, training, benchmarks": tree.lines(*LAB),
        "lines of tests": tree.lines("tests"),
        "files of the product": len(tree.product),
    }
    for package in CROWDED:
        counts[f"files directly in {package}/"] = len(tree.matching(f"{package}/*.py"))
    counts["public classes"] = sum(map(_public_classes, map(tree.module, tree.product)))
    counts["public names defined twice"] = names_defined_twice(tree)
    counts["value classes made at one place"] = sum(times == 1 for times in value_classes(tree).values())
    for verb, (package, name) in VERBS.items():
        counts[f"options of {verb}"] = option_count(tree, tree.public_class(package, name))
    for package, name in WIDE:
        counts[f"fields of {name}"] = _field_count(tree.public_class(package, name))
    counts["lines of turns.py"] = next(
        (tree.texts[name].count("\n") for name in TURNS if name in tree.texts), None
    )
    counts["numeric constants of the product's modules"] = _constants(tree, *PRODUCT)
    counts["numeric constants of scheduler"] = _constants(tree, "scheduler")
    counts["branches of the product"] = sum(map(branches, map(tree.module, tree.product)))
    kernel = kernel_files(tree)
    counts["kernel: files"] = len(kernel)
    counts["kernel: lines"] = sum(tree.texts[file].count("\n") for file in kernel)
    counts["kernel: public classes of the server"] = sum(
        _public_classes(tree.module(file)) for file in kernel if file.startswith("verify_server/")
    )
    counts["kernel: imports of the shell"] = sum(len(shell_imports(tree, file)) for file in kernel)
    return counts


def kernel_files(tree: SourceTree) -> list[str]:
    """The files of the inner ring."""
    return [file for file in tree.product if file.startswith(KERNEL) and not file.startswith(OUTSIDE_KERNEL)]


def shell_imports(tree: SourceTree, file: str) -> set[str]:
    """The shell's files that a file of the kernel imports."""
    homes = {
        tree.file_of(node.module)
        for node in ast.walk(tree.module(file))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    return {home for home in homes if home in tree.product} - set(kernel_files(tree))


def names_defined_twice(tree: SourceTree) -> int:
    """Public functions and classes at the top level of modules whose name stands in two files of the product."""
    names = Counter(
        node.name
        for file in tree.product
        for node in tree.module(file).body
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_")
    )
    return sum(count > 1 for count in names.values())


def value_classes(tree: SourceTree) -> Counter[tuple[str, str]]:
    """Dataclasses and named tuples of the product, by file and name, with the number of calls that make one."""
    made = Counter(
        {
            (file, node.name): 0
            for file in tree.product
            for node in tree.module(file).body
            if isinstance(node, ast.ClassDef) and _holds_values(node)
        }
    )
    calls = (
        found
        for file in tree.product
        for node in ast.walk(tree.module(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        for found in tree.named_by(file, node.func)
    )
    made.update(place for found in calls if (place := (found.file, found.name)) in made)
    return made


def _holds_values(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("NamedTuple") for base in node.bases) or any(
        "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def option_count(tree: SourceTree, config: Definition | None) -> Count:
    """Flags of a configuration class and of its parents; what only a file sets (`file_only`, `limit`) is none."""
    return None if config is None else len(_options(tree, config))


def _options(tree: SourceTree, config: Definition) -> set[str]:
    assert isinstance(config.node, ast.ClassDef)
    names = {
        name
        for statement in config.node.body
        for name, value in assignments(statement)
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("option")
        if not any(word.arg == "file_only" for word in value.keywords)
    }
    for base in config.node.bases:
        for parent in tree.named_by(config.file, base):
            if isinstance(parent.node, ast.ClassDef):
                names |= _options(tree, parent)
    return names


def _field_count(found: Definition | None) -> Count:
    """Fields of a dataclass or a named tuple, without those of its parents."""
    if found is None:
        return None
    assert isinstance(found.node, ast.ClassDef)
    annotated = (node for node in found.node.body if isinstance(node, ast.AnnAssign))
    return sum(not ast.unparse(node.annotation).startswith("ClassVar") for node in annotated)


def _public_classes(module: ast.Module) -> int:
    return sum(isinstance(node, ast.ClassDef) and not node.name.startswith("_") for node in ast.walk(module))


def _constants(tree: SourceTree, *packages: str) -> int:
    return sum(
        is_number(value)
        for file in tree.product
        if file.split("/")[0] in packages
        for statement in tree.module(file).body
        for _, value in assignments(statement)
    )


def block_counts(tree: SourceTree, engine: str = "torch") -> dict[str, Count]:
    """What a block meets in a run of the tree: the functions it enters, and all that these name."""
    words = [sys.executable, "-c", RUN, str(FOLLOWER), "--json", "--engine", engine]
    places = os.environ | {"PYTHONPATH": str(tree.root)}
    try:
        run = subprocess.run(
            words, cwd=tree.root, env=places, capture_output=True, text=True, timeout=FOLLOWING_S
        )
    except subprocess.TimeoutExpired:
        say(f"no block was followed in {tree.root} within {FOLLOWING_S:g} s")
        return {}
    if run.returncode:
        say(f"no block could be followed in {tree.root}: {run.stderr.strip()[-500:]}")
        return {}
    return met_counts(tree, json.loads(run.stdout.splitlines()[-1]))


def met_counts(tree: SourceTree, met: Mapping[str, Any]) -> dict[str, Count]:
    """`met`: what the follower printed."""
    entered = {(file, line) for module, line in met["functions"] if (file := tree.file_of(module))}
    named = {
        definition
        for file, line in entered
        if (function := tree.function(file, line))
        for definition in tree.named_by(file, function)
        if definition.file in tree.product
    }
    classes = {f"{package}.{name}" for package in PRODUCT for name in met.get(package, ())}
    classes |= {
        f"{_dotted(found.file)}.{found.name}" for found in named if isinstance(found.node, ast.ClassDef)
    }
    files = {file for file, _ in entered} | {found.file for found in named}
    constants = [found for found in named if any(is_number(value) for _, value in assignments(found.node))]
    return {
        "a block: blocks followed": met["blocks"],
        "a block: classes entered": met["classes"],
        "a block: files entered": met["files"],
        "a block: classes entered or named": len(classes),
        "a block: files entered or named": len(files),
        "a block: numeric constants named": len(constants),
    }


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def rows(after: Mapping[str, Count], before: Mapping[str, Count] | None) -> list[str]:
    """The lines of the table."""
    if before is None:
        return table(("what", "count"), [(what, _shown(count)) for what, count in after.items()])
    names = {**before, **after}
    cells = [
        (what, _shown(before.get(what)), _shown(after.get(what)), change(before.get(what), after.get(what)))
        for what in names
    ]
    return table(("what", "before", "after", "change"), cells)


def _shown(count: Count) -> str:
    return "-" if count is None else f"{count:,}"


def change(before: Count, after: Count) -> str:
    """The difference with its share of what was before."""
    if before is None or after is None:
        return "" if before is after else "gone" if after is None else "new"
    if before == after:
        return "0"
    share = f" ({(after - before) / before:+.0%})" if before else ""
    return f"{after - before:+,}{share}"


def came_and_went(after: SourceTree, before: SourceTree) -> dict[str, list[str]]:
    """Files of the kernel that one tree has and the other has not."""
    new, old = (set(kernel_files(tree)) for tree in (after, before))
    return {"gone": sorted(old - new), "new": sorted(new - old)}


def counted(root: Path, commit: str, block: bool) -> dict[str, Any]:
    """The counts of the checkout, and of the commit unless it is "", with the files of the kernel that differ."""
    after = checkout(root)
    document: dict[str, Any] = {"after": static_counts(after)}
    if not commit:
        document["after"] |= block_counts(after) if block else {}
        return document
    with TemporaryDirectory() as folder:
        before = extracted(root, commit, Path(folder))
        document |= {"before_commit": commit, "before": static_counts(before)}
        document["kernel_files"] = came_and_went(after, before)
        if block:
            met = block_counts(after)
            document["after"] |= met
            document["before"] |= met if before.product == after.product else block_counts(before)
    return document


def printed(document: Mapping[str, Any]) -> list[str]:
    """The table, and under it which files of the kernel went and came."""
    lines = rows(document["after"], document.get("before"))
    for verb, files in document.get("kernel_files", {}).items():
        lines += ["", f"Files of the kernel, {verb}: {', '.join(files) or 'none'}"]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("house", __doc__)
    parser.add_argument("commit", nargs="?", default="", help="count this commit too, as `before`")
    parser.add_argument("--no-block", action="store_true", help="run nothing: leave out what a block meets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to this file as well")
    arguments = parser.parse_args(argv)

    def count() -> int:
        commit = commit_of(ROOT, arguments.commit) if arguments.commit else ""
        origin = provenance()
        document = counted(ROOT, commit, not arguments.no_block)
        if arguments.json:
            write_json(arguments.json, {**document, "provenance": origin})
        print("\n".join(printed(document)))
        return 0

    return exit_code(count)


if __name__ == "__main__":
    sys.exit(main())
