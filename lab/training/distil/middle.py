"""A model between smollm2 and its draft, for `opensled relay`: made by one command, which goes on where it was stopped.

As the draft, it is cut out of the target and trained on text that the target wrote. It keeps more layers, those that
layer_choice.py finds; the ones below the first gap compute what they do in the target, and are left as they are.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaForCausalLM

from lab.training.distil.agreement import agreement, noisy_agreement, of_model
from lab.training.distil.distiller import Pace
from lab.training.distil.layer_choice import kept_layers, sample_of
from lab.training.distil.pruned import pruned
from lab.training.distil.shipped_layers import write_layers
from lab.training.distil.shipping import NAME
from lab.training.distil.target_model import load_target
from lab.training.distil.workplace import Workplace
from opensled.models.draft_assembly import assemble_gguf
from opensled.models.store import is_here, model_file

LONG_SHARE = 0.15  # of the tokens written, as for the draft
TEMPERATURE = 0.8
# It begins nearer to the target than the draft did, and mostly has less time: small steps, and more of them.
PACE = Pace(rate=4e-4, warming=10, measured=100_000, batch=1280)
# The target's own Q4_1 has steps as large as what a short training adds: rounded to it, two thirds were gone.
KIND = "Q8_0"
KEPT, REPORT = "kept.json", "agreement.md"


@dataclass(frozen=True)
class MiddlePlan:
    """What to make, in layers and tokens; over the last `end` of `tokens` the learning rate falls to 0."""

    layers: int = 15
    written: int = 300_000
    tokens: int = 1_000_000
    end: int = 300_000


def make_middle(place: Workplace, plan: MiddlePlan, pace: Pace = PACE, compiled: bool = True) -> Path:
    """The GGUF file that came out, with its agreement in a table beside it."""
    if not (place.heldout / "sampled.npz").exists():
        place.write_heldout()
    _write_texts(place, plan.written)
    kept = _kept(place, plan.layers)
    trainer = place.distiller(middle_of(load_target(place.target), kept), pace, compiled)
    trainer.run(plan.tokens, plan.end)
    path = write_middle(trainer.mean_draft(), place, kept)
    report = measured(place, path)
    path.with_name(REPORT).write_text(report)
    print(report, end="")
    return path


def _write_texts(place: Workplace, tokens: int) -> None:
    for long, share in ((False, 1 - LONG_SHARE), (True, LONG_SHARE)):
        if (missing := round(tokens * share) - place.written(long)) > 0:
            place.write_texts(missing, long)


def _kept(place: Workplace, layers: int) -> tuple[int, ...]:
    """Chosen once: what is being trained cannot change its layers."""
    path = place.run / KEPT
    if not path.exists():
        kept = kept_layers(load_target(place.target), layers, sample_of(place.texts))
        path.write_text(json.dumps(kept))
    kept = tuple(json.loads(path.read_text()))
    if len(kept) != layers:
        raise ValueError(
            f"{place.run} is of a model with {len(kept)} layers, not {layers}: take another --work"
        )
    return kept


def middle_of(target: LlamaForCausalLM, kept: tuple[int, ...]) -> LlamaForCausalLM:
    """These layers of the target; those below the first gap are not trained."""
    middle = pruned(target, kept)
    for place, layer in enumerate(middle.model.layers):
        layer.requires_grad_(kept[: place + 1] != tuple(range(place + 1)))
    return middle


def write_middle(middle: LlamaForCausalLM, place: Workplace, kept: tuple[int, ...]) -> Path:
    """A GGUF file of its own: the target's embedding and tokenizer, and these layers."""
    name = f"{place.target.stem.partition('.')[0]}-{len(kept)}-layers"
    path = place.run / f"{name}.gguf"
    with tempfile.TemporaryDirectory(dir=place.run) as scratch:
        layers, made = Path(scratch) / "layers.gguf", Path(scratch) / path.name
        write_layers(middle, layers, name, KIND)
        assemble_gguf(layers, place.target, made)
        made.replace(path)
    return path


def measured(place: Workplace, made: Path) -> str:
    """A table: how often the model, and the shipped draft where it is here, agree with the target."""
    models = {made.name: made}
    if is_here(NAME):
        models[NAME] = model_file(NAME, "*.gguf")
    greedy, sampled = (place.heldout / f"{name}.npz" for name in ("greedy", "sampled"))
    target, lines = of_model(load_target(place.target)), []
    for name, path in models.items():
        answers = of_model(load_target(path))
        found = agreement(answers, greedy)
        noisy = noisy_agreement(target, answers, sampled, TEMPERATURE)
        shares = [*found.by_kind.values(), found.mean, sum(noisy.values()) / len(noisy)]
        lines.append(f"| {name} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    titles = ["model", *found.by_kind, "mean", f"T = {TEMPERATURE}, shared noise"]
    head = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return "\n".join([*head, *lines]) + "\n"
