"""The prompts of the figures on a real pair, by kind of text. What they quote is in no text that a draft learned from.

`python -m lab.training.distil` takes no docstring of the modules that are quoted here. Usual instructions, such as
"Summarize the following text", occur there too.
"""

import importlib
import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PROMPTS = Path(__file__).with_name("real_prompts.json")
KINDS = ("chat", "code", "arithmetic", "extraction", "summary", "rewriting")
MORE_KINDS = ("translation", "questions")  # asked by name only
LONG = 2400  # characters from which on a prompt is long: some 600 tokens


class Prompt(NamedTuple):
    """One question."""

    kind: str
    number: int  # among its kind, from 0
    text: str

    @property
    def is_long(self) -> bool:
        return len(self.text) > LONG


def prompts(kind: str, characters: int = 0) -> list[Prompt]:
    """All of a kind; what they quote is cut to `characters`, 0 = as the file says."""
    document = _document()
    most = characters or document["characters"]
    return [
        Prompt(kind, number, _text(prompt, document["passages"], most))
        for number, prompt in enumerate(document[kind])
    ]


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(PROMPTS.read_text("utf-8"))
    return document


def _text(prompt: Mapping[str, str], passages: Mapping[str, str], characters: int) -> str:
    """The question, and what it quotes."""
    quoted = [passages[prompt["passage"]]] if "passage" in prompt else []
    quoted += [_docstring(name) for name in _names(prompt, "docs")]
    quoted += [_source(name) for name in _names(prompt, "source")]
    if not quoted:
        return prompt["ask"]
    text = "\n\n".join(quoted)
    shown = text if len(text) <= characters else text[:characters].rsplit(" ", 1)[0]
    return f"{prompt['ask']}\n\n{shown}"


def _names(prompt: Mapping[str, str], key: str) -> list[str]:
    return prompt[key].split("+") if key in prompt else []


def _docstring(name: str) -> str:
    found = _found(name)
    return found if isinstance(found, str) else found.__doc__ or ""


def _source(name: str) -> str:
    return inspect.cleandoc("\n" + inspect.getsource(_found(name)))


def _found(name: str) -> Any:
    """What `module:attribute.attribute` names."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for attribute in filter(None, path.split(".")):
        found = getattr(found, attribute)
    return found
