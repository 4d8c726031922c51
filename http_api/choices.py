"""One choice of a response: the pieces that a stream sends, and the whole object."""

import secrets
from collections.abc import Sequence
from typing import Any

from http_api.calls import AnswerPiece, CallReader, parse_json
from opensled.core.answer import Chunk
from opensled.core.messages import PromptToken, TokenLogprobs
from opensled.text.answer_text import TextStream
from opensled.text.tokenizer import TargetTokenizer

LOWEST = -9999.0  # OpenAI's number for a token that cannot come; JSON has no infinity


def pair_logprobs(chunk: Chunk) -> tuple[tuple[int, TokenLogprobs], ...]:
    """The tokens of a chunk with their log-probabilities, without the end-of-sequence token, which has no text."""
    pairs = tuple(zip(chunk.token_ids, chunk.logprobs))
    return pairs[:-1] if chunk.finish_reason == "eos" else pairs


class ChatLogprobs:
    """{"content": [{token, logprob, bytes, top_logprobs}, ...]}"""

    def __init__(self, tokenizer: TargetTokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, chunk: Chunk) -> dict[str, Any]:
        return {"content": [self._entry(at) for _, at in pair_logprobs(chunk)], "refusal": None}

    def _entry(self, at: TokenLogprobs) -> dict[str, Any]:
        committed, *likeliest = at
        return {**self._token(*committed), "top_logprobs": [self._token(*token) for token in likeliest]}

    def _token(self, id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(id)
        text = raw.decode(errors="replace")
        return {"token": text, "logprob": max(LOWEST, logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """{"tokens": [...], "token_logprobs": [...], "top_logprobs": [{token: logprob}, ...], "text_offset": [...]}

    An echoed prompt comes first, and then a token that ends the answer, too: harnesses find the prompt's by counting.
    """

    def __init__(self, tokenizer: TargetTokenizer, count: int, echo: str | None) -> None:
        """`count`: of the likeliest tokens; `echo`: the prompt's text; None = it is not shown."""
        self._tokenizer, self._count, self._echo = tokenizer, count, echo
        self._prompt, self._answer = TextStream(tokenizer), TextStream(tokenizer)
        self._read, self._length = 0, len(echo or "")  # characters of the prompt, and of the text, so far

    def of(self, chunk: Chunk) -> dict[str, Any]:
        prompt = () if self._echo is None else chunk.prompt
        answer = pair_logprobs(chunk) if self._echo is None else tuple(zip(chunk.token_ids, chunk.logprobs))
        ids = [*[token.id for token in prompt], *[id for id, _ in answer]]
        places = [*[token.logprobs if token.rank else None for token in prompt], *[at for _, at in answer]]
        offsets = [self._offset_in_prompt(token.id) for token in prompt]
        return {
            "tokens": [self._spelling(id) for id in ids],
            "token_logprobs": [max(LOWEST, at[0][1]) if at else None for at in places],
            "top_logprobs": [self._likeliest(at) if at else None for at in places],
            "text_offset": offsets + [self._offset(id) for id, _ in answer],
        }

    def _offset_in_prompt(self, id: int) -> int:
        """As `_offset`; a special token has a text where the prompt spells it."""
        offset, text = self._read, self._prompt.push([id])
        if id in self._tokenizer.special_ids:
            name = self._spelling(id)
            text = name if (self._echo or "").startswith(name, offset) else ""
        self._read += len(text)
        return offset

    def _likeliest(self, at: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the committed token."""
        return {self._spelling(id): max(LOWEST, logprob) for id, logprob in (*at[1 : 1 + self._count], at[0])}

    def _offset(self, id: int) -> int:
        """Where the token begins in the text: after the characters that are complete before it."""
        offset = self._length
        self._length += len(self._answer.push([id]))
        return offset

    def _spelling(self, id: int) -> str:
        """Its text; its bytes if they are no whole characters, so that no two tokens have the same name."""
        raw = self._tokenizer.token_bytes(id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


# The API has one name for the end by the model and by a stop string.
FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


class ChatChoice:
    """Choice number `index` of a chat; `logprobs` and `calls` if the request asks for them."""

    def __init__(
        self, index: int, logprobs: ChatLogprobs | None, calls: CallReader | None, shows_thoughts: bool = True
    ) -> None:
        self._index, self._logprobs, self._reader = index, logprobs, calls
        self._shows_thoughts = shows_thoughts
        self._content = self._thoughts = ""
        self._calls: list[dict[str, Any]] = []
        self._entries: list[dict[str, Any]] = []
        self._cut = False  # the answer ended where a call might have begun
        self._reason: str | None = None

    def opening(self) -> dict[str, Any] | None:
        return self._piece({"role": "assistant", "content": ""})

    def idle(self) -> dict[str, Any]:
        return self._piece({})

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk; returns the pieces that a stream sends."""
        deltas = self._thought(chunk) + [self._delta(piece) for piece in self._pieces(chunk)]
        logprobs = self._logprobs.of(chunk) if self._logprobs else None
        if logprobs and logprobs["content"]:
            self._entries += logprobs["content"]
            deltas = deltas or [{"content": ""}]
        pieces = [self._piece(delta) for delta in deltas]
        if logprobs and pieces:
            pieces[0]["logprobs"] = logprobs
        if chunk.finish_reason:
            self._reason = self._reason_of(chunk.finish_reason)
            pieces.append({**self._piece({}), "finish_reason": self._reason})
        return pieces

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if self._thoughts:
            message["reasoning_content"] = self._thoughts
        if self._calls:
            message |= {"content": self._content or None, "tool_calls": self._calls}
        logprobs = {"content": self._entries, "refusal": None} if self._logprobs else None
        return {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": self._reason}

    def _thought(self, chunk: Chunk) -> list[dict[str, Any]]:
        """What is thought, under the name that most servers and clients have for it."""
        if not chunk.thoughts or not self._shows_thoughts:
            return []
        self._thoughts += chunk.thoughts
        return [{"reasoning_content": chunk.thoughts}]

    def _pieces(self, chunk: Chunk) -> list[AnswerPiece]:
        if self._reader is None:
            return [AnswerPiece("text", chunk.text)] if chunk.text else []
        pieces = self._reader.push(chunk.text)
        rest = self._reader.flush() if chunk.finish_reason else []
        self._cut = any(piece.kind == "text" for piece in rest)
        return pieces + rest

    def _delta(self, piece: AnswerPiece) -> dict[str, Any]:
        if piece.kind == "text":
            self._content += piece.text
            return {"content": piece.text}
        if piece.kind == "name":
            function = {"name": piece.text, "arguments": ""}
            self._calls.append(
                {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": dict(function)}
            )
            news = {**self._calls[-1], "function": function}
        else:
            self._calls[-1]["function"]["arguments"] += piece.text
            news = {"function": {"arguments": piece.text}}
        return {"tool_calls": [{"index": len(self._calls) - 1, **news}]}

    def _reason_of(self, reason: str) -> str:
        """Calls are a reason of their own if each is whole: a client that reads the reason may run them."""
        known = FINISH_REASONS[reason]
        whole = not self._cut and all(
            parse_json(call["function"]["arguments"]) is not None for call in self._calls
        )
        return "tool_calls" if self._calls and whole and known == "stop" else known

    def _piece(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


class PromptLogprobs:
    """vLLM's form: for each token of a prompt {id: {logprob, rank, decoded_token}, ...}, null for the first one."""

    def __init__(self, tokenizer: TargetTokenizer, count: int) -> None:
        """`count`: how many of the likeliest tokens to show in each place."""
        self._tokenizer, self._count = tokenizer, count
        self.places: list[dict[str, Any] | None] = []

    def push(self, tokens: Sequence[PromptToken]) -> None:
        """Tokens that became known."""
        self.places += [self._place(token) if token.rank else None for token in tokens]

    def _place(self, token: PromptToken) -> dict[str, Any]:
        own, *likeliest = token.logprobs
        ranked = [(token.rank, *own), *[(rank, *at) for rank, at in enumerate(likeliest[: self._count], 1)]]
        return {str(id): self._entry(rank, id, logprob) for rank, id, logprob in ranked}

    def _entry(self, rank: int, id: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.token_bytes(id).decode(errors="replace")
        return {"logprob": max(LOWEST, logprob), "rank": rank, "decoded_token": text}


class CompletionChoice:
    """Choice number `index` of a completion; it begins with `echo`, its prompt or ""."""

    def __init__(
        self, index: int, logprobs: CompletionLogprobs | None, echo: str, prompt: PromptLogprobs | None
    ) -> None:
        self._index, self._logprobs, self._text, self._prompt = index, logprobs, echo, prompt
        self._lists: dict[str, list[Any]] = {}
        self._reason: str | None = None

    def opening(self) -> dict[str, Any] | None:
        return self._piece(self._text) if self._text else None

    def idle(self) -> dict[str, Any]:
        return self._piece("")

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk; returns the pieces that a stream sends."""
        self._text += chunk.text
        if self._prompt:
            self._prompt.push(chunk.prompt)
        logprobs = self._logprobs.of(chunk) if self._logprobs else None
        for name, values in (logprobs or {}).items():
            self._lists.setdefault(name, []).extend(values)
        shows = chunk.text or (logprobs and logprobs["tokens"])
        pieces = [{**self._piece(chunk.text), "logprobs": logprobs}] if shows else []
        if chunk.finish_reason:
            self._reason = FINISH_REASONS[chunk.finish_reason]
            pieces.append({**self._piece(""), "finish_reason": self._reason})
        return pieces

    def whole(self) -> dict[str, Any]:
        logprobs = self._lists if self._logprobs else None
        more = {"prompt_logprobs": self._prompt.places} if self._prompt else {}
        return {**self._piece(self._text), "logprobs": logprobs, "finish_reason": self._reason, **more}

    def _piece(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}


Choice = ChatChoice | CompletionChoice
