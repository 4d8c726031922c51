"""`python -m opensled_training.distil`: make the draft of smollm2 again, step by step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from opensled.store import model_file

if TYPE_CHECKING:
    from opensled_training.distil.distiller import Distiller

DEFAULT_WORK = Path("build/distil")
TARGET = "smollm2"
SEED = 17
RUN = "run"  # folder of the checkpoint and the curve
ROWS = {False: 144, True: 96}  # texts at once: of the short ones, of the long ones
LENGTH = {False: 576, True: 960}  # tokens


def main() -> int:
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    {"text": _text, "heldout": _heldout, "train": _train, "ship": _ship}[arguments.step](arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m opensled_training.distil", description=__doc__)
    parser.add_argument("step", choices=("text", "heldout", "train", "ship"))
    parser.add_argument(
        "--work", type=Path, default=DEFAULT_WORK, help="scratch folder (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: %(default)s)")
    parser.add_argument(
        "--tokens",
        type=int,
        default=1_000_000,
        help="text: tokens to write; train: to be trained on in all (default: %(default)s)",
    )
    parser.add_argument("--long", action="store_true", help="text: those that quote, or have two turns")
    parser.add_argument(
        "--end", type=int, default=0, help="train: tokens over which the learning rate falls to 0"
    )
    return parser


def _text(arguments: argparse.Namespace) -> None:
    from opensled_training.distil.self_prompts import Frame, drawn
    from opensled_training.distil.self_text import SelfTextWriter, write_shards
    from opensled_training.distil.target_model import load_target, working_dtype
    from verify_server.text.gguf_text import GgufText

    path, long, folder = model_file(TARGET, "*.gguf"), arguments.long, arguments.work / "texts"
    folder.mkdir(exist_ok=True)
    seed = SEED + 1000 * len(list(folder.glob("*.npz"))) + long
    writer = SelfTextWriter(
        load_target(path),
        drawn(Frame(GgufText(path)), seed, long),
        ROWS[long],
        LENGTH[long],
        seed,
        working_dtype(),
    )
    write_shards(writer, folder, "long" if long else "short", arguments.tokens)


def _heldout(arguments: argparse.Namespace) -> None:
    from opensled_training.distil.heldout_texts import write_heldout_texts
    from opensled_training.distil.self_prompts import Frame
    from opensled_training.distil.target_model import load_target
    from verify_server.text.gguf_text import GgufText

    path, folder = model_file(TARGET, "*.gguf"), arguments.work / "heldout"
    folder.mkdir(exist_ok=True)
    write_heldout_texts(load_target(path), Frame(GgufText(path)), folder)


def _train(arguments: argparse.Namespace) -> None:
    _distiller(arguments, compiled=True).run(arguments.tokens, arguments.end)


def _ship(arguments: argparse.Namespace) -> None:
    from opensled.store import shipped_layers
    from opensled_training.distil.shipping import NAME, ship

    draft, work = _distiller(arguments).mean_draft(), arguments.work
    ship(draft, model_file(TARGET, "*.gguf"), work / RUN, work / "heldout", shipped_layers(NAME))


def _distiller(arguments: argparse.Namespace, compiled: bool = False) -> Distiller:
    from opensled_training.distil.distiller import Distiller
    from opensled_training.distil.pruned import pruned
    from opensled_training.distil.target_model import load_target, working_dtype

    work = arguments.work
    (work / RUN).mkdir(exist_ok=True)
    draft = pruned(load_target(model_file(TARGET, "*.gguf")))
    return Distiller(draft, work / "texts", work / "heldout", work / RUN, working_dtype(), compiled)


if __name__ == "__main__":
    raise SystemExit(main())
