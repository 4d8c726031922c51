"""`opensled train-pivots`: label a draft model's mistakes by what becomes of them, and train a pivot classifier."""

import time
from pathlib import Path

import torch

from lab.training.heads.capture import Source, load_source
from lab.training.pivots import labels as labelled
from lab.training.pivots.config import LOOSE, TrainPivotsConfig
from lab.training.pivots.drafts import GgufDrafts
from lab.training.pivots.pivot_writer import save
from lab.training.pivots.questions import Question, Questioner, tasks_of
from lab.training.pivots.rollouts import TargetWriter
from lab.training.pivots.trainer import train
from lab.training.pivots.walk import ALPHA, MIN_SOLVED, Labeller, Walked
from opensled.core.errors import UsageError
from verify_server.rules.pad import FLOOR
from verify_server.rules.pivots import PivotClassifier

SHARD_S = 60.0  # of work that a stopped run loses
SEEDS = 1_000_000  # between the rollouts of two tasks
DEEP = 24  # layers
BEHIND = 7  # layers behind the state that is read in a deep model: hidden_states[-8], as PAD has it


def train_pivots(config: TrainPivotsConfig) -> int:
    """`opensled train-pivots`: label, train, and write the classifier. What is labelled already is not labelled again.

    Raises NotFound, UnsupportedModel, UsageError and VocabularyMismatch.
    """
    torch.set_num_threads(config.threads)
    tasks = tasks_of(config.target, config.tasks)
    source = load_source(config.target)
    layer = _layer(source, config)
    labelled.claim(config.shop, {**config.labelling, "layer": layer})
    if (there := labelled.asked(config.shop)) < config.items:
        labeller = Labeller(
            TargetWriter(source.network, layer, config.rollouts),
            GgufDrafts(config.draft, config.target, source.text, config.threads),
            config.answer_tokens,
            config.walk == LOOSE,
            config.share,
        )
        _label(labeller, Questioner(tasks, source.text, config.seed), config, there)
    print(_train(source, config, layer), flush=True)
    return 0


def _layer(source: Source, config: TrainPivotsConfig) -> int:
    """Raises UsageError."""
    layers = source.network.config.num_hidden_layers
    if config.layer is None:
        return layers - BEHIND if layers >= DEEP else 3 * layers // 4
    if config.layer > layers:
        raise UsageError(f"--layer {config.layer}: {config.target} has {layers} layers")
    return config.layer


def _label(labeller: Labeller, questioner: Questioner, config: TrainPivotsConfig, there: int) -> None:
    """`there`: tasks that are done."""
    started, new = time.monotonic(), 0
    while there < config.items:
        walks = _some_walks(labeller, questioner, config, there)
        labelled.save_shard(walks, config.shop / f"{there:06}.npz")
        there += len(walks)
        new += sum(len(walked.mismatches) for _, walked in walks)
        rate = new / (time.monotonic() - started)
        print(f"{_standing(config.shop)} of {config.items} asked, {rate:.2f} mismatches/s", flush=True)


def _some_walks(
    labeller: Labeller, questioner: Questioner, config: TrainPivotsConfig, first: int
) -> list[tuple[Question, Walked]]:
    """From task `first` on, as many as are walked in SHARD_S, one at least."""
    started, walks = time.monotonic(), list[tuple[Question, Walked]]()
    for number in range(first, config.items):
        question = questioner.question(number)
        walks.append((question, labeller.walk(question, SEEDS * (SEEDS * config.seed + number))))
        if time.monotonic() - started > SHARD_S:
            break
    return walks


def _standing(folder: Path) -> str:
    """What is labelled, for people."""
    mismatches, pivots = labelled.counts(folder)
    return f"{mismatches:,} mismatches, {pivots:,} pivots, {labelled.asked(folder):,} tasks"


def _train(source: Source, config: TrainPivotsConfig, layer: int) -> str:
    """What there is now, for people."""
    labels = labelled.read_labels(config.shop)
    trained = train(labels, config.seed)
    folder = Path(config.out) if config.out else config.shop / "classifier"
    training = {
        **config.labelling,
        "alpha": ALPHA,
        "least_solved": MIN_SOLVED,
        "floor": FLOOR,
        "items": labels.asked,
        "mismatches": len(labels),
        "pivots": int(labels.pivots.sum()),
        **trained.report,
    }
    name = Path(config.target).stem
    save(
        PivotClassifier(layer, trained.weights, name, source.text.fingerprint, trained.sigma, training),
        folder,
    )
    found = trained.report["held_out"]
    return (
        f"wrote {folder}: sigma {trained.sigma:g} by the {trained.report['sigma_by']}; held out, it finds "
        f"{found['recall']['share']:.1%} of the pivots and lets {found['others_standing']['share']:.1%} of the other "
        f"tokens stand; serve it: opensled serve --model {config.target} --loose-rules pad --pivots {folder}"
    )
