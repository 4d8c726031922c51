"""`opensled adapt`: train a draft further on its target's probabilities, and keep it where it gains."""

import contextlib
import copy
import json
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lab.training.adapting.acceptance import accepted, write_texts
from lab.training.adapting.config import AdaptConfig
from lab.training.adapting.draft_folder import MANIFEST, beside, write_draft, write_manifest
from lab.training.adapting.gate import gain
from lab.training.adapting.learner import DraftLearner, Learned
from lab.training.adapting.material import texts_of
from lab.training.adapting.pair import Pair, load_pair
from lab.training.distil.self_text import GIVEN, ends
from lab.training.distil.target_model import load_target
from opensled.core.errors import UsageError

NO_GAIN = 1  # exit code


def adapt(config: AdaptConfig) -> int:
    """`opensled adapt`: 0 if the adapted draft was written, 1 if it gains too little.

    Raises NotFound, UnsupportedModel, UsageError, VocabularyMismatch.
    """
    _check_out(config.folder)
    torch.set_num_threads(config.threads)
    with contextlib.redirect_stdout(sys.stderr):  # of how far it is
        report = adapted(load_pair(config.draft, config.target), config)
    print(json.dumps(report, indent=2) if config.json else said(report, config))
    return 0 if report["gain"]["passes"] else NO_GAIN


def _check_out(folder: Path) -> None:
    """Raises UsageError where another adapted draft, or anything else, would be lost."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} exists already and is not overwritten; name another folder")


def adapted(pair: Pair, config: AdaptConfig) -> dict[str, Any]:
    """The report; the folder is written if the gate lets it pass."""
    texts, prompts = texts_of(pair, config)
    heldout = write_texts(pair.source.network, prompts, config.answer, ends(pair.source.network))
    before = [accepted(pair.draft, each, config.length) for each in heldout]
    fingerprints = pair.fingerprints
    learner = DraftLearner(
        copy.deepcopy(pair.draft),
        texts,
        config.shop / "run",
        {"pair": json.dumps(fingerprints), "source": config.kept or config.data},
        config.epochs,
        config.rate,
    )
    started = time.monotonic()
    learner.run()
    with beside(config.folder) as scratch:
        # What is measured is what a device gets: the weights rounded to 8 bits.
        rounded = load_target(write_draft(learner.draft, pair, scratch, config.onnx))
        after = [accepted(rounded, each, config.length) for each in heldout]
        found = gain(before, after, config.min_gain)
        report: dict[str, Any] = {
            "parents": fingerprints,
            "learned": _learned(learner.learned, sum(int((text.roles != GIVEN).sum()) for text in texts)),
            "draft_length": config.length,
            "before": [each.facts() for each in before],
            "after": [each.facts() for each in after],
            "gain": found.facts(),
            "this_run_s": round(time.monotonic() - started, 1),
        }
        if found.passes:
            write_manifest(scratch, report)
            _move(scratch, config.folder)
    (config.shop / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _move(scratch: Path, folder: Path) -> None:
    """An empty folder may be there."""
    if folder.is_dir():
        folder.rmdir()
    shutil.move(scratch, folder)


def _learned(learned: Learned, written: int) -> dict[str, Any]:
    return {
        **asdict(learned),
        "seconds": round(learned.seconds, 1),
        "minutes": round(learned.seconds / 60, 2),
        "written_tokens": written,
    }


def said(report: dict[str, Any], config: AdaptConfig) -> str:
    """For people."""
    learned, found = report["learned"], report["gain"]
    lines = [
        f"| draft of {config.length} | T | tokens a round | accepted at position {_places(config.length)} |",
        "|---|---|---|---|",
    ]
    for name in ("before", "after"):
        for each in report[name]:
            places = ", ".join(f"{share:.3f}" for share in each["by_position"])
            lines.append(f"| {name} | {each['temperature']} | {each['tokens_per_round']:.2f} | {places} |")
    lines.append(
        f"gain: {found['tokens_per_round']:.3f} tokens a round ({found['low']:.3f} to {found['high']:.3f}), wanted at "
        f"least {found['wanted']:g}; {learned['weights']:,} weights learned from {learned['tokens']:,} tokens in "
        f"{learned['minutes']:.1f} minutes"
    )
    lines.append(_next_step(bool(found["passes"]), config))
    return "\n".join(lines)


def _places(length: int) -> str:
    return ", ".join(str(place + 1) for place in range(length))


def _next_step(passes: bool, config: AdaptConfig) -> str:
    if passes:
        return (
            f"wrote {config.folder} ({MANIFEST} says how it was made); draft with it: opensled edge --draft-model "
            f"{config.folder}"
        )
    return (
        "it gains too little, so nothing was written; let the target write more (--positions), read it more often "
        "(--epochs), or accept less (--min-gain)"
    )
