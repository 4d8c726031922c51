"""What `opensled quality` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.core.messages import MATCH

GREEDY = 0.0


def rule_names(text: str) -> list[str]:
    """Rules between spaces, each once; raises UsageError where there is none."""
    names = list(dict.fromkeys(text.split()))
    if not names:
        raise UsageError("name at least one rule, such as fly:theta=0.1,window=6")
    return names


@dataclass(frozen=True)
class QualityConfig:
    """Rules, the questions that they are tried on, and the device that drafts."""

    model: str = option(
        "tiny",
        "target: tiny or smollm2, or another one by name or path, which is asked what smollm2 is asked",
        group="what is compared",
        often=True,
    )
    rule: str = option(
        "fly",
        "acceptance rules whose price is asked; several in one text, separated by spaces",
        metavar='"A B"',
        check=rule_names,
        often=True,
        apart=True,
    )
    baseline: str = option(MATCH, "rule that they are compared with", metavar="NAME", often=True)
    pivots: str = option(
        "",
        "folder of the pivot classifier for rule pad; empty = the one that comes with OpenSLED",
        metavar="FOLDER",
        apart=True,
    )
    tasks: str = option(
        "",
        "kinds of questions, separated by commas; default: all whose answers can be checked",
        metavar="A,B",
        group="what is asked",
        often=True,
    )
    items: int = option(
        400, "fresh items of each kind; fewer where a kind has fewer", low=1, metavar="N", often=True
    )
    users: int = option(4, "items asked at the same time", low=1, metavar="N", often=True)
    max_tokens: int = option(80, "most tokens of an answer", low=1, metavar="N")
    temperature: float = option(GREEDY, "sampling temperature; 0 = greedy", low=0, high=100, metavar="T")
    seed: int = option(0, "of the items, of sampling and of the intervals", low=0, metavar="N", often=True)
    drafter: str = option(
        "llamacpp",
        "what drafts on the device, for every rule the same",
        metavar="NAME",
        group="the device and the server",
        often=True,
    )
    draft_model: str = option(
        "",
        "draft model of the device; default: the one on this machine that belongs to the target",
        metavar="MODEL",
        often=True,
    )
    draft_length: int = option(15, "tokens of every draft block", low=1, metavar="K", often=True)
    engine: str = option("torch", "engine of the server", metavar="NAME")
    threads: int = option(1, "CPU threads of the server", low=0, metavar="N")
    out: str = option(
        "",
        "folder for quality.json, answers.jsonl and quality.html, which shows changed texts side by side",
        metavar="FOLDER",
        group="output",
        often=True,
    )
    json: bool = option(False, "print the figures as JSON instead of the table", often=True)

    @property
    def rules(self) -> list[str]:
        """The baseline first. Raises UsageError if there is nothing to compare it with."""
        found = list(dict.fromkeys([self.baseline, *rule_names(self.rule)]))
        if len(found) < 2:
            raise UsageError(f"--rule {self.baseline} is the baseline itself; name another rule")
        return found
