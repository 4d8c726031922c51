"""The draft of `tiny-vision`: an early exit with a layer that imitates the last ones (FastVLM, arXiv 2510.22641).

The layer is trained where it is asked: behind pictures and their questions, from the states of the frozen model. What
comes out is an ordinary Llama of n + 1 layers, without eyes: beside its target it drafts over KV that has the picture
in it, and on a device from the text alone.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from lab.shipped.gguf_form import first_number
from lab.shipped.recipes import write_recipe
from lab.shipped.safetensors_form import WeightsFile
from verify_server.drafting.exits.exit_file import ALONE, WEIGHTS, ExitFile
from verify_server.drafting.exits.exit_file import load as load_exit
from verify_server.drafting.heads.head_file import config_digest
from verify_server.engine.torch.image_encoder import decoder_of
from verify_server.text.hf_text import HFText

from ..eight_bits import NUMBERS
from ..export import moved_into, patch_json, write_tokenizer
from ..export_gguf import write_gguf
from ..family import END_ID
from ..train import adamw
from .exit_model import exit_model
from .recipe import VISION, Plan
from .rows import Batch, RowMaker

NAME = f"{VISION.name}-draft"
PLAN = Plan(220, 1e-3, 30)
REPORT_STEPS = 50
FUSED = 3  # last layers whose outputs are imitated (arXiv 2510.22641)


@dataclass(frozen=True)
class Seen:
    """What the frozen target makes of a batch."""

    left: Tensor  # [rows, length, size]: what leaves the exit's last layer
    deep: Tensor  # [n, size]: what is imitated at the n places before a reply's tokens, a mean behind the final norm
    logits: Tensor  # [n, vocabulary]
    wanted: Tensor  # [rows, length]: which places those are


class ExitLearner:
    """The imitating layer behind layer `layers` of `whole`, whose weights stay as they are."""

    def __init__(self, whole: LlavaForConditionalGeneration, layers: int) -> None:
        self.whole, self.layers = whole.eval().requires_grad_(False), layers
        self.model: LlamaForCausalLM = exit_model(decoder_of(whole), layers)
        self.layer = self.model.model.layers[-1]

    @torch.no_grad()
    def seen(self, batch: Batch) -> Seen:
        wanted = batch.wanted[:, 1:]
        read = self.whole.model(
            input_ids=batch.ids[:, :-1],
            pixel_values=batch.pixels,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            use_cache=False,
            output_hidden_states=True,
        )
        norm, states = self.model.model.norm, read.hidden_states
        last = read.last_hidden_state[wanted]
        deep = [norm(states[-1 - back][wanted]) for back in range(FUSED - 1, 0, -1)]
        kept = torch.stack([*deep, last]).mean(0)
        return Seen(states[self.layers], kept, self.whole.lm_head(last), wanted)

    def drafted(self, seen: Seen, batch: Batch) -> Tensor:
        """[n, size]: what the exit says at the places before a reply's tokens, behind the final norm."""
        turned = self.model.model.rotary_emb(seen.left, batch.positions)
        behind = self.layer(seen.left, position_embeddings=turned, attention_mask=batch.mask)
        found: Tensor = self.model.model.norm(behind)[seen.wanted]
        return found

    def loss(self, batch: Batch) -> Tensor:
        """The three terms of the paper, each with weight 1; over the whole vocabulary, which is small."""
        seen = self.seen(batch)
        states = self.drafted(seen, batch)
        logits, teacher = self.model.lm_head(states), seen.logits.log_softmax(-1)
        cosine = 1 - functional.cosine_similarity(states, seen.deep, dim=-1).mean()
        apart = functional.kl_div(logits.log_softmax(-1), teacher, reduction="batchmean", log_target=True)
        return cosine + apart + functional.cross_entropy(logits, teacher.argmax(-1))

    @torch.no_grad()
    def agreement(self, batch: Batch) -> float:
        """The share of places at which the exit says what the target says, greedy."""
        seen = self.seen(batch)
        said = self.model.lm_head(self.drafted(seen, batch)).argmax(-1)
        return float((said == seen.logits.argmax(-1)).float().mean())


def train(learner: ExitLearner, batches: Callable[[int], Batch], plan: Plan = PLAN) -> list[float]:
    """Trains the layer; the losses of all steps."""
    optimizer, losses = adamw(learner.layer.parameters(), decay=0.05), list[float]()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.lr_at(step)
        loss = learner.loss(batches(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.layer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if len(losses) % REPORT_STEPS == 0:
            mean = sum(losses[-REPORT_STEPS:]) / REPORT_STEPS
            print(f"exit {learner.layers}: {step + 1}/{plan.steps} loss {mean:.3f}", flush=True)
    return losses


def make(
    whole: LlavaForConditionalGeneration,
    maker: RowMaker,
    layers: int,
    target: Path,
    folder: Path,
    plan: Plan = PLAN,
) -> float:
    """Trains an exit and writes its folder; returns its agreement on batches that training has not seen."""
    learner = ExitLearner(whole, layers)
    train(learner, maker.batch, plan)
    unseen = [maker.batch(plan.steps + number) for number in range(8)]
    agreement = round(sum(map(learner.agreement, unseen)) / len(unseen), 4)
    _write(learner, maker.tokenizer, target, folder, {"steps": plan.steps, "first_accepted": agreement})
    return agreement


def _write(
    learner: ExitLearner,
    tokenizer: PreTrainedTokenizerFast,
    target: Path,
    folder: Path,
    training: dict[str, object],
) -> None:
    with moved_into(folder) as scratch:
        learner.model.generation_config = GenerationConfig(eos_token_id=END_ID, pad_token_id=END_ID)
        learner.model.to(torch.float16).save_pretrained(scratch)
        learner.model.to(torch.float32)
        patch_json(scratch / "config.json", dtype="float32")
        write_tokenizer(tokenizer, scratch)
        write_gguf(scratch, scratch / f"{folder.name}-q8_0.gguf", "Q8_0")
        text, digest = HFText(target), config_digest(decoder_of(learner.whole).config)
        ExitFile(scratch, learner.layers, target.name, text.fingerprint, digest, training).save()


def ship(made: Path, folder: Path) -> None:
    """A copy of an exit's folder without what its target has as well: what its GGUF file is made of, and the layer.

    The folder of the target must lie beside it.
    """
    about = load_exit(made)
    with moved_into(folder) as scratch:
        for path in made.iterdir():
            if path.name not in (WEIGHTS, "config.json", "generation_config.json") and path.suffix != ".gguf":
                shutil.copy(path, scratch)
        [whole] = made.glob("*.gguf")
        gguf = Path(shutil.copy(whole, scratch / f"{folder.name}-q8_0.gguf"))
        own = f"model.layers.{about.layers}."
        weights = {name: weight for name, weight in load_file(made / WEIGHTS).items() if name.startswith(own)}
        save_file(weights, scratch / ALONE)
        others = WeightsFile(f"../{about.target}/{NUMBERS}", "language_model.")
        write_recipe(gguf, first_number(gguf), [WeightsFile(ALONE), others])
