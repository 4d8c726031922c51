"""The drafters beside the target: those that a server's options name, or those that suit its engine and policy."""

from __future__ import annotations

import json
from math import inf
from typing import NamedTuple

from opensled.core.errors import UsageError
from opensled.core.files import user_path
from opensled.process.logs import tell
from verify_server.drafting.none import NoDrafter
from verify_server.options.registries import SERVER_DRAFTERS
from verify_server.options.serve_config import AUTO_DRAFTER, ServeConfig
from verify_server.round.draft_stage import DraftStage
from verify_server.round.loaded_model import LoadedModel

WEIGHING = "goodput"  # the policy that drafts only where it pays; others draft a fixed length, or nothing


class Choice(NamedTuple):
    """The drafters beside the target."""

    drafters: str  # as --server-drafter names them
    why: str = ""  # the reason for "none", where --server-drafter did not ask for it


def choose(config: ServeConfig) -> Choice:
    """Read --server-drafter auto: a drafter that costs nothing while it rests, and the draft model that is named.

    A draft model that is not named is not loaded: its weights take memory that KV could have. Any other drafter is
    taken as it is.
    """
    if config.server_drafter != AUTO_DRAFTER:
        return Choice(config.server_drafter)
    weighs = config.policy == WEIGHING and config.draft_wait < inf
    if config.draft_model:
        return Choice("lookup+model" if weighs else "model")
    if weighs:
        return Choice("lookup")
    if config.policy != WEIGHING:
        return Choice("none", f"policy {config.policy} does not weigh what its drafts bring")
    return Choice("none", "--draft-wait inf leaves drafting to devices")


def drafting_of(config: ServeConfig, target: LoadedModel) -> DraftStage | None:
    """The stage with the drafters of `config`; None = there are none. Raises the errors of loading them."""
    chosen, why = choose(config)
    drafters = {}
    for name in chosen.split("+"):
        _refuse_others(config.draft_model, name)
        drafter = SERVER_DRAFTERS.get(name)(config, target)
        if not isinstance(drafter, NoDrafter):
            drafters[name] = drafter
    if config.server_drafter == AUTO_DRAFTER:
        tell(f"drafter: {AUTO_DRAFTER} -> {chosen}{why and f' ({why})'}")
    return DraftStage(drafters, target.text.vocab_size) if drafters else None


def _refuse_others(draft_model: str, drafter: str) -> None:
    """Raises UsageError for a drafter of vLLM, and for a head in the format of the `speculators` package, which its
    config.json tells."""
    if drafter.startswith("vllm:"):
        raise UsageError(f"--server-drafter {drafter} is vLLM's own: add --engine vllm, or leave it out")
    for folder in filter(None, (draft_model, drafter)):
        try:
            about = json.loads((user_path(folder) / "config.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            continue  # it is no folder, or the drafter says what is wrong with it
        if isinstance(about, dict) and "speculators_model_type" in about:
            raise UsageError(
                f"{folder} holds a published draft head, which vLLM runs: use --engine vllm --server-drafter "
                f"vllm:eagle3 --draft-model {folder}"
            )
