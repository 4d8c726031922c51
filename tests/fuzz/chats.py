"""What becomes of chats and of the files of their templates."""

import contextlib
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from opensled.core.errors import OpenSledError
from opensled.text.chat_forms import first_taken, short_ids
from opensled.text.chat_render import TemplateRefused, answering
from tests import strict_templates
from tests.fuzz import bodies
from tests.fuzz.choices import Choices
from verify_server.text.template_files import ends_in, in_folder, in_metadata

TEMPLATES = tuple(
    value for name, value in vars(strict_templates).items() if name.isupper() and "messages" in str(value)
)
ROLES = ("user", "assistant", "system", "tool")
TEXTS = ("", "a", " ", "{{ 7 }}", "</>", "\u202e", "\n\n", "{% raise %}")
CONFIG: dict[str, Any] = {
    "chat_template": [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools }}"},
    ],
    "eos_token": {"content": "</s>"},
    "eos_token_id": [2, 7],
    "text_config": {"eos_token_id": 3},
}
FILES = (
    "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.json", "chat_template.jinja",
    "additional_chat_templates/default.jinja", "additional_chat_templates/tool_use.jinja",
)  # fmt: skip


def chat_forms(data: bytes) -> None:
    """A chat of any turns for a strict template: what is taken has every system message in it."""
    choose = Choices(data)
    render = _renderer(choose.pick(TEMPLATES))
    turns = [_turn(choose) for _ in range(1 + choose.below(8))]
    with contextlib.suppress(OpenSledError):
        assert isinstance(first_taken([turns, short_ids(turns)], render), str)


@cache
def _renderer(template: str) -> Callable[[list[dict[str, Any]]], str]:
    answer = answering(json.dumps({"template": template, "special": {}, "undefined": False}).encode())

    def render(turns: list[dict[str, Any]]) -> str:
        told = json.loads(answer(json.dumps({"messages": turns, "tools": None}).encode()))
        if "error" in told:
            raise TemplateRefused(told["error"])
        return str(told["text"])

    return render


def _turn(choose: Choices) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": choose.pick(ROLES), "content": choose.pick(TEXTS)}
    if turn["role"] == "assistant" and choose.flag():
        function = {"name": "f", "arguments": {}}
        turn["tool_calls"] = [{"id": choose.text(), "type": "function", "function": function}]
    if turn["role"] == "tool":
        turn["tool_call_id"] = choose.text()
    return turn


def template_files(data: bytes) -> None:
    """A model's folder with odd files, and the metadata of a GGUF file."""
    choose = Choices(data)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        (folder / "additional_chat_templates").mkdir()
        for file in FILES:
            kind = choose.byte() % 5
            if kind == 1:
                (folder / file).write_bytes(bodies.changed_json(CONFIG, choose))
            elif kind == 2:
                (folder / file).write_bytes(choose.bytes(choose.byte()))
            elif kind == 3:
                (folder / file).mkdir()
        with contextlib.suppress(OpenSledError):
            assert all(isinstance(text, str) for text in in_folder(folder))
        with contextlib.suppress(OpenSledError):
            assert all(id >= 0 for id in ends_in(folder, lambda text: len(text)))
    names = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use", "tokenizer.chat_template.")
    found = in_metadata({choose.pick(names): bodies.value(choose) for _ in range(choose.below(4))})
    assert all(isinstance(text, str) for text in found)
