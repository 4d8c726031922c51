"""Texts that a rule changed, side by side with those of the baseline, as HTML."""

from collections.abc import Mapping, Sequence
from html import escape

from lab.testbed.quality.asking import Asked, Reply
from lab.testbed.quality.html import Html, paragraph

MOST = 24  # pairs that are shown of a rule

STYLE = """\
.pair { border-top: 1px solid var(--line); padding: .75rem 0; }
.pair blockquote { margin: 0 0 .5rem; color: var(--soft); white-space: pre-wrap; font-size: .9rem; }
.pair div { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: .75rem; }
.pair p { background: var(--panel); padding: .5rem .75rem; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.pair b { display: block; font-size: .8rem; }
.right { color: var(--win); }
.wrong, mark { color: var(--loss); }
mark { background: none; font-weight: 700; text-decoration: underline; }
"""


def samples(asked: Mapping[str, Sequence[Asked]], rule: str, baseline: str, names: Mapping[str, str]) -> Html:
    """The changed texts of one rule: first those that are right under one of the two only."""
    changed = [
        (task, each)
        for task, items in asked.items()
        for each in items
        if each.replies[rule].ids != each.replies[baseline].ids
    ]
    if not changed:
        return paragraph("This rule changed no text.")
    shown = sorted(changed, key=lambda found: _weight(found[1], rule, baseline))[:MOST]
    told = paragraph(f"{len(shown)} of {len(changed)} changed texts.", kind="note")
    return Html(told + "".join(_pair(task, each, (baseline, rule), names) for task, each in shown))


def _weight(asked: Asked, rule: str, baseline: str) -> int:
    """0: the rule spoilt the answer; 1: it mended it; 2: neither."""
    before, after = asked.replies[baseline].right, asked.replies[rule].right
    return 2 if before == after else int(after)


def _pair(task: str, asked: Asked, rules: tuple[str, str], names: Mapping[str, str]) -> str:
    texts = "".join(_text(asked.replies[rule], names[rule]) for rule in rules)
    wanted = f", wanted: {asked.item.answer}"
    question = f"{task}: {asked.item.text}{wanted}"
    return f'<article class="pair"><blockquote>{escape(question)}</blockquote><div>{texts}</div></article>\n'


def _text(reply: Reply, name: str) -> str:
    word, sign = ("right", "✓") if reply.right else ("wrong", "✗")
    pieces = "".join(_piece(text, loose) for text, loose in reply.pieces)
    return f'<p><b>{escape(name)} <span class="{word}">{sign} {word}</span></b>{pieces}</p>'


def _piece(text: str, loose: bool) -> str:
    return f'<mark title="not the target\'s own">{escape(text)}</mark>' if loose and text else escape(text)
