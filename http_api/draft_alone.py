"""The draft model by itself, as a model with a name of its own: no client takes its words for the target's. Words of a
relay's model alone have a name of their own, too.

Only of a device that may answer while no server can be reached (`--offline local-only`). Who asks for that name gets
the draft model alone, also while the server is there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from http_api.backend import Answer, Backend
from http_api.model_names import is_name, names_of
from opensled.core.answer import Origin
from opensled.core.messages import ModelInfo

PREFIXES: dict[Origin, str] = {"local": "draft-alone/", "relay": "relay-alone/"}


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
