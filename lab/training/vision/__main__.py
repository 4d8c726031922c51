"""`python -m lab.training.vision`: make `tiny-vision` again, step by step or all at once."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from opensled.models.store import model_path

from ..family import MODELS_DIR
from .evaluate import evaluate, load, render
from .exit_draft import NAME, PLAN, make, ship
from .export import export
from .recipe import VISION
from .rows import RowMaker
from .workshop import VisionWorkshop

DEFAULT_WORK = Path("build/vision")


def main() -> int:
    args = _parser().parse_args()
    shop = VisionWorkshop(VISION, args.work, args.threads)
    folder = args.models / VISION.name
    if args.step in ("train", "all"):
        shop.train()
    if args.step in ("export", "all"):
        export(shop.trained(), shop.tokenizer, folder)
        print(f"exported {folder}", flush=True)
    if args.step == "exits":
        maker = RowMaker(VISION, shop.tokenizer, shop.text())
        for layers in map(int, args.layers.split(",")):
            to = args.work / f"exit-{layers}"
            agreement = make(
                load(model_path(str(folder))), maker, layers, folder, to, replace(PLAN, steps=args.steps)
            )
            print(f"{to}: says what {VISION.name} says at {agreement:.3f} of the places", flush=True)
    if args.step == "ship":
        ship(args.work / f"exit-{args.layers}", args.models / NAME)
        print(f"exported {args.models / NAME}", flush=True)
    if args.step in ("eval", "all"):
        scores = evaluate(load(model_path(str(folder))), shop.tokenizer, args.items)
        print(json.dumps([asdict(score) for score in scores], indent=2) if args.json else render(scores))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m lab.training.vision", description=__doc__)
    parser.add_argument("step", choices=("train", "export", "eval", "all", "exits", "ship"))
    parser.add_argument(
        "--layers",
        default="1,2,3,4,5",
        help="of exits, each in its folder; ship takes one (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, default=PLAN.steps, help="of the training of each exit (default: %(default)s)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=DEFAULT_WORK,
        help="scratch folder; what it holds is not made again (default: %(default)s)",
    )
    parser.add_argument(
        "--models", type=Path, default=MODELS_DIR, help="where the folder of the model goes and is read"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads to train with (default: 1)")
    parser.add_argument(
        "--items", type=int, default=200, help="questions of each kind in eval (default: 200)"
    )
    parser.add_argument("--json", action="store_true", help="eval as JSON")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
