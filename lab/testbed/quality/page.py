"""One page that needs nothing beside it: verdicts, figures, and changed texts."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lab.testbed.quality.asking import Asked
from lab.testbed.quality.figures import FEWEST, GRAM, MARGIN, Row
from lab.testbed.quality.html import Html, bullets, code, table
from lab.testbed.quality.samples import STYLE as SAMPLE_STYLE
from lab.testbed.quality.samples import samples
from lab.testbed.quality.table import COLUMNS, cells, verdict

STYLE = Path(__file__).with_name("page.css")
TITLE = "The price of loose rules"
MEANING = (
    "right: share of answers that pass the check of their task.",
    "difference: in points, against the baseline on the same items, with its paired 95 % bootstrap interval.",
    "changed: share of items with other tokens than the baseline's.",
    "loose: share of tokens that are not the target's own.",
    "nats: negative log-likelihood of a token under the target.",
    f"repeated: share of runs of {GRAM} tokens that their answer had before.",
    "tok/round: tokens committed by one draft block.",
    "speed: tokens/s over those of the baseline, with its interval.",
    f"not inferior: over all items the lower end of the difference is at least {-100 * MARGIN:.0f} points, and there "
    f"are {FEWEST} items or more; inferior: its upper end is less.",
)


def page(
    asked: Mapping[str, Sequence[Asked]],
    rows: Mapping[str, Sequence[Row]],
    names: Mapping[str, str],
    origin: Mapping[str, Any],
) -> str:
    """The whole file. `rows`: by rule, the baseline first; `names`: the rules with all their options."""
    baseline = next(iter(rows))
    body = [
        f"<h1>{TITLE}</h1>",
        _origin(origin),
        _verdicts(rows, names),
        "<h2>Figures</h2>",
        _figures(rows, names),
        bullets(MEANING),
    ]
    for rule in list(rows)[1:]:
        title = f"<h2>Texts changed by {escape(names[rule])}</h2>"
        body += [title, samples(asked, rule, baseline, names)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{TITLE}</title>
<style>
{STYLE.read_text("utf-8")}{SAMPLE_STYLE}</style>
</head>
<body>
{chr(10).join(body)}
</body>
</html>
"""


def _origin(origin: Mapping[str, Any]) -> Html:
    parts = [
        code(str(origin["command"])),
        Html(f"commit {code(str(origin['commit'])[:12])}"),
        escape(str(origin["date"])),
        escape(f"{origin['machine']['cpu']}, {origin['machine']['cores']} cores"),
    ]
    return Html(f'<p class="origin">{" · ".join(parts)}</p>')


def _verdicts(rows: Mapping[str, Sequence[Row]], names: Mapping[str, str]) -> Html:
    overall = {rule: found[-1] for rule, found in rows.items()}
    baseline = next(iter(overall.values()))
    judged = {rule: verdict(row, baseline) for rule, row in overall.items() if row.compared}
    return bullets(
        [Html(f"{code(names[rule])} is {escape('; '.join(words))}") for rule, words in judged.items()]
    )


def _figures(rows: Mapping[str, Sequence[Row]], names: Mapping[str, str]) -> Html:
    head = ["rule", "task", *(title for title, _ in COLUMNS)]
    lines = [[names[rule], row.task, *cells(row)] for rule, found in rows.items() for row in found]
    return table(head, lines, words=(0, 1))
