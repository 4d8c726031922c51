"""Tokenizes chats so that their template alone writes control tokens: what people spell stays text.

Control tokens are the special tokens of a tokenizer, and those of its other added tokens that the template spells, such
as `<｜User｜>` or `<tool_call>`. A chat in which people spell none has the ids of transformers. For others there is a
second tokenizer, in which control tokens have secret names: in the rendered text those of the template get these names,
and the rest, in whatever words, can become none.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from tokenizers import Tokenizer

from opensled.core.errors import InvalidRequest, ProtocolError, Unsupported
from opensled.core.messages import ChatMessage, Tool
from opensled.text.control_spellings import Chat, Spellings, Variables, new_mark
from opensled.text.tokenizer import panics_told

Ids = tuple[int, ...]
SECRET_BYTES = 16
SIGNS = re.compile(r"[^\w\s]")


class ControlTokens:
    """The control tokens of a tokenizer and its chat templates; several threads may use it at once."""

    def __init__(self, tokenizer: Tokenizer, templates: Collection[str], placeholder: str = "") -> None:
        """`placeholder`: the token that stands for a picture, "" = none."""
        self._tokenizer = tokenizer
        special, named = _find_tokens(tokenizer, templates, placeholder)
        self._ids = special | named
        self._spellings = Spellings(self._ids, _markup(named, tokenizer))
        unknown = getattr(tokenizer.model, "unk_token", None)  # stands for any text
        self._counted = frozenset(id for text, id in self._ids.items() if text != unknown)
        self._lock = Lock()

    def encode(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool],
        render: Callable[[Sequence[ChatMessage], Sequence[Tool], Variables], str],
        encode: Callable[[str], Ids],
        variables: Variables = None,
    ) -> Ids:
        """Token ids of a chat, up to the start of the assistant's next turn.

        `render`: its text by the template, or raises InvalidRequest; `encode`: ids of a text, control tokens
        included. Raises Unsupported for a tokenizer that cannot read control tokens as text.
        """
        chat, mark = Chat(messages, tools, variables), new_mark()
        text = self._text(chat, mark, render)
        if mark not in text:
            ids = encode(text)
            if sum(map(ids.count, self._counted.intersection(ids))) <= len(self._find_spellings(text)):
                return ids
            # Letters of people became one in another way, such as by a normalizer.
        return self._apart(text, mark)

    def _text(self, chat: Chat, mark: str, render: Callable[..., str]) -> str:
        """The text of a chat, which has marks if it would else spell a control token that is not the template's."""
        if not self._spellings.may_be_in(chat):
            return render(*chat)
        try:
            broken = render(*self._spellings.broken(chat, mark))
        except InvalidRequest as error:  # it may quote the chat, and people must not read the mark
            raise InvalidRequest(str(error).replace(mark, ""), error.field) from error
        if self._spellings.are_in(chat):
            return broken
        text = render(*chat)
        return text if self._find_spellings(text) == self._find_spellings(broken) else broken

    def _find_spellings(self, text: str) -> list[str]:
        return self._spellings.whole.findall(text)

    @panics_told()
    def _apart(self, text: str, mark: str) -> Ids:
        """Ids of a text whose marks are in what people spelled."""
        with self._lock:
            tokenizer, names = self._second
        text = self._spellings.whole.sub(lambda found: names[found[0]], text).replace(mark, "")
        # Not `encode`: it holds the interpreter's lock, seconds for a long text.
        try:
            return tuple(tokenizer.encode_batch([text], add_special_tokens=False)[0].ids)
        except Exception as error:  # tokenizers raises bare Exception
            raise ProtocolError(f"this tokenizer.json cannot encode a text: {error}") from error

    @cached_property
    def _second(self) -> tuple[Tokenizer, dict[str, str]]:
        """The tokenizer in which control tokens have secret names, and these. Raises Unsupported."""
        secret = secrets.token_hex(SECRET_BYTES)
        names = {text: f"<|{secret}{id}|>" for text, id in self._ids.items()}
        tokenizer = Tokenizer.from_str(json.dumps(_rename(json.loads(self._tokenizer.to_str()), names)))
        if any(tokenizer.token_to_id(names[text]) != id for text, id in self._ids.items()):
            raise Unsupported(
                "these messages contain control tokens of this target, and its tokenizer cannot read them as text; "
                "remove them",
                "messages",
            )
        return tokenizer, names


def _find_tokens(
    tokenizer: Tokenizer, templates: Collection[str], placeholder: str
) -> tuple[dict[str, int], dict[str, int]]:
    """The special tokens, and the other added tokens that the templates spell, with their ids.

    White space and plain words are neither, though a tokenizer may add them: they are everybody's.
    """
    special, named = dict[str, int](), dict[str, int]()
    for id, token in tokenizer.get_added_tokens_decoder().items():
        text = token.content
        if not SIGNS.search(text):
            continue
        if token.special or text == placeholder:
            special[text] = id
        elif any(text in template for template in templates):
            named[text] = id
    return special, named


def _markup(tokens: Collection[str], tokenizer: Tokenizer) -> list[str]:
    """Those of `tokens` that come in pairs, such as <think> and </think>: parts of an answer, no borders of turns."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    closed = {f"{token[0]}/{token[1:]}": token for token in added}
    pairs = {part for closing, token in closed.items() if closing in added for part in (token, closing)}
    return [token for token in tokens if token in pairs]


def _rename(saved: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A tokenizer.json in which added tokens have other names, and cannot be made of letters by their old ones."""
    for token in saved["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = saved["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): id for piece, id in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if "merges" in model:
        prefix = len(model.get("continuing_subword_prefix") or "")
        model["merges"] = [merge for merge in model["merges"] if not _makes(merge, prefix, names)]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return saved | {"post_processor": None}


def _makes(merge: str | list[str], prefix: int, names: dict[str, str]) -> bool:
    """Whether a merge takes or makes a renamed piece."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in names or right in names or left + right[prefix:] in names
