"""The few pieces of HTML that the page is made of. Text comes in plain and is escaped here."""

import re
from collections.abc import Sequence
from html import escape


class Html(str):
    """Text that is HTML already."""


def text(value: object) -> Html:
    """Escaped, if it is not HTML already."""
    return value if isinstance(value, Html) else Html(escape(counted(str(value))))


def paragraph(*sentences: object, kind: str = "") -> Html:
    return Html(f"<p{_class(kind)}>{' '.join(map(text, sentences))}</p>")


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


def bullets(items: Sequence[object]) -> Html:
    return Html(f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>")


def counted(words: str) -> str:
    """ "1 sessions" as "1 session": the results name their series by numbers."""
    return re.sub(r"\b1 (stream|session|device|user|token|thread|round|core)s\b(?!/)", r"1 \1", words)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
