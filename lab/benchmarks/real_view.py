"""real_prompts.json for docs/benchmarks/README.md: ratios of every drafter and kind of text, losers included."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.benchmarks.program import table

ENOUGH = 1.5  # the project's bar for the best drafter of each kind, over the kinds
LOST = 1.0
Found = Mapping[str, Any]


def section(document: Found) -> list[str]:
    """For README.md."""
    return [
        "## Real prompts on a real pair, by kind of text",
        "",
        "Ratios of tokens/s to no drafts: the geometric mean over the prompts of a kind, in brackets a bootstrap "
        "interval of 95 % over them (none for a single prompt). ▼: below 1. In bold the best drafter of a "
        "kind, chosen by the same answers. *tokens a round*: what a block and its verdict commit; a block that came "
        "too late commits nothing.",
        "",
        "![Ratios to no drafts by kind of text](real_prompts.svg)",
        "",
        *_runs(document["facts"]["runs"]),
    ]


def _runs(runs: Sequence[Found]) -> Iterator[str]:
    for run in runs:
        yield f"### Set-up {run['setup']}, {run['sampling']}"
        yield ""
        names = list(run["over the kinds"])
        yield from table(("text", "prompts", "no drafts, tokens/s", *names), list(_rows(run, names)))
        yield ""
        yield _verdict(run)
        yield ""
        drafting = [name for name in names if name in next(iter(run["tokens per round"].values()))]
        rows = [
            [kind, *("–" if rounds[name] is None else f"{rounds[name]:.2f}" for name in drafting)]
            for kind, rounds in run["tokens per round"].items()
        ]
        yield from table(("tokens a round", *drafting), rows)
        yield ""


def _rows(run: Found, names: Sequence[str]) -> Iterator[list[str]]:
    for kind, ratios in run["ratios"].items():
        best = run["best of each kind"].get(kind)
        cells = [cell(ratios[name], name == best) for name in names]
        yield [kind, str(run["prompts"][kind]), f"{run['no drafts, tokens/s'][kind]:.1f}", *cells]
    for key, told in (
        ("over the kinds", "all kinds"),
        ("over the kinds, after the first text", "all, after the first text"),
    ):
        yield [told, str(sum(run["prompts"].values())), "", *(cell(run[key][name]) for name in names)]


def cell(found: Found, is_best: bool = False) -> str:
    """A ratio with its interval."""
    mean = f"**{found['mean']:.2f}**" if is_best else f"{found['mean']:.2f}"
    lost = "▼ " if found["mean"] < LOST else ""
    return f"{lost}{mean}{_spread(found)}"


def _spread(found: Found) -> str:
    """Nothing where there is no spread: of one prompt."""
    return f" ({found['low']:.2f} to {found['high']:.2f})" if found["low"] < found["high"] else ""


def _verdict(run: Found) -> str:
    found = run["best of each kind, over the kinds"]
    others = {name: count for name, count in run["other texts"].items() if count}
    texts = (
        "; other texts than without drafts: " + ", ".join(f"{name} {count}" for name, count in others.items())
        if others
        else "; all texts are equal"
    )
    if not found:
        return f"No drafter was compared{texts}."
    bar = "reached" if found["mean"] >= ENOUGH else "MISSED"
    return (
        f"The best drafter of each kind, over the kinds: **{found['mean']:.2f}**{_spread(found)}; required "
        f"{ENOUGH:g}: {bar}. {run['long prompts']} of the prompts are long (some 600 tokens and more){texts}."
    )
