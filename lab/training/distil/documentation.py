"""Passages of the standard library's documentation: the docstrings of its modules, classes and functions."""

import ast
import functools
import inspect
import random

from lab.training.item import split_of
from lab.training.tasks.code import source_files

WORDS = range(25, 190)  # of a passage
# Quoted by the prompts of lab/benchmarks/real_prompts.json, which measure the draft.
HELD_OUT_MODULES = frozenset(
    ("argparse", "cmd", "configparser", "difflib", "doctest", "heapq", "optparse", "re", "statistics", "textwrap")
) | {"turtle"}  # fmt: skip


@functools.cache
def passages() -> tuple[str, ...]:
    """All passages that training may read, in a fixed order; whole modules are held out."""
    found: dict[str, None] = {}
    for name, text in source_files():
        top = name.partition("/")[0].removesuffix(".py")
        if split_of(name) == "train" and top not in HELD_OUT_MODULES:
            found.update(dict.fromkeys(passage for text in _docstrings(text) for passage in _cut(text)))
    return tuple(found)


def passage(rng: random.Random) -> str:
    return rng.choice(passages())


def _docstrings(source: str) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return [inspect.cleandoc(text) for node in nodes if (text := ast.get_docstring(node))]


def _cut(text: str) -> list[str]:
    """Neighbouring paragraphs of as many words together as a passage may have."""
    found, current = [], ""
    for paragraph in text.split("\n\n"):
        longer = f"{current}\n\n{paragraph}".strip()
        if len(longer.split()) >= WORDS.stop:
            found.append(current)
            longer = paragraph
        current = longer
    return [each for each in (*found, current) if len(each.split()) in WORDS]
