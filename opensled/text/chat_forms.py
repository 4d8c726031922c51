"""The forms of a chat that strict templates take, and the first of them that one takes.

Templates state what they take by refusing the rest: a system message must come first, or there is none; roles must
alternate; the ids of calls have nine characters. Some do not refuse a system message or the result of a tool, but leave
it out. So a chat is rendered as it was sent, and only if that fails in the next form, which changes more. What is
folded goes where other servers put it: later system messages into the first one (vLLM, LiteLLM), and that one, if there
is no such role, into the first turn of the user (llama.cpp).
"""

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from opensled.core.errors import InvalidRequest
from opensled.process.fork_server import OverLimit
from opensled.text.chat_contents import Turn
from opensled.text.chat_render import LIMITS, TemplateRefused

APART = "\n\n"  # between messages that become one
TOLD = ("system", "user", "tool")  # roles whose texts must be read; of an assistant, thoughts may be left out
MARK = secrets.token_hex(16)  # no text can hold it by chance or by intent
MARKS = re.compile(MARK + r"\d+\.")


def first_taken(versions: Sequence[list[Turn]], render: Callable[[list[Turn]], str]) -> str:
    """The text of a chat in the first form that `render` takes and in which nothing is left out.

    `versions`: the chat as it was sent, then in other words; `render` raises TemplateRefused and OverLimit. Raises
    InvalidRequest for a chat that is taken in no form.
    """
    try:
        return _first_taken(versions, render)
    except OverLimit as error:
        raise InvalidRequest(
            f"rendering these messages takes the chat template more than {error}; send fewer or shorter ones",
            "messages",
        ) from error
    except TemplateRefused as error:
        raise InvalidRequest(
            f"the chat template refuses these messages: {error}; alternate turns of user and assistant, or send one "
            "text to /v1/completions",
            "messages",
        ) from error


def _first_taken(versions: Sequence[list[Turn]], render: Callable[[list[Turn]], str]) -> str:
    told = [turn["content"].strip() for turn in versions[0] if turn["role"] in TOLD]
    tried: list[list[Turn]] = []
    taken: list[str] = []
    refused: list[TemplateRefused] = []
    until = time.monotonic() + LIMITS.seconds  # for all forms: a chat that is slow to render costs no more
    for turns, marked in zip(_forms(versions), _forms(list(map(_add_marks, versions))), strict=True):
        if marked in tried:
            continue
        if tried and time.monotonic() > until:
            break
        tried.append(marked)
        try:
            taken.append(render(turns))
            marks = {mark for turn in marked for mark in MARKS.findall(turn["content"] or "")}
            if all(line in taken[-1] for line in told) or marks <= set(MARKS.findall(render(marked))):
                return taken[-1]
        except TemplateRefused as error:
            refused.append(error)
    if not taken:
        raise refused[0]
    return taken[0]


def one_leading(turns: Sequence[Turn]) -> list[Turn]:
    """With the system messages at the beginning as one."""
    most = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    return [*_as_one(turns[:most]), *turns[most:]]


def short_ids(turns: Sequence[Turn]) -> list[Turn]:
    """With ids of calls that have nine letters and digits, which Mistral's templates require."""
    made = []
    for turn in turns:
        turn = dict(turn)
        if "tool_calls" in turn:
            turn["tool_calls"] = [{**call, "id": short_id(call["id"])} for call in turn["tool_calls"]]
        if "tool_call_id" in turn:
            turn["tool_call_id"] = short_id(turn["tool_call_id"])
        made.append(turn)
    return made


def _forms(versions: Sequence[list[Turn]]) -> Iterator[list[Turn]]:
    """Those that change least first; some may be alike."""
    for version in versions:
        once = one_leading(version)
        ordered = _system_first(once)
        yield from (once, ordered, _alternating(ordered))
        yield from (_without_system(once), _without_system(ordered), _alternating(_without_system(ordered)))


def _add_marks(turns: Sequence[Turn]) -> list[Turn]:
    """With a mark in each text that must be read: templates may change its words, and show it all the same."""
    numbers = count()
    return [
        {**turn, "content": f"{turn['content']} {MARK}{next(numbers)}."} if turn["role"] in TOLD else turn
        for turn in turns
    ]


def _system_first(turns: Sequence[Turn]) -> list[Turn]:
    """With all system messages as one, at the beginning."""
    system = [turn for turn in turns if turn["role"] == "system"]
    return [*_as_one(system), *(turn for turn in turns if turn["role"] != "system")]


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """With the leading system message in the turn of the user that follows it, or as one."""
    if not turns or turns[0]["role"] != "system":
        return list(turns)
    first, *rest = turns
    asked = {"role": "user", "content": first["content"]}
    followed = bool(rest) and rest[0]["role"] == "user"
    return [*_as_one([asked, rest[0]]), *rest[1:]] if followed else [asked, *rest]


def _alternating(turns: Sequence[Turn]) -> list[Turn]:
    """With turns of the user and the assistant in turn, of which the user has the first."""
    made: list[Turn] = []
    for turn in turns:
        if not made or made[-1]["role"] == "system":
            made += [{"role": "user", "content": ""}] if turn["role"] == "assistant" else []
        if made and _are_one(made[-1], turn):
            made[-1:] = _as_one([made[-1], turn])
        else:
            made.append(turn)
    return made


def _are_one(turn: Turn, following: Turn) -> bool:
    """Whether two turns are texts of the same writer; templates may leave out a text beside calls."""
    if turn["role"] != following["role"] or turn["role"] not in ("user", "assistant"):
        return False
    return "tool_calls" not in turn and "tool_calls" not in following


def _as_one(turns: Sequence[Turn]) -> list[Turn]:
    """Turns of one role as one; none stays none."""
    if not turns:
        return []
    content = APART.join(turn["content"] for turn in turns if turn["content"])
    return [{**turns[0], **turns[-1], "content": content}] if len(turns) > 1 else list(turns)


def short_id(id: str) -> str:
    """Nine letters and digits that stand for an id, always the same ones."""
    return hashlib.sha256(id.encode()).hexdigest()[:9]
