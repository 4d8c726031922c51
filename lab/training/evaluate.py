"""How good the tiny family is on held-out items: right answers of its models, and how often they agree.

The acceptance rate here is per position: along the target's own text, the share of positions at which the smaller
model, given the same prefix, chooses the target's token. That is what the default rule accepts, and what stands of the
tokens that a relay vets.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from lab.training.heldout import heldout_path
from opensled.models.models_command import EvalConfig
from opensled.models.store import model_path

from .decoding import Choice, generate, greedy, noisy_draft, noisy_target, proposals
from .family import DRAFT, HUB, TARGET
from .heldout import read_heldout
from .item import Item, Task
from .tasks import TASKS
from .train_tokenizer import load_tokenizer, render_prompt

TEMPERATURE = 0.8
MAX_NEW_TOKENS = 128
THREADS = 2

Report = dict[str, Any]
# Of the report, with what the table says above them.
COLUMNS = {
    "target_accuracy": "target right",
    "hub_accuracy": "hub right",
    "draft_accuracy": "draft right",
    "hub_greedy_acceptance": "hub T=0",
    "hub_sampled_acceptance": "hub T=0.8",
    "greedy_acceptance": "draft T=0",
    "sampled_acceptance": "draft T=0.8",
}


@dataclass(frozen=True)
class TaskScore:
    """Shares between 0 and 1; the accuracies are None for open-ended tasks. `items` is how many were asked.

    Acceptance is the draft's, and the hub's own where its name says so: both along the text of the target.
    """

    task: str
    items: int
    target_accuracy: float | None
    hub_accuracy: float | None
    draft_accuracy: float | None
    hub_greedy_acceptance: float
    hub_sampled_acceptance: float
    greedy_acceptance: float
    sampled_acceptance: float


@dataclass(frozen=True)
class Family:
    """The three models under test and their one tokenizer."""

    target: PreTrainedModel
    hub: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def acceptance(written: Iterable[Sequence[int]], proposed: Iterable[Sequence[int]]) -> float:
    """Share of equal tokens over all positions of all texts."""
    pairs = [pair for texts in zip(written, proposed, strict=True) for pair in zip(*texts, strict=True)]
    return fmean(theirs == ours for theirs, ours in pairs)


def evaluate(family: Family, items_per_task: int, items_file: Path | None = None) -> Report:
    """`{"tasks": [TaskScore as a dict], "mean": {...}}`; in the mean every task weighs alike. The task under test is
    printed on standard error, because all of them take minutes.

    The items are the first of each task in `heldout.jsonl`: generated anew, those made of the standard library
    would differ between Python versions.
    """
    torch.set_num_threads(THREADS)
    items = read_heldout(items_file or heldout_path(), items_per_task)
    scores = []
    for task in TASKS:
        if items[task.name]:
            print(f"{task.name}: {len(items[task.name])} items", file=sys.stderr, flush=True)
            scores.append(score_task(family, task, items[task.name]))
    return {"tasks": [asdict(score) for score in scores], "mean": _mean(scores), "temperature": TEMPERATURE}


def score_task(family: Family, task: Task, items: list[Item]) -> TaskScore:
    prompts = [family.tokenizer(render_prompt(item))["input_ids"] for item in items]
    written = generate(family.target, prompts, MAX_NEW_TOKENS, greedy)
    sampled = generate(family.target, prompts, MAX_NEW_TOKENS, noisy_target(TEMPERATURE))

    def accuracy(replies: list[list[int]]) -> float | None:
        return _accuracy(family.tokenizer, task, items, replies)

    def answered(model: PreTrainedModel) -> float | None:
        return accuracy(generate(model, prompts, MAX_NEW_TOKENS, greedy) if task.check else [])

    # A relay draws over the whole vocabulary, as the target does; a draft over its likeliest candidates.
    return TaskScore(
        task=task.name,
        items=len(items),
        target_accuracy=accuracy(written),
        hub_accuracy=answered(family.hub),
        draft_accuracy=answered(family.draft),
        hub_greedy_acceptance=_agreement(family.hub, prompts, written, greedy),
        hub_sampled_acceptance=_agreement(family.hub, prompts, sampled, noisy_target(TEMPERATURE)),
        greedy_acceptance=_agreement(family.draft, prompts, written, greedy),
        sampled_acceptance=_agreement(family.draft, prompts, sampled, noisy_draft(TEMPERATURE)),
    )


def render(report: Report) -> str:
    """The report as a plain text table, one line a task."""
    head = f"{'task':<14}{'items':>5}" + "".join(f"{title:>{len(title) + 2}}" for title in COLUMNS.values())
    rows = [_row(score) for score in report["tasks"]]
    return "\n".join([head, *rows, _row({"task": "mean", "items": "", **report["mean"]})])


def models_eval(config: EvalConfig) -> int:
    """`opensled models eval`: evaluate the bundled family and print the report."""
    report = evaluate(bundled_family(), config.items_per_task)
    print(json.dumps(report, indent=2) if config.json else render(report))
    return 0


def bundled_family() -> Family:
    target, hub, draft = (model_path(recipe.name) for recipe in (TARGET, HUB, DRAFT))
    return Family(_load(target), _load(hub), _load(draft), load_tokenizer(target))


def _load(folder: Path) -> PreTrainedModel:
    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _accuracy(
    tokenizer: PreTrainedTokenizerFast, task: Task, items: list[Item], written: list[list[int]]
) -> float | None:
    if task.check is None:
        return None
    replies = tokenizer.batch_decode(written, skip_special_tokens=True)
    return fmean(task.check(reply, item.answer or "") for reply, item in zip(replies, items, strict=True))


def _agreement(
    draft: PreTrainedModel, prompts: list[list[int]], written: list[list[int]], choose: Choice
) -> float:
    return acceptance(written, proposals(draft, prompts, written, choose))


def _mean(scores: list[TaskScore]) -> dict[str, float | None]:
    return {column: _mean_of([getattr(score, column) for score in scores]) for column in COLUMNS}


def _mean_of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _row(score: dict[str, Any]) -> str:
    cells = (
        f"{'-' if score[column] is None else format(score[column], '.2f'):>{len(title) + 2}}"
        for column, title in COLUMNS.items()
    )
    return f"{score['task']:<14}{score['items']!s:>5}" + "".join(cells)
