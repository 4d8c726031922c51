"""Options of `opensled quality`, and their defaults."""

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.core.messages import MATCH

GREEDY = 0.0


def rule_names(text: str) -> list[str]:
    """Rules between spaces, each once; raises UsageError where there is none."""
    names = list(dict.fromkeys(text.split()))
    if not names:
        raise UsageError("name at least one rule, for example fly:theta=0.1,window=6")
    return names


@dataclass(frozen=True)
class QualityConfig:
    """The rules to compare, the questions, and the device that drafts."""

    model: str = option(
        "tiny",
        "target model: tiny, smollm2, or the name or path of another model, which gets the questions of smollm2",
        group="comparison",
        often=True,
    )
    rule: str = option(
        "fly",
        "acceptance rules to measure, separated by spaces",
        metavar='"A B"',
        check=rule_names,
        often=True,
        apart=True,
    )
    baseline: str = option(MATCH, "rule to compare with", metavar="NAME", often=True)
    pivots: str = option(
        "",
        "folder of the pivot classifier for rule pad; empty = the bundled one",
        metavar="FOLDER",
        apart=True,
    )
    tasks: str = option(
        "",
        "kinds of questions, comma-separated; default: all kinds whose answers can be checked",
        metavar="A,B",
        group="questions",
        often=True,
    )
    items: int = option(400, "maximum number of fresh items of each kind", low=1, metavar="N", often=True)
    users: int = option(4, "number of concurrent requests", low=1, metavar="N", often=True)
    max_tokens: int = option(80, "maximum length of an answer, in tokens", low=1, metavar="N")
    temperature: float = option(GREEDY, "sampling temperature; 0 = greedy", low=0, high=100, metavar="T")
    seed: int = option(0, "seed of items, sampling and intervals", low=0, metavar="N", often=True)
    drafter: str = option(
        "llamacpp",
        "drafter of the device, the same for all rules",
        metavar="NAME",
        group="device and server",
        often=True,
    )
    draft_model: str = option(
        "",
        "draft model of the device; default: the model on this machine that belongs to the target",
        metavar="MODEL",
        often=True,
    )
    draft_length: int = option(15, "draft length, in tokens", low=1, metavar="K", often=True)
    engine: str = option("torch", "engine of the server", metavar="NAME")
    threads: int = option(1, "CPU threads of the server", low=0, high=1024, metavar="N")
    out: str = option(
        "",
        "folder for quality.json, answers.jsonl and quality.html (shows changed texts side by side)",
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
            raise UsageError(f"--rule {self.baseline} is the same as --baseline; name another rule")
        return found
