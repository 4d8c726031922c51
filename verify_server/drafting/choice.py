"""The drafter beside the target that a server's options name."""

from __future__ import annotations

import json
from pathlib import Path

from opensled.errors import UsageError
from verify_server.config import ServeConfig
from verify_server.drafting import SERVER_DRAFTERS
from verify_server.drafting.none import NoDrafter
from verify_server.drafting.stage import DraftStage
from verify_server.served_model import LoadedModel


def drafting_of(config: ServeConfig, target: LoadedModel) -> DraftStage | None:
    """The stage with the drafter that `config` names; None = it names none. Raises the errors of loading it."""
    _refuse_published(config)
    drafter = SERVER_DRAFTERS.get(config.drafter)(config, target)
    return None if isinstance(drafter, NoDrafter) else DraftStage(drafter, target.text.vocab_size)


def _refuse_published(config: ServeConfig) -> None:
    """Raises UsageError for a head in the format of the `speculators` package, which its config.json tells."""
    if config.drafter.startswith("vllm:"):
        return
    for folder in filter(None, (config.draft_model, config.drafter)):
        try:
            about = json.loads((Path(folder).expanduser() / "config.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            continue  # it is no folder, or the drafter says what is wrong with it
        if isinstance(about, dict) and "speculators_model_type" in about:
            raise UsageError(
                f"{folder} holds a published draft head, which vLLM runs: use --engine vllm --drafter vllm:eagle3 "
                f"--draft-model {folder}"
            )
