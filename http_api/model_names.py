"""The names by which the one model is asked for, by one rule for all APIs: upper and lower case are alike, and so are
`NAME` and `NAME:latest`, as clients of Ollama write it."""

from __future__ import annotations

from http_api.fields import Fields
from opensled.core.errors import NotFound
from opensled.core.messages import ModelInfo

LATEST = ":latest"
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


def _plain(name: str) -> str:
    return name.strip().casefold().removesuffix(LATEST)
