"""server_drafts.json and its like for docs/benchmarks/README.md and the terminal: ratios, drafts, verdicts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.benchmarks.program import table
from lab.benchmarks.real_document import REQUIRED
from lab.benchmarks.real_view import ENOUGH, cell
from lab.benchmarks.server_drafts_document import COPYING, OWN_CORE
from lab.benchmarks.server_drafts_plan import Run

Found = Mapping[str, Any]
IDLE = 0.02  # cores that the other servers may take while one is measured


def section(document: Found) -> list[str]:
    """For README.md."""
    return [
        f"## {document['title']}",
        "",
        f"![Ratios to no drafts by kind of text]({document['figure']}.svg)",
        "",
        *tables(document),
    ]


def tables(document: Found) -> list[str]:
    """All runs, in Markdown."""
    return [
        "Ratios of tokens/s to no drafts: geometric means over the prompts of a kind (with several users: over groups "
        "of prompts asked at the same time, by the mean seconds of an answer), in brackets a bootstrap interval of "
        f"95 % over them (none for a single one). ▼: below 1. Required: {REQUIRED:g} of each kind; of drafters that "
        f"copy {ENOUGH:g} where answers do ({', '.join(COPYING)}).",
        "",
        *(line for run in document["facts"]["runs"] for line in _run(run)),
    ]


def title(run: Found) -> str:
    return str(Run(run["setup"], run["sampling"], run["users"]))


def _run(run: Found) -> Iterator[str]:
    names = list(run["over the kinds"])
    yield f"### {title(run)}"
    yield ""
    yield from table(("text", "turns", "none, tokens/s", *names), list(_ratios(run, names)))
    yield ""
    if names:
        yield from _verdict(run, names)
        yield ""


def _ratios(run: Found, names: Sequence[str]) -> Iterator[list[str]]:
    for kind, ratios in run["ratios"].items():
        plain = f"{run['none, tokens/s'][kind]:.1f}"
        yield [kind, str(run["turns"][kind]), plain, *(cell(ratios[name]) for name in names)]
    count = str(sum(run["turns"].values()))
    yield ["all kinds", count, "", *(cell(run["over the kinds"][name]) for name in names)]
    if first := run["first text, sooner"]:
        yield ["all, first text sooner", count, "", *(cell(first[name]) for name in names)]


def _verdict(run: Found, names: Sequence[str]) -> Iterator[str]:
    """A line for each drafter that misses something, then what concerns the run."""
    for name in names:
        missed = [each for each in run["missed"] if each["drafter"] == name]
        told = [f"{each['kind']} {each['ratio']:.2f} (required {each['required']:g})" for each in missed]
        never = [kind for drafter, kind in run["never drafted"] if drafter == name]
        parts = [f"MISSED: {', '.join(told)}"] if told else []
        parts += [f"never drafted, which shows nothing: {', '.join(never)}"] if never else []
        if parts:
            yield f"- `{name}`: {'; '.join(parts)}."
    yield f"- {_texts(run)} {_cores(run)}"


def _texts(run: Found) -> str:
    others = [f"{name} {count}" for name, count in run["other texts"].items() if count]
    told = f"other texts than without drafts: {', '.join(others)}" if others else "all texts are equal"
    return f"Level {', '.join(run['levels'])}: {told}."


def _cores(run: Found) -> str:
    """Whether each server had its core alone; other programs on the machine show as well."""
    idle, (few, turns) = run["idle servers, cores"], run["disturbed"]
    own = f"A server had {run['least share of its core']:.0%} of its core at least"
    told = f"{own}, all others took {idle:.1%} meanwhile."
    parts = [f"{few} of {turns} answers had less than {OWN_CORE:.0%} of the core"] if few else []
    parts += [f"the others took more than {IDLE:.0%}"] if idle > IDLE else []
    return f"{told} DISTURBED: {', '.join(parts)}." if parts else told
