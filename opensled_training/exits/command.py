"""`opensled train-exit`: train the layer behind an early exit of a target, from texts that it writes itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from opensled.errors import UsageError
from opensled_training.exits.config import TrainExitConfig, Weights
from opensled_training.exits.exit_folder import write_folder
from opensled_training.exits.exit_measure import Drafted, drafted, without_a_layer
from opensled_training.exits.exit_model import exit_model
from opensled_training.exits.exit_pupil import ExitPupil, new_pupil
from opensled_training.exits.exit_source import ExitSource, with_exits
from opensled_training.heads import windows
from opensled_training.heads.capture import load_source
from opensled_training.heads.command import HELDOUT, SEED, TEXTS, heldout_windows, write_texts
from opensled_training.heads.trainer import Plan, Progress, Trainer
from opensled_training.heads.windows import Window
from verify_server.exits.exit_file import ExitFile
from verify_server.heads.context import WINDOW
from verify_server.heads.head_file import config_digest

READ = 768  # rows of a step, of whole windows
# The layer begins as one that works, and the texts are few: its rate rises sooner than a head's (chosen).
WARMING, MEASURE_STEPS = 10, 100


@dataclass(frozen=True)
class Trained:
    """One training of a layer."""

    pupil: ExitPupil
    progress: Progress
    drafted: Drafted


def train_exit(config: TrainExitConfig) -> int:
    """`opensled train-exit`: make the data, train, write and measure. What is there already is not made again.

    Raises NotFound, UnsupportedModel, UsageError.
    """
    if not any(config.weights):
        raise UsageError("--cosine, --divergence and --tokens are all 0: nothing would be learned")
    torch.set_num_threads(config.threads)
    source = _source(config)
    write_texts(source, config)
    _check_taps(source, config)
    if not config.capture_only:
        for layers in source.exits:
            print("\n".join(_trained(source, config, layers)), flush=True)
    return 0


def _source(config: TrainExitConfig) -> ExitSource:
    plain = load_source(config.target)
    return with_exits(plain, config.exits(plain.network.config.num_hidden_layers))


def _check_taps(source: ExitSource, config: TrainExitConfig) -> None:
    """Raises UsageError where the states that are there are those of other exits."""
    for path in windows.shards(config.shop / TEXTS) + windows.shards(config.shop / HELDOUT):
        if not {*source.taps} <= {*windows.taps(path)}:
            raise UsageError(
                f"{path} holds no states for exits behind {', '.join(map(str, source.exits))} layers; remove "
                f"{config.shop}, or name another folder with --work"
            )


def _trained(source: ExitSource, config: TrainExitConfig, layers: int) -> Iterator[str]:
    """What there is now, for people."""
    trained = _train(source, config, layers, config.weights)
    raw = drafted(without_a_layer(trained.pupil), _heldout(trained.pupil, config))
    rows = {"no layer behind the exit": raw, f"with the layer ({config.weights})": trained.drafted}
    for name in Weights._fields if config.ablate else ():
        weights = config.weights._replace(**{name: 0.0})
        if any(weights):
            rows[f"without {name}"] = _train(source, config, layers, weights).drafted
    written = _write(source, config, layers, trained, rows)
    yield from _table(layers, config.draft, rows)
    yield (
        f"wrote {written}; serve it: opensled serve --model {config.target} --engine torch --drafter exit "
        f"--draft-model {written}; or draft with it on a device: opensled edge --draft-model {written}"
    )


def _train(source: ExitSource, config: TrainExitConfig, layers: int, weights: Weights) -> Trained:
    network = source.network
    model = exit_model(network, layers, config.begin)
    pupil = new_pupil(model, layers, network.config.num_hidden_layers, config.begin, config.draft, weights)
    folder = config.shop / f"exit-{layers}" / str(weights).replace(", ", "-").replace(" ", "")
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        str(weights),
        config.epochs,
        READ,
        starts=WINDOW,
        rate=config.rate,
        warming=WARMING,
        measure_steps=MEASURE_STEPS,
        seed=SEED,
    )
    heldout = _heldout(pupil, config)
    trainer = Trainer(pupil, windows.shards(config.shop / TEXTS), heldout, folder, plan)
    trainer.run()
    pupil.head.eval()
    return Trained(pupil, trainer.progress, drafted(pupil, heldout))


def _heldout(pupil: ExitPupil, config: TrainExitConfig) -> Sequence[Window]:
    return heldout_windows(config.shop / HELDOUT, pupil.shape.taps)


def _write(
    source: ExitSource, config: TrainExitConfig, layers: int, trained: Trained, rows: dict[str, Drafted]
) -> Path:
    """The folder; `training` in its exit.json says how it was made."""
    training = {
        "weights": config.weights._asdict(),
        "begun": config.begin,
        "rows": trained.progress.rows,
        "seconds": round(trained.progress.seconds),
        "positions": sum(map(windows.written, windows.shards(config.shop / TEXTS))),
        "draft": config.draft,
        **trained.drafted.facts(),
        "heldout": {name: each.facts() for name, each in rows.items()},
    }
    folder = config.folder(layers, len(source.exits))
    digest = config_digest(source.network.config)
    about = ExitFile(folder, layers, Path(config.target).stem, source.text.fingerprint, digest, training)
    write_folder(trained.pupil.model, source, about, config.onnx)
    return folder


def _table(layers: int, draft: int, rows: dict[str, Drafted]) -> Iterator[str]:
    yield f"| exit behind {layers} layers | first token accepted | tokens a round of {draft} |"
    yield "|---|---|---|"
    for name, each in rows.items():
        yield f"| {name} | {each.first_accepted:.3f} | {each.tokens_per_round:.2f} |"
