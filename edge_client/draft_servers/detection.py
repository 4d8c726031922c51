"""Which kind of server is at an address, and which of its models drafts."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from edge_client.draft_servers import completions, llama_server, ollama
from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import NotReady, fetch
from edge_client.draft_servers.llama_server import LlamaFacts
from opensled.core.errors import DraftSourceError, NotFound, UsageError
from opensled.core.printable import visible_line

LLAMA, OLLAMA, COMPLETIONS = "llama-server", "Ollama", "completions"
SHOWN = 12  # models in an error
MAX_NAME = 120  # characters of a model's name that are shown


class Found(NamedTuple):
    """A draft server."""

    kind: str
    model: str  # its name, for people and for requests
    facts: LlamaFacts | None = None  # of a llama-server


def find_server(address: DraftAddress, wanted: str) -> Found:
    """The server at `address`, with its model `wanted`; "" = the only one it has.

    Raises UsageError for what is no draft server and where a model has to be named, NotFound for a model that it does
    not have, Unauthorized, and NotReady.
    """
    facts = _llama(address)
    if facts:
        name = _choose(address, facts.models[:1], wanted, facts.models)
        return Found(LLAMA, PurePath(name).name, facts)
    if _is_ollama(address):
        models = ollama.list_models(address)
        known = [*models, *(name.removesuffix(":latest") for name in models)]
        return Found(OLLAMA, _choose(address, models, wanted, known))
    try:
        models = completions.list_models(address)
    except NotReady:
        raise
    except (NotFound, DraftSourceError) as error:
        raise UsageError(
            f"at {address.place} is no draft server: it answers neither /props (llama-server), /api/version (Ollama) "
            f"nor /v1/models (LM Studio and others), below {address.base or '/'}; {error}"
        ) from error
    return Found(COMPLETIONS, _choose(address, models, wanted, models))


def _llama(address: DraftAddress) -> LlamaFacts | None:
    try:
        return llama_server.read_facts(address)
    except NotReady:
        raise
    except (NotFound, DraftSourceError):
        return None


def _is_ollama(address: DraftAddress) -> bool:
    try:
        return isinstance(fetch(address, "/api/version").get("version"), str)
    except NotReady:
        raise
    except (NotFound, DraftSourceError):
        return False


def _choose(address: DraftAddress, models: list[str] | tuple[str, ...], wanted: str, known: object) -> str:
    """The model's name for requests. `known`: all names that it has."""
    assert isinstance(known, (list, tuple))
    listed = ", ".join([visible_line(name)[:MAX_NAME] for name in models[:SHOWN]]) or "none"
    listed += f" and {len(models) - SHOWN} more" if len(models) > SHOWN else ""
    if wanted:
        short = {PurePath(name).name for name in known} | {PurePath(name).stem for name in known}
        if wanted not in known and wanted not in short:
            raise NotFound(
                f"the draft server {address.place} has no model {wanted!r}; it has {listed}", "model"
            )
        return wanted
    if len(models) != 1:
        raise UsageError(f"--draft-model NAME: the draft server {address.place} has {listed}")
    return models[0]
