"""Which draft model belongs to which target. Loads nothing: the doctor asks it before anything else works."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from edge_client.device.config import DeviceConfig
from edge_client.drafters import AUTO, OFF
from opensled.core.answer import LOCAL_ONLY
from opensled.models.model_pairs import pair_of
from opensled.models.store import ASSEMBLED, is_here

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


def draft_here(target: str) -> str:
    """The draft model on this machine that a device, or `opensled run`, takes for a target; "" = none.

    The small one first, and never the target itself: on a core a token of SmolLM2 takes 19 ms, of its own 4-bit file 27
    and of its small draft 4.
    """
    known = [*(name for name, its_target in ASSEMBLED.items() if its_target == target), draft_of(target)]
    return next((name for name in known if name != target and is_here(name)), "")


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
    whole = draft_of(target)  # which answers better than a small one where it has to answer alone
    alone = whole if config.offline == LOCAL_ONLY and is_here(whole) else ""
    model = config.draft_model or alone or draft_here(target)
    auto = WITH_MODEL if model else without_model(config)
    return replace(config, drafter=auto if config.drafter == AUTO else config.drafter, draft_model=model)
