"""The names by which the one model is asked for, by one rule for all APIs: upper and lower case are alike, and so are
`NAME` and `NAME:latest`, as clients of Ollama write it.

The draft model by itself is a model with a name of its own: no client takes its words for the target's. Words of a
relay's model alone have a name of their own, too. It can be asked for only at a device that may answer while no server
can be reached (`--offline local-only`). Who asks for that name gets the draft model alone, also while the server is
there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from http_api.backend import Answer, Backend
from http_api.fields import Fields
from opensled.core.answer import Origin
from opensled.core.errors import NotFound
from opensled.core.messages import ModelInfo

LATEST = ":latest"
PREFIXES: dict[Origin, str] = {"local": "draft-alone/", "relay": "relay-alone/"}
MAX_SHOWN = 80  # characters of a foreign name in an error


def is_name(asked: str, name: str) -> bool:
    """Whether `asked` means the model of that name."""
    return _plain(asked) == _plain(name)


def names_of(info: ModelInfo) -> tuple[str, ...]:
    """All names of the served model, its own one first, and none twice."""
    named: dict[str, str] = {}
    for name in (info.model_id, *info.aliases):
        named.setdefault(_plain(name), name)
    return tuple(named.values())


def asked_name(fields: Fields, info: ModelInfo, field: str = "model") -> str:
    """The model in a field, as the client spells it; an empty one is the one served. Raises NotFound for another."""
    asked = fields.text(field, "") or info.model_id
    if not any(is_name(asked, name) for name in names_of(info)):
        served = " or ".join(map(repr, names_of(info)))
        raise NotFound(
            f"model {asked[:MAX_SHOWN]!r} not found: {served} is served here; ask for that, or give the server this "
            "name too: serve --served-model-name",
            field,
        )
    return asked


def alone_name(info: ModelInfo, author: Origin = "local") -> str:
    """The name of what stands in for the target of `info`: the draft model, or a relay's."""
    return PREFIXES[author] + info.model_id


def asked_names(backend: Backend) -> list[str]:
    """All names that can be asked for."""
    return [*names_of(backend.info), *([alone_name(backend.info)] if backend.writes_alone else [])]


def takes_alone(body: dict[str, Any], backend: Backend) -> bool:
    """Whether a request names the draft model alone; it then names the target instead."""
    asked = body.get("model")
    if not backend.writes_alone or not isinstance(asked, str) or not is_name(asked, alone_name(backend.info)):
        return False
    body["model"] = backend.info.model_id
    return True


def by_itself(answer: Answer) -> Answer:
    """`answer`, for tasks that the draft model is to answer alone."""
    return lambda task: answer(replace(task, alone=True))


def _plain(name: str) -> str:
    return name.strip().casefold().removesuffix(LATEST)
