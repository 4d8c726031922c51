"""A head in 4 bits a weight, and what that costs along the held-out texts.

    python -m lab.training.heads.smaller models/_heads/smollm2-ctc --work build/heads --out build/smaller

`--work` is the folder of `opensled train-head`; the held-out texts are written there if they are not there yet.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from lab.training.heads.capture import Source, load_source
from lab.training.heads.command import HELDOUT, heldout_windows, write_texts
from lab.training.heads.config import TrainHeadConfig
from lab.training.heads.head_writer import save
from lab.training.heads.heldout import tokens_per_step
from lab.training.heads.pupil import Pupil, new_pupil
from verify_server.drafting.heads.head_file import HeadFile, load

BITS = 4


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a head")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder that the smaller head is written to")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    found = shrink(load(asked.folder), asked.work, asked.out)
    print(json.dumps(found, indent=1))


def shrink(head: HeadFile, work: Path, out: Path) -> dict[str, dict[str, float]]:
    """Write the smaller head; returns held-out tokens a step before and after, by way of drafting."""
    source = load_source(head.target)
    wanted = TrainHeadConfig(head.target, work=str(work), positions=0)  # held-out texts alone
    write_texts(source, wanted)
    heldout = heldout_windows(wanted.shop / HELDOUT, head.head.shape.taps)
    pupil = _pupil(head, source)
    save(replace(head, folder=out), BITS)
    before, after = (tokens_per_step(replace(pupil, head=each.head), heldout) for each in (head, load(out)))
    training = {**head.training, "bits": BITS, "rounded_tokens_per_step": after}
    save(replace(head, folder=out, training=training), BITS)
    return {"before": before, "after": after}


def _pupil(head: HeadFile, source: Source) -> Pupil:
    shape = head.head.shape
    return new_pupil(source.network, shape.kind, head.draft_ids, shape.length, shape.markov, source.dtype)


if __name__ == "__main__":
    main()
