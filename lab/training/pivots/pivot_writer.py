"""Writes a pivot classifier: the files that verify_server/rules/pivots.py reads."""

import json
from pathlib import Path

import numpy as np

from verify_server.rules.pivots import ABOUT, FORMAT, WEIGHT_NAMES, WEIGHTS, PivotClassifier


def save(classifier: PivotClassifier, folder: Path) -> None:
    """Write both files; each is there as a whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "pivots.part"
    with part.open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: classifier.weights[name] for name in WEIGHT_NAMES})
    part.replace(folder / WEIGHTS)
    about = {
        "format": FORMAT,
        "layer": classifier.layer,
        "target": classifier.target,
        "vocabulary": classifier.vocabulary,
        "sigma": classifier.sigma,
        "training": dict(classifier.training),
    }
    part.write_text(json.dumps(about, indent=2) + "\n")
    part.replace(folder / ABOUT)
