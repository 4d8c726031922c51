"""Whether and how the model of a chat template thinks before it answers, and how an answer begins.

A chat template either ends the prompt with the start tag, or with thoughts that are closed already, or leaves it to the
model to begin with the tag. Where a mark of the family is a special token, that token alone counts, not its spelling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opensled.core.messages import CallForm, Guide, ThoughtTags
from opensled.text.call_forms import call_heads
from opensled.text.families import ANSWERS, CHANNELS, KEYS, KNOWN, LEARNED, SIGNS, WORDS, marks_of, pairs_of
from opensled.text.thought_reader import Start, ThoughtReader, spelled
from opensled.text.tokenizer import TargetTokenizer

TAIL = 64  # ids at the end of a prompt that hold the tags, also where each letter is a token


def thought_tags(template: str) -> ThoughtTags | None:
    """What stands around the thoughts of a chat template's model, and around its answer; None: it has none of these.

    Some templates only cut thoughts off of earlier answers, so the end tag decides; others only open them.
    """
    template = _written_out(template)
    by_sign = [tags for sign, tags in SIGNS.items() if sign in template]
    by_end = [tags for tags in KNOWN if tags.end in template]
    like = [ThoughtTags(*pair) for pair in pairs_of(template, WORDS)]
    found = next(iter((*by_sign, *by_end, *like)), None)
    if found is None or found.answer_start or found.answer_end:
        return found
    needed = 2 if found.end in template else 1  # of the tags around the answer
    around = (pair for pair in pairs_of(template, ANSWERS) if all(tag in template for tag in pair[:needed]))
    return ThoughtTags(found.start, found.end, *next(around, ()))


def thoughts_by_key(template: str, thoughts: str) -> dict[str, str]:
    """The thoughts of an earlier answer, by the keys that a template reads."""
    return {key: thoughts for key in KEYS if thoughts and re.search(rf"\b{key}\b", template)}


def start_of(tags: ThoughtTags, tail: str) -> Start:
    """How an answer begins behind a prompt that ends with `tail`; in channels, until its text begins, with thoughts."""
    tail = tail.rstrip()
    if tags.start in CHANNELS:
        return Start(not tail.endswith(tags.answer_start), False)
    inside = tail.endswith(tags.start)
    return Start(inside, not inside and not tail.endswith((tags.end, tags.answer_start or tags.end)))


def tail_of(prompt: Sequence[int], bytes_of: Callable[[int], bytes]) -> str:
    """The text at the end of a prompt, for `start_of`; `bytes_of`: those of one id."""
    return b"".join(map(bytes_of, prompt[-TAIL:])).decode(errors="replace")


def reader_of(
    tags: ThoughtTags | None,
    tokenizer: TargetTokenizer,
    prompt: Sequence[int],
    guide: Guide | None = None,
    form: CallForm | None = None,
) -> ThoughtReader:
    """The reader of the answer to a chat whose ids are `prompt`.

    `tags`: None = the template has none; then the tokenizer may, or the model has learned some. `guide`: whose tools it
    may call, in this form.
    """
    tail, others = tail_of(prompt, tokenizer.token_bytes), () if tags else LEARNED
    added, ended = tokenizer.added_pieces, tail.rstrip()
    fitting = (one for one in others if ended.endswith(one.start) or added.issuperset(one[:2]))
    tags = tags or next(fitting, KNOWN[0])
    marks = "\n".join([mark for one in (tags, *others) for mark in marks_of(one)])
    special = frozenset(piece for piece in tokenizer.special_pieces if piece and piece in marks)
    reader = ThoughtReader(
        tags, start_of(tags, tail), special, guide.callable if guide else (), others, call_heads(guide, form)
    )
    if channels := CHANNELS.get(tags.start):
        reader.begin(spelled(tail.rpartition(channels.first)[2], special) if channels.first in tail else "")
    return reader


def _written_out(template: str) -> str:
    """With tags that a template makes of a variable, as '</think{}>'.format(NAME), in full (Hunyuan)."""
    for name, value in re.findall(r"set (\w+) = ['\"](:\w+)['\"]", template):
        template = re.sub(rf"\{{\}}(?=[^'\"]*['\"]\.format\({name}\))", value, template)
    return template
