"""Python code from the running interpreter's own standard library: raw text, and a "continue this function" chat."""

import ast
import functools
import random
import sysconfig
from pathlib import Path

from ..item import Item, Task, split_of
from ..text_grammar import pick

# Tables rather than code, tests, and what some distributions do not ship.
SKIPPED = frozenset(
    ("test", "tests", "idlelib", "idle_test", "turtledemo", "encodings", "site-packages", "lib2to3", "ensurepip", "pydoc_data",
     "tkinter", "config", "__phello__", "dist-packages")
)  # fmt: skip
MAX_FILE_CHARS = 200_000
FUNCTION_LINES = range(5, 26)
MAX_FUNCTION_CHARS = 640

PROMPTS = (
    "Continue this function:", "Write the rest of this Python function:", "Complete the code.", "Finish this function:",
)  # fmt: skip


@functools.cache
def source_files() -> tuple[tuple[str, str], ...]:
    """(module path, text) of the standard library, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not SKIPPED & set(path.relative_to(root).parts))
    texts = ((path.relative_to(root).as_posix(), path.read_text("utf-8", errors="ignore")) for path in paths)
    return tuple((name, text) for name, text in texts if text.isascii() and 200 < len(text) < MAX_FILE_CHARS)


def training_files() -> list[str]:
    """The texts of all modules that are not held out: whole modules are, so that no function is known from elsewhere."""
    return [text for name, text in source_files() if split_of(name) == "train"]


def _functions_of(text: str) -> list[str]:
    """Source of every function, with its own indentation removed."""
    lines = text.splitlines()
    return [
        "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]


def _head(source: str) -> str:
    """The first two lines: every prompt made of a function begins with them."""
    return "\n".join(source.split("\n")[:2])


@functools.cache
def functions() -> tuple[tuple[str, str], ...]:
    """(key, source) of every function of a middling size.

    The key is the module; where a training module has a function with the same head, that module, lest a held-out
    prompt be known from there.
    """
    keys: dict[str, str] = {}
    sources: dict[str, None] = {}
    for name, text in source_files():
        for source in _functions_of(text):
            sources[source] = None
            if split_of(keys.setdefault(_head(source), name)) == "heldout":
                keys[_head(source)] = name
    return tuple((keys[_head(source)], source) for source in sources if _is_middling(source))


def _is_middling(source: str) -> bool:
    return source.count("\n") + 1 in FUNCTION_LINES and len(source) <= MAX_FUNCTION_CHARS


def _draw_halves(rng: random.Random) -> tuple[str, str, str]:
    """A function cut after its first few lines: (key, head, rest)."""
    key, source = rng.choice(functions())
    lines = source.split("\n")
    cut = rng.randint(2, max(2, len(lines) // 2))
    return key, "\n".join(lines[:cut]) + "\n", "\n".join(lines[cut:])


def draw_chat(rng: random.Random) -> Item:
    key, head, rest = _draw_halves(rng)
    text = pick(rng, PROMPTS) + "\n" + head.rstrip("\n")
    return Item("code_chat", text, rest, key=key)


def draw_raw(rng: random.Random) -> Item:
    key, head, rest = _draw_halves(rng)
    return Item("code", head, rest, chat=False, key=key)


# Raw code reaches training as whole files (`training_files`); its items are only for evaluation.
CHAT_TASK = Task("code_chat", draw_chat, share=0.7)
RAW_TASK = Task("code", draw_raw, share=0.0)
