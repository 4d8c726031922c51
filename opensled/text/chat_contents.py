"""The form in which a chat template reads the contents of turns: a text, as most do, or a list of parts.

A template of one form renders nothing of the other, or Python's spelling of it, and says nothing. So each template is
asked: short chats are rendered, and for each role that form is taken of which the template shows the words.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Turn = dict[str, Any]  # one message, by the keys that templates read; its content is text
Part = dict[str, Any]
Render = Callable[[list[Turn]], str]

ROLES = ("user", "system", "assistant", "tool")
PICTURES: tuple[Part, ...] = ({"type": "image"}, {"type": "image_url", "image_url": {"url": ""}})
# Digits stay as they are where a template changes cases or writes JSON.
FIRST, SECOND = (str(10**11 + secrets.randbelow(10**11)) for _ in range(2))
SPELLED = "'type':"  # Python's spelling of a part
ID = "abcde1234"  # of a call; some templates want nine letters


class Contents(NamedTuple):
    """The form of contents that a template reads."""

    picture: str = ""  # what stands for a picture in a content; "" = there are none
    parts: frozenset[str] = frozenset()  # roles whose contents are parts
    # By role the part that is a picture; else the text keeps what stands for it
    pictures: Mapping[str, Part] = {}
    is_heard: bool = True  # whether the template shows what a user says

    def of(self, turns: Sequence[Mapping[str, Any]]) -> list[Turn]:
        """`turns`, whose contents are texts, in this form."""
        return [{**turn, "content": self._content(turn["role"], turn["content"])} for turn in turns]

    def _content(self, role: str, content: str | None) -> str | list[Part] | None:
        if content is None:
            return None
        role = role if role in ROLES else "user"
        picture = self.pictures.get(role)
        texts = content.split(self.picture) if picture else [content]
        if role not in self.parts and len(texts) == 1:
            return content
        parts = [part for text in texts for part in ({"type": "text", "text": text}, picture) if part]
        parts = parts[:-1] if picture else parts
        return [part for part in parts if part.get("text") != ""] or parts


def learn_contents(render: Render, picture: str, placeholder: str) -> Contents:
    """The form that the template of `render` reads, which returns "" for a chat that it does not take.

    `placeholder`: what the template writes for a `picture`; "" = the model sees none.
    """
    found, is_heard = Contents(picture), False
    for role in ROLES:
        parts = frozenset(ROLES) if role == "user" else found.parts | {role}
        forms = (found._replace(parts=found.parts - {role}), found._replace(parts=parts))
        shown = _first_shown(render, forms, role, " word ", (FIRST, SECOND))
        found, is_heard = shown or found, is_heard or (role == "user" and shown is not None)
        if placeholder:
            seen = [found._replace(pictures={**found.pictures, role: part}) for part in PICTURES]
            found = _first_shown(render, seen, role, picture, (FIRST, placeholder, SECOND)) or found
    return found._replace(is_heard=is_heard)


def _first_shown(
    render: Render, forms: Iterable[Contents], role: str, between: str, words: Collection[str]
) -> Contents | None:
    """The first form in which the template shows all `words` of a turn of `role`."""
    chats = _chats(role, f"Word {FIRST}{between}{SECOND} word.")
    for form in forms:
        for chat in chats:
            text = render(form.of(chat))
            if all(word in text for word in words) and SPELLED not in text:
                return form
    return None


def _chats(role: str, content: str) -> list[list[Turn]]:
    """Short chats with a turn of `role`; a template may refuse one and take another."""
    turn, user, answer = _turn(role, content), _turn("user"), _turn("assistant")
    given: tuple[object, ...] = ({}, "{}")
    calls = [
        {"id": ID, "type": "function", "function": {"name": "tool", "arguments": each}} for each in given
    ]
    return {
        "user": [[turn], [_turn("system"), turn], [user, answer, turn]],
        "system": [[turn, user]],
        "assistant": [[user, turn, user], [user, turn]],
        "tool": [
            [user, _turn("assistant", "", tool_calls=[call]), {**turn, "tool_call_id": ID, "name": "tool"}]
            for call in calls
        ],
    }[role]


def _turn(role: str, content: str = "Word.", **more: object) -> Turn:
    return {"role": role, "content": content, **more}
