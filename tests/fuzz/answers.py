"""What becomes of answers with the marks of any family in them, and of pasted names."""

import contextlib
import json

from http_api.calls import CallReader
from opensled.core.errors import OpenSledError
from opensled.core.messages import CallForm, Guide, Tool
from opensled.models.pasted_names import model_name
from opensled.text.call_forms import BARE, BLANKS, FORMS, ID, TOLD, call_heads
from opensled.text.families import KNOWN, SIGNS, marks_of
from opensled.text.thought_reader import Start, ThoughtReader
from tests.fuzz.choices import Choices

FAMILIES = (*KNOWN, *SIGNS.values())
CALLS = (BARE, *(form for _, form in (*FORMS, *TOLD)))
WORDS = ("a", " ", "\n", "<", "}", "analysis", "f", '{"x": 1}', "to=functions.f ", ",", '"')
PASTED = (
    "org/repo", ":", "Q4_K_M", "https://hf.co/", "/blob/main/", " -hf ", "@", '"', "\\", "%", "?", "=", "#", "hf:",
)  # fmt: skip
TOOL = Tool("f", "", '{"properties": {"x": {"type": "integer"}}}')
GUIDE = Guide("", (TOOL,), "auto")


def answer_marks(data: bytes) -> None:
    """An answer in marks and words, read whole and in pieces: the same thoughts, text and calls."""
    choose = Choices(data)
    family, form = choose.pick(FAMILIES), choose.pick(CALLS)
    words = choose.some(lambda: choose.pick((*WORDS, *marks_of(family), *_literal(form))), 40)
    start = Start(choose.flag(), choose.flag())
    heads = call_heads(GUIDE, form) if choose.flag() else ()
    readers = [ThoughtReader(family, start, tools=["f"], heads=heads) for _ in range(2)]
    assert _read(words, readers[0], form) == _read(["".join(words)], readers[1], form)


def _literal(form: CallForm) -> list[str]:
    return [part.replace(BLANKS, "").replace(ID, "1") for part in form if part]


def _read(pieces: list[str], thoughts: ThoughtReader, form: CallForm) -> list[str]:
    said = [*map(thoughts.push, pieces), thoughts.flush()]
    calls, kinds = CallReader([TOOL], form), dict.fromkeys(("text", "name", "arguments"), "")
    for piece in (*(found for each in said for found in calls.push(each.text)), *calls.flush()):
        kinds[piece.kind] += piece.text
    return ["".join(each.thoughts for each in said), "".join(each.call for each in said), json.dumps(kinds)]


def pasted_name(data: bytes) -> None:
    """A name as people may paste it: what is understood is understood again."""
    choose = Choices(data)
    name = "".join(choose.some(lambda: choose.pick((*PASTED, choose.text())), 8))
    with contextlib.suppress(OpenSledError):
        model_name(name)
