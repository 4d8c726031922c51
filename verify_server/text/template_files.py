"""Where a model keeps its chat templates and the tokens that end its turns: the one place that looks them up.

A template has a name where there are several: `default`, and `tool_use` for chats with tools.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opensled.core.errors import UnsupportedModel
from opensled.models.hub_listing import MORE_TEMPLATES

TEXT = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
# Of vision-language models, whose tokenizer may have a template for texts alone
OF_PROCESSOR = ("processor_config.json", "chat_template.json")
IN_GGUF = "tokenizer.chat_template"  # and IN_GGUF.NAME
MARK = "\ufeff"  # some editors begin a file with it; it is no part of the text


class Templates(NamedTuple):
    """The chat templates of a model: of chats without and with tools, "" = none."""

    plain: str = ""
    tools: str = ""


def in_folder(folder: Path) -> Templates:
    """Those of a Hugging Face folder. Raises UnsupportedModel for a file that cannot be read."""
    named = _in_files(folder)
    for file in (*OF_PROCESSOR, CONFIG):
        if "default" not in named:
            named = _in_value(read_object(folder / file).get("chat_template")) | named
    return choose(named)


def in_metadata(metadata: Mapping[str, Any], begin: str = "") -> Templates:
    """Those of a GGUF file. They write `begin`, the token with which texts begin, as llama.cpp does for those that
    leave it to it."""
    named = {
        key.removeprefix(IN_GGUF).removeprefix(".") or "default": text
        for key, text in metadata.items()
        if key == IN_GGUF or key.startswith(f"{IN_GGUF}.")
    }
    found = choose(_in_value(named))
    return Templates(*(_beginning(template, begin) for template in found))


def _beginning(template: str, begin: str) -> str:
    if not template or not begin or begin in template or "bos_token" in template:
        return template
    return f"{begin}{{##}}\n{template}"  # to jinja, the template still begins with a line


def choose(named: Mapping[str, str]) -> Templates:
    """Of templates by name; the one that is there serves where the right one is missing."""
    plain = named.get("default") or named.get("tool_use") or next(iter(named.values()), "")
    return Templates(plain, named.get("tool_use") or plain)


def ends_in(folder: Path, id_of: Callable[[str], int | None]) -> tuple[int, ...]:
    """Ids that end a turn by a folder's generation config, its config and its tokenizer, in this order.

    `id_of`: the id of a token by its text.
    """
    config, tokenizer = read_object(folder / "config.json"), read_object(folder / CONFIG)
    inner = config.get("text_config")
    stated = [
        read_object(folder / "generation_config.json").get("eos_token_id"),
        config.get("eos_token_id"),
        inner.get("eos_token_id") if isinstance(inner, dict) else None,
        id_of(text) if (text := token_text(tokenizer.get("eos_token"))) else None,
    ]
    ids = [id for value in stated for id in (value if isinstance(value, list) else [value])]
    return tuple(dict.fromkeys(id for id in ids if type(id) is int and id >= 0))


def token_text(value: object) -> str:
    """The text of a special token in tokenizer_config.json, which may be an object with it; "" = none."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file, {} without it. Raises UnsupportedModel for another content."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}; download it again") from error
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{path} holds no JSON object; download it again")
    return value


def _in_files(folder: Path) -> dict[str, str]:
    paths = {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / TEXT).is_file():
        paths["default"] = folder / TEXT
    return {name: _read(path) for name, path in paths.items() if path.is_file()}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not UTF-8 text: {error}; download it again") from error


def _in_value(value: object) -> dict[str, str]:
    """A template, an object of them by name, or a list of objects with a name and a template."""
    if isinstance(value, str):
        value = {"default": value}
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict)]
        value = {str(entry.get("name")): entry.get("template") for entry in entries}
    named = value.items() if isinstance(value, dict) else ()
    return {name: text.removeprefix(MARK) for name, text in named if isinstance(text, str) and text}
