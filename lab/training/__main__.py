"""`python -m lab.training`: make the tiny family again, step by step or all at once."""

import argparse
import os
from pathlib import Path

from opensled.models.models_command import EvalConfig

DEFAULT_WORK = Path("build/training")
EPILOG = "example: nice -n 19 python -m lab.training all --work /tmp/tiny"


def main() -> int:
    args = _parser().parse_args()
    # Spinning threads starve each other where cores are shared: 6,000 instead of 1,600 tokens/s beside one busy
    # process on 2 cores. Read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return _run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m lab.training", description=__doc__, epilog=EPILOG)
    parser.add_argument("step", choices=("tokenizer", "train", "export", "table", "eval", "all"))
    parser.add_argument(
        "--work",
        type=Path,
        default=DEFAULT_WORK,
        help="scratch folder; what it holds is not made again (default: %(default)s)",
    )
    parser.add_argument(
        "--model", choices=("tiny", "tiny-hub", "tiny-draft"), help="train and export only this one"
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="with the tokenizer of models/tiny: a model made so fits the members that are there",
    )
    parser.add_argument("--items", type=int, default=30, help="held-out items per task in eval (default: 30)")
    parser.add_argument("--json", action="store_true", help="eval as JSON")
    return parser


def _run(args: argparse.Namespace) -> int:

    from . import draft_table
    from .evaluate import models_eval
    from .family import FAMILY
    from .pipeline import Workshop

    shop = Workshop(args.work, args.join)
    members = [FAMILY[args.model]] if args.model else list(FAMILY.values())
    if args.step in ("tokenizer", "all"):
        shop.tokenizer()
    if args.step in ("train", "all"):
        for recipe in members:
            shop.train(recipe)
    if args.step in ("export", "all"):
        shop.export_all(members)
    if args.step in ("table", "all"):
        print(f"built {draft_table.write()}", flush=True)
    return models_eval(EvalConfig(args.items, args.json)) if args.step in ("eval", "all") else 0


if __name__ == "__main__":
    raise SystemExit(main())
