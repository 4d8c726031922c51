"""Which kind of server is at an address, and which of its models drafts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
    """The server at `address`, with its model `wanted`; "" = the only one it has. People leave out /api, or paste it.

    Raises UsageError for what is no draft server and where a model has to be named, NotFound for a model that it does
    not have, Unauthorized, and NotReady.
    """
    base, reasons = address.base, list[str]()
    for each in dict.fromkeys((base, base.removesuffix("/api"), f"{base}/api")):
        found = _find_below(replace(address, base=each), wanted)
        if isinstance(found, Found):
            return found
        reasons.append(found)
    raise UsageError(
        f"at {address.place} is no draft server: it answers neither /props (llama-server), /api/version (Ollama) "
        f"nor /v1/models (LM Studio and others), below {base or '/'}; {reasons[0]}"
    )


def _find_below(address: DraftAddress, wanted: str) -> Found | str:
    """The server whose API is below the path of `address`, or why there is none."""
    if facts := _ask(llama_server.read_facts, address):
        if facts.is_router:
            models = _texts({name: {} for name in facts.models})
            return _routed(
                replace(address, model=_choose(address, models, wanted, facts.models + facts.aliases))
            )
        name = _choose(address, facts.models[:1], wanted, facts.models + facts.aliases)
        return Found(LLAMA, PurePath(name).name, address, facts)
    if (tags := _ask(ollama.list_models, address)) is not None:
        return Found(OLLAMA, _choose_at_home(address, tags, wanted), address)
    return _completions_at(address, wanted)


def _completions_at(address: DraftAddress, wanted: str) -> Found | str:
    try:
        listed, why = completions.list_models(address), ""
    except NotReady:
        raise
    except (NotFound, DraftSourceError) as error:
        listed, why = {}, str(error)
    # Gateways list not all that they take, and some of them nothing
    is_unlisted = bool(wanted) and not _meant([*listed], wanted)
    if is_unlisted and _ask(partial(completions.writes_at, model=wanted), address):
        return Found(COMPLETIONS, wanted, address)
    if why:
        return why
    name = _choose(address, _texts(listed), wanted, [*listed])
    return Found(COMPLETIONS, name, address, context=completions.context_of(listed[name]))


def _choose_at_home(address: DraftAddress, tags: dict[str, dict[str, Any]], wanted: str) -> str:
    """The name of an Ollama's model."""
    at_home = {name: entry for name, entry in tags.items() if not ollama.is_remote(name, entry)}
    if tags and not at_home and not wanted:
        raise UsageError(
            f"the draft server {address.place} sends the texts of its models to ollama.com ({_shown([*tags])}); "
            "pull one there that runs on it, or name one: --draft-model NAME"
        )
    short = [name.removesuffix(":latest") for name in tags]
    return _choose(address, _texts(at_home), wanted, [*tags, *short])


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
    """Those of a list of models that write text, without the adapters of one, or all of them."""
    texts = [name for name, entry in models.items() if completions.writes_text(name, entry)]
    return [name for name in texts if not models[name].get("parent")] or [*models]


def _choose(address: DraftAddress, models: Sequence[str], wanted: str, known: Sequence[str]) -> str:
    """The model's name for requests. `known`: further names. One that only embeds has to be named."""
    listed = _shown(models)
    if wanted:
        if meant := _meant([*models, *known], wanted):
            return meant
        raise NotFound(f"the draft server {address.place} has no model {wanted!r}; it has {listed}", "model")
    if len(models) != 1:
        raise UsageError(f"--draft-model NAME: the draft server {address.place} has {listed}")
    return models[0]


def _meant(names: Sequence[str], wanted: str) -> str:
    """That of the names which a person wrote as `wanted`, who may leave out a tag that only one has; "" = none."""
    plain = _plain(wanted)
    meant = [name for name in names if plain in _forms(name)]
    tagged = {name for name in names if plain in [form.partition(":")[0] for form in _forms(name)]}
    return wanted if wanted in names else next(iter(meant), tagged.pop() if len(tagged) == 1 else "")


def _shown(models: Sequence[str]) -> str:
    listed = ", ".join([visible_line(name)[:MAX_NAME] for name in models[:SHOWN]]) or "none"
    return listed + (f" and {len(models) - SHOWN} more" if len(models) > SHOWN else "")


def _forms(name: str) -> list[str]:
    """How people write the name of a model that a server lists, in lower case: with fewer of its folders or none."""
    parts = _plain(name).split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))] + [parts[-1].removesuffix(".gguf")]


def _plain(name: str) -> str:
    name = name.lower().replace("\\", "/").replace("@", ":")
    return re.sub(r"^(hf\.co|huggingface\.co)/", "", name).removesuffix(":latest")
