"""Acceptance by task: what the drafts of real pairs are worth, from published figures.

Acceptance is meant for each position: a draft token is right with this probability if the one before it was. Published
figures use other definitions too. vLLM and SGLang pool over all drafts: a round commits 1 + accepted / drafts tokens.
SpecForge averages the means of requests. With shared noise (docs/protocol.md) at temperature 1, a pair whose
distributions have the total variation distance TV accepts at most (1 - TV) / (1 + TV), where an optimal coupling
accepts 1 - TV: on chat 0.48 instead of 0.65, on code 0.61 instead of 0.76. Greedy text has no such loss.
"""

from typing import NamedTuple

from hw_profiles import catalog
from opensled.core.errors import UsageError

MOST = 0.99  # acceptance: all of them right is no draft


class TaskAcceptance(NamedTuple):
    """What drafts of real pairs are worth on one kind of text."""

    rate: float  # at each position
    words: str  # of which drafts, for a sentence
    source: str  # published figures near it; rounded by us


TASKS = {
    "chat": TaskAcceptance(
        0.60,
        "open chat and writing",
        "Qwen2.5-0.5B for 7B 0.65 (1 - TV); TinyLlama-1.1B for Llama-2-7B 0.57 (arXiv 2604.14682); a DSpark head for "
        "Llama-3.2-1B 0.62 to 0.63 (speculators, issue 1135)",
    ),
    "mixed": TaskAcceptance(
        0.68,
        "a mixture of tasks",
        "between chat and code; Qwen2.5-0.5B for 7B 0.69 on medical text (1 - TV); Qwen3-0.6B for 8B 0.76 to 0.77 "
        "(Nano-vLLM-Ext)",
    ),
    "code": TaskAcceptance(
        0.80,
        "code and arithmetic",
        "Qwen3-0.6B for 8B 0.83 on MBPP and 0.85 on GSM8K (PAD); Qwen2.5-0.5B for 7B 0.76 (1 - TV); a DSpark head for "
        "Llama-3.2-1B 0.84 (speculators, issue 1135)",
    ),
    "mismatched": TaskAcceptance(
        0.35,
        "a draft that does not match its target, such as a fine-tuned one",
        "an assumption; native heads of Qwen3.6-27B fall to 0.39 to 0.48 on creative text",
    ),
}


def rates_of(acceptance: str) -> tuple[float, ...]:
    """By place, the last one for all after it: of a trained head, of a name of TASKS, or a number; () for "".

    Raises UsageError for anything else.
    """
    if acceptance in catalog.names("heads"):
        rates: tuple[float, ...] = catalog.load("heads", acceptance).rates
        return rates
    if acceptance in TASKS or not acceptance:
        return (TASKS[acceptance].rate,) if acceptance else ()
    try:
        rate = float(acceptance)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= MOST:
        raise UsageError(
            f"{acceptance!r} is no acceptance: give a number from 0 to {MOST:g}, or one of {told()}"
        )
    return (rate,)


def told() -> str:
    """The names with their rates, for help and errors."""
    return ", ".join(f"{name} ({task.rate:g})" for name, task in TASKS.items())
