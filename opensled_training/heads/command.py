"""`python -m opensled_training.heads.command`: train a draft head for a target, from its own texts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from opensled_training.heads import windows
from opensled_training.heads.batches import tapped_windows
from opensled_training.heads.capture import Source, capture, load_source, writer_of
from opensled_training.heads.draft_vocabulary import MOST, draft_ids
from opensled_training.heads.losses import LOSSES, OF_KIND
from opensled_training.heads.pupil import Pupil, new_pupil
from opensled_training.heads.scripts import Asker
from opensled_training.heads.trainer import Plan, Trainer
from opensled_training.heads.windows import Window
from verify_server.heads.head_file import HeadFile, config_digest, save

DEFAULT_WORK = Path("build/heads")
SEED = 29
TEXTS, HELDOUT = "texts", "heldout"  # folders of shards
ROWS, LENGTH = 96, 960  # texts at once, and tokens of each at most
HELDOUT_WINDOWS = 48  # that the curve is of


@dataclass(frozen=True)
class HeadOptions:
    """See `add_flags`."""

    target: str
    head: str
    data: Path | None = None  # None = prompts of the target's own
    positions: int = 1_000_000
    work: Path = DEFAULT_WORK
    threads: int = 2
    out: Path | None = None  # None = in `work`
    loss: str = ""  # "" = that of the kind
    length: int = 8
    markov: int = 0
    epochs: int = 6
    vocabulary: int = MOST
    capture_only: bool = False

    @property
    def shop(self) -> Path:
        return self.work / Path(self.target).name


def add_flags(parser: argparse.ArgumentParser) -> None:
    defaults = HeadOptions("", "")
    parser.add_argument(
        "--target", required=True, help="a model's name or path; its folder has one GGUF file"
    )
    parser.add_argument("--head", required=True, choices=tuple(OF_KIND), help="kind of the head")
    parser.add_argument(
        "--data", default="self", help="a file with one prompt a line, or self (default: self)"
    )
    parser.add_argument(
        "--positions", type=int, default=defaults.positions, help="tokens that the target writes"
    )
    parser.add_argument(
        "--work", type=Path, default=defaults.work, help="scratch folder (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=defaults.threads, help="of torch (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder of the trained head (default: in the scratch folder)"
    )
    parser.add_argument("--loss", default="", choices=("", *LOSSES), help="default: that of the kind")
    parser.add_argument("--length", type=int, default=defaults.length, help="tokens or frames of a draft")
    parser.add_argument(
        "--markov", type=int, default=0, help="rank of the bias between neighbours (default: none)"
    )
    parser.add_argument("--epochs", type=int, default=defaults.epochs, help="times to read the data, at most")
    parser.add_argument(
        "--vocabulary", type=int, default=MOST, help="ids that can be drafted (default: %(default)s)"
    )
    parser.add_argument("--capture-only", action="store_true", help="make the data and stop")


def options_of(arguments: argparse.Namespace) -> HeadOptions:
    values = {name: getattr(arguments, name) for name in HeadOptions.__dataclass_fields__}
    return HeadOptions(**{**values, "data": None if arguments.data == "self" else Path(arguments.data)})


def train_head(options: HeadOptions) -> Path | None:
    """Make the data, train, and write the head; its folder, or None if only data was asked for.

    What is there already is not made again. Raises NotFound, UnsupportedModel, UsageError.
    """
    torch.set_num_threads(options.threads)
    source = load_source(options.target)
    _capture(source, options)
    return None if options.capture_only else _train(source, options)


def _capture(source: Source, options: HeadOptions) -> None:
    asker = Asker(options.target, source.text, options.data)
    texts, heldout = options.shop / TEXTS, options.shop / HELDOUT
    if not windows.shards(heldout):
        scripts = list(asker.heldout())
        rows = min(ROWS, len(scripts))
        capture(source, writer_of(source, iter(scripts), rows, LENGTH, SEED), heldout)
    if sum(map(windows.written, windows.shards(texts))) < options.positions:
        seed = SEED + 1000 * (1 + len(windows.shards(texts)))
        writer = writer_of(source, asker.scripts(seed), ROWS, LENGTH, seed)
        capture(source, writer, texts, options.positions)


def _train(source: Source, options: HeadOptions) -> Path:
    folder = options.shop / options.head
    folder.mkdir(parents=True, exist_ok=True)
    paths = windows.shards(options.shop / TEXTS)
    pupil = _pupil(source, options, paths)
    plan = Plan(options.loss or OF_KIND[options.head], options.epochs)
    heldout = heldout_windows(options.shop / HELDOUT, pupil.head.shape.taps)
    trainer = Trainer(pupil, paths, heldout, folder, plan)
    trainer.run()
    return _write(source, options, pupil, trainer)


def _pupil(source: Source, options: HeadOptions, paths: Sequence[Path]) -> Pupil:
    torch.manual_seed(SEED)
    config = source.network.config
    ids = draft_ids(windows.own_ids(paths), config.vocab_size, options.vocabulary)
    return new_pupil(source.network, options.head, ids, options.length, options.markov, source.dtype)


def heldout_windows(folder: Path, taps: Sequence[int]) -> list[Window]:
    """HELDOUT_WINDOWS of a folder, of all kinds of text."""
    found = [window for path in windows.shards(folder) for window in tapped_windows(path, taps)]
    return found[:: max(1, len(found) // HELDOUT_WINDOWS)][:HELDOUT_WINDOWS]


def _write(source: Source, options: HeadOptions, pupil: Pupil, trainer: Trainer) -> Path:
    folder = options.out or options.shop / options.head / "head"
    training = {
        "loss": trainer.plan.loss,
        "rows": trainer.progress.rows,
        "tokens_per_step": trainer.progress.best,
    }
    config, fingerprint = config_digest(source.network.config), source.text.fingerprint
    ids = pupil.parts.draft_ids.numpy().astype(np.int32)
    save(HeadFile(folder, pupil.head, ids, options.target, fingerprint, config, training))
    print(f"wrote {folder}", flush=True)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m opensled_training.heads.command", description=__doc__)
    add_flags(parser)
    train_head(options_of(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
