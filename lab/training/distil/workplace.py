"""The scratch folder of a run: the target's texts, the held-out ones, and what is trained."""

from pathlib import Path

import numpy as np
from transformers import LlamaForCausalLM

from lab.training.distil.distiller import Distiller, Pace
from lab.training.distil.heldout_texts import write_heldout_texts
from lab.training.distil.self_prompts import Frame, drawn
from lab.training.distil.self_text import GIVEN, SelfTextWriter, shards, write_shards
from lab.training.distil.target_model import load_target, working_dtype
from opensled.models.store import model_file
from verify_server.text.gguf_text import GgufText

TARGET = "smollm2"
SEED = 17
RUN = "run"  # folder of the checkpoint and the curve
ROWS = {False: 144, True: 96}  # texts at once: of the short ones, of the long ones
LENGTH = {False: 576, True: 960}  # tokens
TOKENS_PER_ROW = 1000
NAMES = {False: "short", True: "long"}


class Workplace:
    """`folder` is made. `target`: a GGUF file, that of `opensled pull smollm2` if none is given (NotFound)."""

    def __init__(self, folder: Path, target: Path | None = None) -> None:
        self.target = target or model_file(TARGET, "*.gguf")
        self.texts, self.heldout, self.run = (folder / name for name in ("texts", "heldout", RUN))
        for each in (self.texts, self.heldout, self.run):
            each.mkdir(parents=True, exist_ok=True)

    def write_texts(self, tokens: int, long: bool) -> None:
        """At least `tokens` more. `long`: texts that quote, or have two turns."""
        seed = SEED + 1000 * len(shards(self.texts)) + long
        scripts = drawn(Frame(GgufText(self.target)), seed, long)
        model = load_target(self.target)
        # Of few tokens too many would belong to texts that are never ended.
        rows = max(1, min(ROWS[long], tokens // TOKENS_PER_ROW))
        writer = SelfTextWriter(model, scripts, rows, LENGTH[long], seed, working_dtype())
        write_shards(writer, self.texts, NAMES[long], tokens)

    def written(self, long: bool) -> int:
        """Tokens that the target has written for the texts that are here."""
        return sum(_written(path) for path in self.texts.glob(f"{NAMES[long]}-*.npz"))

    def write_heldout(self) -> None:
        write_heldout_texts(load_target(self.target), Frame(GgufText(self.target)), self.heldout)

    def distiller(
        self, draft: LlamaForCausalLM, pace: Pace | None = None, compiled: bool = False
    ) -> Distiller:
        return Distiller(draft, self.texts, self.heldout, self.run, working_dtype(), compiled, pace)


def _written(shard: Path) -> int:
    with np.load(shard) as file:
        return int((file["roles"] != GIVEN).sum())
