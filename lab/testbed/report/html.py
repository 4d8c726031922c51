"""The few pieces of HTML that the sections are made of. Text comes in plain and is escaped here."""

import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from lab.testbed.report.results import Result

LABELS = {
    "real": "measured on this machine with real time",
    "replayed": "real processes and time; drafts are recorded texts, right with a given probability",
    "emulated": "real processes, devices, links and accelerator stretched to their profiles",
    "simulated": "discrete events, no real processes; the same policies",
    "derived": "computed from the profiles by formula",
}


class Html(str):
    """Text that is HTML already."""


class Section(NamedTuple):
    """One chapter of the page."""

    anchor: str
    title: str
    body: str  # HTML


def text(value: object) -> Html:
    """Escaped, if it is not HTML already."""
    return value if isinstance(value, Html) else Html(escape(counted(str(value))))


def paragraph(*sentences: object, kind: str = "") -> Html:
    return Html(f"<p{_class(kind)}>{' '.join(map(text, sentences))}</p>")


def prose(words: str) -> Html:
    """Text in which `code` is marked as in Markdown."""
    return Html(re.sub("`([^`]+)`", r"<code>\1</code>", escape(words)))


def code(words: str) -> Html:
    return Html(f"<code>{escape(words)}</code>")


def table(head: Sequence[object], rows: Sequence[Sequence[object]], *, words: Sequence[int] = (0,)) -> Html:
    """Columns hold numbers and stand right, but for those of `words`."""
    lines = [_row("th", head, words), *(_row("td", row, words) for row in rows)]
    body = "\n".join(lines[1:])
    return Html(f'<div class="wide"><table><thead>{lines[0]}</thead>\n<tbody>{body}</tbody></table></div>')


def _row(tag: str, cells: Sequence[object], words: Sequence[int]) -> str:
    shown = (
        f"<{tag}{_class('' if place in words else 'number')}>{text(cell)}</{tag}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{''.join(shown)}</tr>"


def folded(summary: str, body: str) -> Html:
    """Shown when it is clicked."""
    return Html(f"<details><summary>{escape(summary)}</summary>{body}</details>")


def bullets(items: Sequence[object]) -> Html:
    return Html(f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>")


def plot(svg: str) -> Html:
    return Html(f'<div class="wide plot">{svg}</div>')


def badge(label: str) -> Html:
    return Html(
        f'<span class="badge {escape(label)}" title="{escape(LABELS.get(label, ""))}">{escape(label)}</span>'
    )


def loss(words: object, sign: str = "▼") -> Html:
    """A figure that OpenSLED loses, or one that is off: a sign and a weight beside the colour."""
    return Html(f'<strong class="loss"><span aria-hidden="true">{sign}</span> {text(words)}</strong>')


def is_behind(ratio: float) -> bool:
    """Whether a ratio to another one is a loss as it is shown, with two decimals."""
    return round(ratio, 2) < 1


def times(ratio: float) -> Html:
    """A ratio to another one; below 1 OpenSLED loses."""
    return loss(f"{ratio:.2f}x") if is_behind(ratio) else text(f"{ratio:.2f}x")


def origin(result: Result, page_folder: Path) -> Html:
    """Label, file, command and commit of a result, as a line under its heading."""
    file = Path(os.path.relpath(result.path, page_folder)).as_posix()
    told = result.origin
    label = [badge(result.label)] if result.label in LABELS else []
    parts = [*label, Html(f'<a href="{escape(file)}">{escape(result.path.name)}</a>')]
    if told.get("command"):
        parts.append(code(str(told["command"])))
    if told.get("commit"):
        parts.append(Html(f"commit {code(str(told['commit'])[:12])}"))
    if told.get("date"):
        parts.append(text(str(told["date"])[:16].replace("T", " ")))
    return Html(f'<p class="origin">{" · ".join(parts)}</p>')


def counted(words: str) -> str:
    """ "1 sessions" as "1 session": the results name their series by numbers."""
    return re.sub(r"\b1 (stream|session|device|user|token|thread|round|core)s\b(?!/)", r"1 \1", words)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
