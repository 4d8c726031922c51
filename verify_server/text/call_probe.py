"""The form in which a chat template writes calls: it is given two calls, and shows what it puts around their parts."""

import json
import re
from collections.abc import Callable, Iterator

from opensled.core.messages import CallForm, ChatMessage, ToolCall
from opensled.core.protocol import common_prefix
from opensled.text.call_forms import BARE, BLANKS, FORMS, ID, TOLD, form_told, opening
from opensled.text.thinking import thought_tags

# The texts of a chat in the versions that a template takes
Render = Callable[[list[ChatMessage]], Iterator[str]]

NAMES, KEYS = ("first_probe", "second_probe"), ("key_one", "key_two")
VALUES = (("word_one", "word_two"), ("word_three", "word_four"))
ANSWER = "An answer of words."
ASKED = ChatMessage("user", "A question.")
IDS = ("probe1abc", "probe2abc")  # Mistral's have nine letters
QUOTES = ('"', "'")
OF_VALUE = re.compile(r'\b(string|type)="(?:true|string)"')  # tells that the value of a parameter is a text
PART = re.compile(r"[<\[][^<>\[\]\s]*$")  # of a tag that is cut at its end
CUT = re.compile(r"^[^<>\[\]{}\"]*[>\]](?=␣?[<\[])")  # or at its beginning


def find_form(template: str, render: Render) -> CallForm | None:
    """How the model of a template writes calls; None: in a form that is not known."""
    end = thought_tags(template)
    # Some templates leave out what the last turn calls.
    for after in ([], [ASKED]):
        chats = [[ASKED, _calls(count), *after] for count in (2, 1)]
        shown = [
            text for chat in chats for text in render(chat) if NAMES[len(chat[1].tool_calls) - 1] in text
        ]
        if form := form_told("\n".join([template, *shown]), FORMS):
            return form
        answers = render([ASKED, ChatMessage("assistant", ANSWER), *after])
        before, _, behind = next((text for text in answers if ANSWER in text), ANSWER).partition(ANSWER)
        for text in shown:
            if form := _read(text, before, _loose(behind), end.end if end else ""):
                return form
        if shown:  # with marks that are told, but otherwise than that: it is another form
            return None if form_told("\n".join(shown), TOLD) else form_told(template, TOLD)
    return form_told(template, TOLD) or BARE


def shows_one_call(render: Render) -> bool:
    """Whether the template shows one call of a turn alone: it leaves out the second, or refuses it."""
    chats = [[ASKED, _calls(count), ASKED] for count in (2, 1)]
    return {sum(name in text for name in NAMES) for chat in chats for text in render(chat)} - {0} == {1}


def _calls(count: int) -> ChatMessage:
    calls = zip(
        IDS, NAMES, [json.dumps(dict(zip(KEYS, values, strict=True))) for values in VALUES], strict=True
    )
    return ChatMessage("assistant", "", tuple([ToolCall(*call) for call in calls][:count]))


def _read(text: str, before: str, behind: str, thought: str) -> CallForm | None:
    """The form of the calls in `text`.

    `before` and `behind` stand around an answer of words; `thought` ends thoughts, "" = the model has none.
    """
    start = len(PART.sub("", text[: common_prefix(text, before)]))
    lead, *parts = re.split("|".join(NAMES), text[start:])
    if thought and thought in lead:
        lead = lead.rpartition(thought)[2]
    found = [_arguments(part, *values) for part, values in zip(parts, VALUES, strict=False)]
    read = [each for each in found if each]
    if not parts or len(read) != len(parts) or len({form for form, _ in read}) != 1:
        return None
    (form, gap), (_, rest) = read[0], read[-1]
    rest, lead = _without_end(_loose(rest), behind), _loose(lead).lstrip(BLANKS)
    if any(word in "".join(form) for word in (*KEYS, *VALUES[0])):  # such as a tag by the name of a parameter
        return None
    if len(parts) == 1:
        return form._replace(head=lead, tail=rest.rstrip(BLANKS))
    gap = _loose(gap)
    head = CUT.sub("", _common_end(lead, gap)).lstrip(BLANKS)
    gap = gap.removesuffix(head)
    tail = gap[: common_prefix(gap, rest)]
    marked = opening(form._replace(head=head))
    tail = tail if marked or gap != tail else tail.rstrip(BLANKS)  # they stand between calls without a mark
    between = gap.removeprefix(tail) or (BLANKS if marked else "")
    first, last = lead.removesuffix(head), rest.removeprefix(tail).rstrip(BLANKS)
    return form._replace(first=first, head=head, tail=tail, between=between, last=last)


def _arguments(text: str, one: str, two: str) -> tuple[CallForm, str] | None:
    """Of what follows a name: the form of its arguments with what stands before them, and what stands behind."""
    found = re.search(rf'\{{\s*"{KEYS[0]}":\s*"{one}",\s*"{KEYS[1]}":\s*"{two}"\s*\}}', text)
    if found:
        return CallForm(middle=_loose(text[: found.start()])), text[found.end() :]
    found = re.fullmatch(rf"(.*?){KEYS[0]}(.*?){one}(.*?){KEYS[1]}(.*?){two}(.*)", text, re.DOTALL)
    if found is None:
        return None
    before, after, gap, again, behind = found.groups()
    before, after, gap, quote = _loose(before), _loose(after), _loose(gap), after[-1:]
    if quote in QUOTES and gap.startswith(quote) and before.endswith("("):
        return CallForm("", "", before, "", "", "", "python", "", after[:-1], gap[1:]), behind[1:]
    key = CUT.sub("", _common_end(before, gap))
    end = gap.removesuffix(key)
    if after != _loose(again) or not re.search(r"\S", end.strip(BLANKS)) or quote in QUOTES:
        return None
    end = end.strip(BLANKS)
    form = CallForm("", "", before.removesuffix(key), "", "", "", "tags", key, after.rstrip(BLANKS), end)
    return form, _loose(behind).lstrip(BLANKS).removeprefix(end)


def _without_end(text: str, behind: str) -> str:
    """`text` without the end of the turn, as `behind` has it; blanks are loose in both."""
    tag = re.match(rf"{BLANKS}?([<\[][^<>\[\]\s]+[>\]])", behind)
    if tag and tag[1] in text:
        return text[: text.index(tag[1])]
    return PART.sub("", text.removesuffix(_common_end(text, behind)))


def _common_end(one: str, other: str) -> str:
    return one[len(one) - common_prefix(one[::-1], other[::-1]) :]


def _loose(text: str) -> str:
    """A text of a template as one of a form; ids are any, and those that models leave out are no part of it."""
    for id in IDS:
        text = text.replace(id, ID)
    text = OF_VALUE.sub(rf'\1="{ID}"', re.sub(r"\s+", BLANKS, text))
    return re.sub(rf',{BLANKS}?"id":{BLANKS}?"{ID}"', "", text)
