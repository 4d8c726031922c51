"""`opensled train-head`: train a draft head for a target, from texts that it writes itself."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lab.training.heads import windows
from lab.training.heads.batches import tapped_windows
from lab.training.heads.capture import Source, capture, load_source, writer_of
from lab.training.heads.config import TrainHeadConfig
from lab.training.heads.draft_vocabulary import draft_ids
from lab.training.heads.head_writer import save
from lab.training.heads.heldout import tokens_per_step
from lab.training.heads.pupil import Pupil, new_pupil
from lab.training.heads.scripts import LENGTH, Asker
from lab.training.heads.trainer import Plan, Trainer
from lab.training.heads.windows import Window
from verify_server.drafting.heads.head_file import HeadFile, config_digest, load

SEED = 29
TEXTS, HELDOUT = "texts", "heldout"  # folders of shards
ROWS = 96  # texts at once
HELDOUT_WINDOWS = 48  # that the curve is of


def train_head(config: TrainHeadConfig) -> int:
    """`opensled train-head`: make the data, train, and write the head. What is there already is not made again.

    Raises NotFound, UnsupportedModel, UsageError.
    """
    torch.set_num_threads(config.threads)
    source = load_source(config.target)
    write_texts(source, config)
    if not config.capture_only:
        print(_train(source, config), flush=True)
    return 0


def write_texts(source: Source, config: TrainHeadConfig) -> None:
    """The texts to learn from and the held-out ones, as far as they are not there yet."""
    asker = Asker(config.target, source.text, None if config.data == "self" else Path(config.data))
    texts, heldout = config.shop / TEXTS, config.shop / HELDOUT
    if not windows.shards(heldout):
        scripts = list(asker.heldout())
        rows = min(ROWS, len(scripts))
        capture(source, writer_of(source, iter(scripts), rows, LENGTH, SEED), heldout)
    if sum(map(windows.written, windows.shards(texts))) < config.positions:
        seed = SEED + 1000 * (1 + len(windows.shards(texts)))
        writer = writer_of(source, asker.scripts(seed), ROWS, LENGTH, seed)
        capture(source, writer, texts, config.positions)


def _train(source: Source, config: TrainHeadConfig) -> str:
    """What there is now, for people."""
    folder = config.shop / config.head
    folder.mkdir(parents=True, exist_ok=True)
    paths = windows.shards(config.shop / TEXTS)
    pupil = _pupil(source, config, paths)
    plan = Plan(config.form.loss, config.epochs)
    heldout = heldout_windows(config.shop / HELDOUT, pupil.shape.taps)
    trainer = Trainer(pupil, paths, heldout, folder, plan)
    trainer.run()
    written = _write(source, config, pupil, trainer, heldout)
    return (
        f"wrote {written}; serve it: opensled serve --model {config.target} --server-drafter {config.head} "
        f"--draft-model {written}"
    )


def _pupil(source: Source, config: TrainHeadConfig, paths: Sequence[Path]) -> Pupil:
    torch.manual_seed(SEED)
    network, form = source.network, config.form
    ids = draft_ids(windows.own_ids(paths), network.config.vocab_size, config.vocabulary)
    return new_pupil(network, config.head, ids, form.length, form.markov, source.dtype)


def heldout_windows(folder: Path, taps: Sequence[int]) -> list[Window]:
    """HELDOUT_WINDOWS of a folder, of all kinds of text."""
    found = [window for path in windows.shards(folder) for window in tapped_windows(path, taps)]
    return found[:: max(1, len(found) // HELDOUT_WINDOWS)][:HELDOUT_WINDOWS]


def _write(
    source: Source, config: TrainHeadConfig, pupil: Pupil, trainer: Trainer, heldout: Sequence[Window]
) -> Path:
    folder = Path(config.out) if config.out else config.shop / config.head / "head"
    ids = pupil.parts.draft_ids.numpy().astype(np.int32)
    training = {
        "loss": trainer.plan.loss,
        "rows": trainer.progress.rows,
        "heldout_tokens_per_step": trainer.progress.best,
    }
    digest, fingerprint = config_digest(source.network.config), source.text.fingerprint
    head = HeadFile(folder, pupil.head, ids, Path(config.target).stem, fingerprint, digest, training)
    save(head)
    # What users get is rounded to 8 bits: it is measured as well.
    rounded = load(folder)
    found = tokens_per_step(replace(pupil, head=rounded.head), heldout)
    save(replace(head, training={**training, "rounded_tokens_per_step": found}))
    return folder
