"""`python -m lab.training.distil`: make the draft of smollm2 again, step by step, or a middle model at once."""

import argparse
from pathlib import Path

import torch

from lab.training.distil.middle import MiddlePlan, make_middle
from lab.training.distil.pruned import pruned
from lab.training.distil.shipping import NAME, ship
from lab.training.distil.target_model import load_target
from lab.training.distil.workplace import Workplace
from opensled.models.store import shipped_layers

DEFAULT_WORK = Path("build/distil")
EPILOG = "example: nice -n 19 python -m lab.training.distil middle --layers 15 --work build/middle"


def main() -> int:
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    STEPS[arguments.step](arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m lab.training.distil", description=__doc__, epilog=EPILOG)
    parser.add_argument("step", choices=STEPS, help="middle: all steps to a larger model, for opensled relay")
    parser.add_argument(
        "--work", type=Path, default=DEFAULT_WORK, help="scratch folder (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: %(default)s)")
    parser.add_argument(
        "--tokens",
        type=int,
        default=1_000_000,
        help="text: tokens to write; train, middle: to be trained on in all (default: %(default)s)",
    )
    parser.add_argument("--long", action="store_true", help="text: those that quote, or have two turns")
    parser.add_argument(
        "--end",
        type=int,
        default=0,
        help="train, middle: tokens over which the learning rate falls to 0 (middle: a third of --tokens if not given)",
    )
    parser.add_argument(
        "--layers", type=int, default=15, help="middle: how many layers it keeps (default: %(default)s)"
    )
    parser.add_argument(
        "--written",
        type=int,
        default=300_000,
        help="middle: tokens that the target writes for it to learn from (default: %(default)s)",
    )
    return parser


def _text(arguments: argparse.Namespace) -> None:
    Workplace(arguments.work).write_texts(arguments.tokens, arguments.long)


def _heldout(arguments: argparse.Namespace) -> None:
    Workplace(arguments.work).write_heldout()


def _train(arguments: argparse.Namespace) -> None:
    place = Workplace(arguments.work)
    draft = pruned(load_target(place.target))
    place.distiller(draft, compiled=True).run(arguments.tokens, arguments.end)


def _ship(arguments: argparse.Namespace) -> None:
    place = Workplace(arguments.work)
    draft = place.distiller(pruned(load_target(place.target))).mean_draft()
    ship(draft, place.target, place.run, place.heldout, shipped_layers(NAME))


def _middle(arguments: argparse.Namespace) -> None:
    plan = MiddlePlan(
        arguments.layers, arguments.written, arguments.tokens, arguments.end or arguments.tokens // 3
    )
    path = make_middle(Workplace(arguments.work), plan)
    print(f"made {path}; opensled relay --model {path} --upstream HOST:PORT")


STEPS = {"text": _text, "heldout": _heldout, "train": _train, "ship": _ship, "middle": _middle}


if __name__ == "__main__":
    raise SystemExit(main())
