"""What a guided answer may go on with: grammars matched over the bytes of tokens, as masks on the target's logits.

A mask is laid on the target's logits before it samples, so a guided answer is the masked target's own sample, and
drafts are verified against that. The grammars are those of verify_server/text/tool_grammar.py; llguidance matches them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from opensled.errors import EngineError, InvalidRequest, TruthConflict, Unsupported
from opensled.messages import CALL_TAGS, Guide
from verify_server.text.tool_grammar import Grammar, grammar_of

# The compiler recurses along references, several KB of stack each: some 700 of them overflow a thread's usual 8 MB and
# end the whole server. This is more than `MAX_SCHEMA` characters can fill; only what is touched takes memory.
COMPILER_STACK = 256 * 1024 * 1024  # bytes
MAX_CAUSE = 200  # characters of llguidance's own words in our messages

T = TypeVar("T")
_stack_size_lock = threading.Lock()


class Constraint:
    """The grammar of one answer and how far it has come. Not for two threads at once."""

    def __init__(self, matcher: LLMatcher, width: int, eos_ids: frozenset[int]) -> None:
        self._matcher, self._eos_ids = matcher, eos_ids
        self._mask_bytes = (width + 7) // 8
        self._ended = False

    def allowed(self, draft: Sequence[int], parents: Sequence[int] = ()) -> list[bytes]:
        """Masks [len(draft) + 1]: bit b of mask i (little-endian within bytes) tells if id b may follow draft[:i].

        With `parents`, of a tree depth first, mask i + 1 is for what follows draft[i] and the path to it. After a draft
        id that is not allowed, or ends the answer, the last mask is repeated. The state stays what it was. Raises
        EngineError when the grammar is stuck.
        """
        masks = [self._mask()]
        path: list[int] = []  # draft tokens that the matcher has gone along
        for index, token in enumerate(draft):
            parent = parents[index] if parents else index - 1
            self._go_back(path, parent)
            here, known = masks[parent + 1], parent == (path[-1] if path else -1)
            if not known or token in self._eos_ids or not _allows(here, token):
                masks.append(here)
                continue
            self._require(self._matcher.consume_token(token))
            path.append(index)
            masks.append(self._mask())
        self._go_back(path, -1)
        return masks

    def _go_back(self, path: list[int], parent: int) -> None:
        """Along `path`, to the token `parent` or one before it."""
        left = len(path)
        while path and path[-1] > parent:
            path.pop()
        if left > len(path):
            self._require(self._matcher.rollback(left - len(path)))

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on by committed ids, which the masks must have allowed; after the end there is nothing but ends."""
        for token in tokens:
            if token in self._eos_ids:
                self._require(self._ended or self._matcher.is_accepting())
                self._ended = True
            else:
                self._require(not self._ended and self._matcher.consume_token(token))

    def _mask(self) -> bytes:
        if self._ended:
            return self._only_eos()
        mask = self._matcher.compute_bitmask()[: self._mask_bytes]
        # A matcher that gives up (its limits, a grammar without an end) stops and lets only eos pass: not an answer.
        self._require(any(mask) and (self._matcher.is_accepting() or not self._matcher.is_stopped()))
        return mask

    def _only_eos(self) -> bytes:
        mask = bytearray(self._mask_bytes)
        for id in self._eos_ids:
            mask[id // 8] |= 1 << id % 8
        return bytes(mask)

    def _require(self, ok: bool) -> None:
        if not ok or self._matcher.is_error():
            cause = self._matcher.get_error() or self._matcher.stop_reason()
            raise EngineError(f"the grammar of this answer is stuck: {_short(cause)}")


class GuideCompiler:
    """Compiles the grammars of one target, for several threads at once if need be.

    `width` is that of the logits; ids beyond the tokenizer's are padding and never allowed. The vocabulary is read at
    the first `start` (1.2 s and 240 MB for 150,000 tokens), since many servers never need it.
    """

    def __init__(self, tokenizer_json: bytes, width: int, eos_ids: Sequence[int], chat_template: str) -> None:
        self._tokenizer_json, self._width, self._template = tokenizer_json, width, chat_template
        self._eos_ids = tuple(eos_ids)
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()

    def start(self, guide: Guide, committed: Sequence[int]) -> Constraint:
        """The constraint of an answer that begins with `committed`. Takes milliseconds, for a huge schema a second.

        Raises InvalidRequest or Unsupported (`field` is `response_format`, `tools` or `tool_choice`) for what cannot
        be compiled or not be kept to, and TruthConflict for committed ids that break the grammar.
        """
        grammar = grammar_of(guide, self._template)
        matcher = _with_roomy_stack(lambda: self._compile(grammar))
        constraint = Constraint(matcher, self._width, frozenset(self._eos_ids))
        try:
            constraint.allowed(())
        except EngineError as error:
            raise InvalidRequest("no answer can fulfil this schema", grammar.field) from error
        try:
            constraint.commit(committed)
        except EngineError as error:
            raise TruthConflict("the committed ids break the grammar that this Open asks for") from error
        return constraint

    def _compile(self, grammar: Grammar) -> LLMatcher:
        vocabulary = self._read_vocabulary(grammar.field)
        limits = LLParserLimits(verbose_errors=False)  # its errors must not quote what was written
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar.lark), log_level=0, limits=limits)
        if not matcher.is_error():
            return matcher
        for part in grammar.parts:
            alone = LLMatcher.grammar_from_json_schema(part.schema)
            cause = LLMatcher.validate_grammar(alone, vocabulary, limits=limits)
            if cause:
                raise InvalidRequest(f"{part.what} cannot be compiled: {_short(cause)}", part.field)
        raise InvalidRequest(f"the grammar cannot be compiled: {_short(matcher.get_error())}", grammar.field)

    def _read_vocabulary(self, field: str) -> LLTokenizer:
        if not self._eos_ids:
            raise Unsupported("a target without an end token cannot end a guided answer", field)
        with self._lock:
            if self._vocabulary is None:
                try:
                    self._vocabulary = _vocabulary(self._tokenizer_json.decode(), self._width, self._eos_ids)
                except Exception as error:  # the libraries raise whatever they like
                    cause = f"the tokenizer of this target cannot be guided: {_short(str(error))}"
                    raise Unsupported(cause, field) from error
            return self._vocabulary


class _GuidanceTokenizer:
    """What llguidance asks of a tokenizer; `tokens` [width] holds the bytes of each id, none for padding."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special: list[int], eos_id: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos_id
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text.decode(), add_special_tokens=False).ids
        return ids


def _vocabulary(tokenizer_json: str, width: int, eos_ids: Sequence[int]) -> LLTokenizer:
    """A tokenizer as llguidance sees it, but with added tokens that are text as text.

    By itself it takes every added token for a control token, `<think>`, `<tool_call>` and runs of spaces included,
    and would keep them out of free text.
    """
    tokenizer = Tokenizer.from_str(tokenizer_json)
    plain = LLTokenizer(tokenizer_json, slices=[])
    tokens, special = [b""] * width, list(eos_ids)
    for id in tokenizer.get_vocab(with_added_tokens=True).values():
        if id < width:
            tokens[id] = plain.decode_bytes([id])
    for id, token in tokenizer.get_added_tokens_decoder().items():
        if token.special and token.content not in CALL_TAGS:
            special.append(id)
        elif id < width:
            tokens[id] = tokenizer.decode([id], skip_special_tokens=False).encode()
    special = sorted({id for id in special if id < width})
    wrapped = TokenizerWrapper(_GuidanceTokenizer(tokenizer, tokens, special, eos_ids[0]))
    return LLTokenizer(wrapped, n_vocab=width, eos_token=list(eos_ids))


def _with_roomy_stack(work: Callable[[], T]) -> T:
    """Runs `work` in a thread of its own with `COMPILER_STACK`."""
    with ThreadPoolExecutor(1, "grammar") as pool:
        with _stack_size_lock:  # the size is the process's, and counts for threads begun from now on
            usual = threading.stack_size(COMPILER_STACK)
            try:
                future = pool.submit(work)  # begins the thread
            finally:
                threading.stack_size(usual)
        return future.result()


def _allows(mask: bytes, token: int) -> bool:
    return 0 <= token < 8 * len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def _short(cause: str) -> str:
    """The telling line of a message of llguidance."""
    lines = cause.strip().splitlines() or ["unknown"]
    line = lines[-1] if lines[-1].startswith("error:") else lines[0]
    return line.removeprefix("error: ").split(". Enable ")[0][:MAX_CAUSE]
