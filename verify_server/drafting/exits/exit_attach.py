"""Puts an early exit beside the target: finds its folder, checks that it belongs to it, and taps the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opensled.core.errors import UnsupportedModel, UsageError, VocabularyMismatch
from opensled.models.store import is_name, model_path
from scheduler.estimates import GUESS, Forecast
from verify_server.drafting.exits.exit_drafter import ExitDrafter, ExitEngine, ExitStates
from verify_server.drafting.exits.exit_file import ExitFile, load
from verify_server.drafting.exits.exit_network import exit_network, imitation_of
from verify_server.drafting.heads.head_file import config_digest
from verify_server.engine.torch.onednn_linear import reorder
from verify_server.engine.torch.tap import places_of
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.round.loaded_model import ServedModel

# Exits that come with OpenSLED, by the name of their target
EXIT_OF = {"tiny-vision": "tiny-vision-draft"}


def early_exit(*given: Any) -> ExitDrafter:
    """`--server-drafter exit`, called with config and target; `--server-drafter exit:N` has N before them.

    With `--draft-model FOLDER` N must be the folder's; without it the exit is behind layer N, with no layer to imitate
    the last ones. Raises UsageError, NotFound, UnsupportedModel, VocabularyMismatch.
    """
    *asked, config, target = given
    engine = target.engine
    if not isinstance(engine, TorchEngine):
        raise UsageError(
            f"--server-drafter exit computes in the target's own KV, which engine {engine.info.runtime} does not "
            "share; use --engine torch, or an ordinary draft model: --server-drafter model --draft-model FOLDER"
        )
    layers = _layers(asked, engine)
    folder = config.draft_model or ("" if layers else EXIT_OF.get(config.model, ""))
    if folder:
        return _imitating(folder, layers, engine, target)
    if not layers:
        raise UsageError(
            "--server-drafter exit needs the folder of an exit: --draft-model FOLDER; or exit:N to leave the target "
            "after N layers without one"
        )
    return _make_drafter(engine, layers, None)


def _layers(asked: list[str], engine: TorchEngine) -> int:
    """N of `exit:N`; 0 = there is none."""
    if not asked:
        return 0
    most = len(places_of(engine.network)[0]) - 1
    if not asked[0].isdecimal() or not 1 <= int(asked[0]) <= most:
        raise UsageError(f"--server-drafter exit:{asked[0]}: this target has exits behind layers 1 to {most}")
    return int(asked[0])


def _imitating(folder: str, layers: int, engine: TorchEngine, target: ServedModel) -> ExitDrafter:
    found = load(model_path(folder) if is_name(folder) else Path(folder))
    _check(found, layers, engine, target)
    drafter = _make_drafter(engine, found.layers, found)
    drafter.guess = _forecast_of(found)
    return drafter


def _make_drafter(engine: TorchEngine, layers: int, found: ExitFile | None) -> ExitDrafter:
    network, info = engine.network, engine.info
    imitation = imitation_of(network, found.weights()) if found else None
    twin = exit_network(network, layers, imitation)
    model = engine.pack_draft_model(twin)
    if imitation is not None:
        reorder(twin)
        engine.attach(ExitStates(network, layers, imitation, model.memory))
    return ExitDrafter(ExitEngine(model, info))


def _check(found: ExitFile, layers: int, engine: TorchEngine, target: ServedModel) -> None:
    """That the exit is of this target, and where it was asked for."""
    if layers and layers != found.layers:
        raise UsageError(
            f"the exit in {found.folder} is behind layer {found.layers}, not {layers}; take --server-drafter exit"
        )
    if found.vocabulary != target.text.fingerprint:
        raise VocabularyMismatch(
            f"the exit in {found.folder} has another vocabulary than the target {target.model_id!r}; take one that was "
            "trained for it"
        )
    if found.config != config_digest(engine.network.config) or found.layers >= len(
        places_of(engine.network)[0]
    ):
        raise UnsupportedModel(
            f"the exit in {found.folder} was trained for {found.target!r}, a target of other sizes than "
            f"{target.model_id!r}; take one that was trained for it"
        )


def _forecast_of(found: ExitFile) -> Forecast:
    """What the exit has shown along held-out answers: the share of places at which it said what the target said."""
    share = found.training.get("first_accepted")
    if not isinstance(share, float) or not 0 < share < 1:
        return GUESS
    return GUESS._replace(first=share, later=share)
