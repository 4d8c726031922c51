"""Which draft model belongs to which target. Loads nothing: the doctor asks it before anything else works."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from edge_client.device.config import DeviceConfig
from edge_client.drafters import AUTO, OFF
from opensled.models.model_pairs import pair_of
from opensled.models.store import is_here

# Draft models by the name of their target, both as `opensled models list` names them; more are in
# opensled/models/model_pairs.py.
DRAFT_OF = {
    "tiny": "tiny-draft",
    "tiny-hub": "tiny-draft",
    "tiny-vision": "tiny-vision-draft",
    "smollm2": "smollm2",
}
WITH_SERVER = "chain:lookup,server"
WITH_MODEL = "chain:lookup,cacheback,llamacpp"
LOOKUP, WITH_TABLE = "lookup", "chain:cacheback,lookup"
HOW_TO_GET_ONE = "--draft-model FILE, a small model, best one with the target's vocabulary"

Config = TypeVar("Config", bound=DeviceConfig)


def draft_of(target: str) -> str:
    """The name of the draft model that belongs to a target, here or not; "" = none is known."""
    pair = pair_of(target)
    return DRAFT_OF.get(target, pair.draft if pair else "")


def without_model(config: DeviceConfig) -> str:
    """The drafter where no draft model fits. Measured on SmolLM2: tables that begin empty bring less than lookup."""
    return WITH_TABLE if {config.draft_table, config.personal_table} - {"", OFF} else LOOKUP


def choose_drafter(config: Config, target: str) -> Config:
    """`config` with the drafter and the draft model that a device takes before the target of that name, if they load.

    The draft model is the one configured, or one on this machine that belongs to the target; "" = none. With a draft
    server it is that server's, and no file.
    """
    if config.draft_url:
        return replace(config, drafter=WITH_SERVER if config.drafter == AUTO else config.drafter)
    known = draft_of(target)
    model = config.draft_model or (known if is_here(known) else "")
    auto = WITH_MODEL if model else without_model(config)
    return replace(config, drafter=auto if config.drafter == AUTO else config.drafter, draft_model=model)
