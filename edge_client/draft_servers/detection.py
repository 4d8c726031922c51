"""Which kind of server is at an address, and which of its models drafts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

from edge_client.draft_servers import completions, llama_server, ollama
from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import NotReady
from edge_client.draft_servers.llama_server import LlamaFacts
from opensled.core.errors import DraftSourceError, NotFound, UsageError
from opensled.core.printable import visible_line

LLAMA, OLLAMA, COMPLETIONS = "llama-server", "Ollama", "completions"
SHOWN = 12  # models in an error
MAX_NAME = 120  # characters of a model's name that are shown

Answer = TypeVar("Answer")


class Found(NamedTuple):
    """A draft server."""

    kind: str
    model: str  # its name, for people and for requests
    address: DraftAddress
    facts: LlamaFacts | None = None  # of a llama-server
    context: int = 0  # tokens of a text; 0 = not told


def find_server(address: DraftAddress, wanted: str) -> Found:
    """The server at `address`, with its model `wanted`; "" = the only one it has.

    Raises UsageError for what is no draft server and where a model has to be named, NotFound for a model that it does
    not have, Unauthorized, and NotReady.
    """
    if facts := _ask(llama_server.read_facts, address):
        if facts.is_router:
            models = _texts({name: {} for name in facts.models})
            return _routed(
                replace(address, model=_choose(address, models, wanted, facts.models + facts.aliases))
            )
        name = _choose(address, facts.models[:1], wanted, facts.models + facts.aliases)
        return Found(LLAMA, PurePath(name).name, address, facts)
    if (tags := _ask(ollama.list_models, address)) is not None:
        at_home = {name: entry for name, entry in tags.items() if not ollama.is_remote(name, entry)}
        if tags and not at_home and not wanted:
            raise UsageError(
                f"the draft server {address.place} sends the texts of its models to ollama.com ({_shown([*tags])}); "
                "pull one there that runs on it, or name one: --draft-model NAME"
            )
        short = [name.removesuffix(":latest") for name in tags]
        return Found(OLLAMA, _choose(address, _texts(at_home), wanted, [*tags, *short]), address)
    try:
        listed = completions.list_models(address)
    except NotReady:
        raise
    except (NotFound, DraftSourceError) as error:
        raise UsageError(
            f"at {address.place} is no draft server: it answers neither /props (llama-server), /api/version (Ollama) "
            f"nor /v1/models (LM Studio and others), below {address.base or '/'}; {error}"
        ) from error
    name = _choose(address, _texts(listed), wanted, [*listed])
    return Found(COMPLETIONS, name, address, context=completions.context_of(listed[name]))


def _ask(read: Callable[[DraftAddress], Answer], address: DraftAddress) -> Answer | None:
    """None of a server of another kind. Raises NotReady and Unauthorized."""
    try:
        return read(address)
    except NotReady:
        raise
    except (NotFound, DraftSourceError):
        return None


def _routed(address: DraftAddress) -> Found:
    """A model of a router. Raises NotReady until it is loaded."""
    try:
        return Found(LLAMA, address.model, address, llama_server.read_facts(address))
    except NotReady:
        raise
    except (NotFound, DraftSourceError) as error:
        raise NotReady(f"its model {visible_line(address.model)[:MAX_NAME]} is not ready: {error}") from error


def _texts(models: dict[str, dict[str, Any]]) -> list[str]:
    """Those of a list of models that write text, or all of them."""
    return [name for name, entry in models.items() if completions.writes_text(name, entry)] or [*models]


def _choose(address: DraftAddress, models: Sequence[str], wanted: str, known: Sequence[str]) -> str:
    """The model's name for requests. `known`: further names. One that only embeds has to be named."""
    listed = _shown(models)
    if wanted:
        meant = [name for name in (*models, *known) if wanted == name or _plain(wanted) in _forms(name)]
        if not meant:
            raise NotFound(
                f"the draft server {address.place} has no model {wanted!r}; it has {listed}", "model"
            )
        return wanted if wanted in meant else meant[0]
    if len(models) != 1:
        raise UsageError(f"--draft-model NAME: the draft server {address.place} has {listed}")
    return models[0]


def _shown(models: Sequence[str]) -> str:
    listed = ", ".join([visible_line(name)[:MAX_NAME] for name in models[:SHOWN]]) or "none"
    return listed + (f" and {len(models) - SHOWN} more" if len(models) > SHOWN else "")


def _forms(name: str) -> tuple[str, ...]:
    """How people write the name of a model that a server lists, in lower case."""
    plain = _plain(name)
    last = re.split(r"[/\\]", plain)[-1]
    return plain, last, last.removesuffix(".gguf")


def _plain(name: str) -> str:
    return re.sub(r"^(hf\.co|huggingface\.co)/", "", name.lower()).removesuffix(":latest").replace("@", ":")
