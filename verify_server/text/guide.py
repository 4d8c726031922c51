"""Guided answers: grammars over the bytes of tokens, applied as masks on the target's logits.

The target samples from the masked logits, and drafts are verified against that sample. The grammars come from
verify_server/text/tool_grammar.py; llguidance matches them.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from opensled.errors import EngineError, InvalidRequest, TruthConflict, Unsupported
from opensled.messages import CALL_TAGS, Guide
from verify_server.text.tool_grammar import Grammar, grammar_of

# The compiler recurses along references, with several KB of stack each: about 700 overflow a thread's usual 8 MB
# and end the whole server. `MAX_SCHEMA` characters cannot fill this stack; only used pages take memory.
COMPILER_STACK = 256 * 1024 * 1024  # bytes
MAX_CAUSE = 200  # characters of llguidance's text in our messages; chosen

T = TypeVar("T")
_stack_size_lock = threading.Lock()


class Constraint:
    """The grammar of one answer and its state. Not for two threads at once."""

    def __init__(self, matcher: LLMatcher, width: int, eos_ids: frozenset[int]) -> None:
        self._matcher, self._eos_ids = matcher, eos_ids
        self._mask_bytes = (width + 7) // 8
        self._ended = False

    def allowed(self, draft: Sequence[int], parents: Sequence[int] = ()) -> list[bytes]:
        """Masks [len(draft) + 1]: bit b of mask i (little-endian within bytes) tells if id b may follow draft[:i].

        With the `parents` of a tree in depth-first order, mask i + 1 is for what follows the path to draft[i]. After a
        draft id that is not allowed, or ends the answer, the last mask is repeated. Leaves the state unchanged.
        Raises EngineError if the grammar is stuck.
        """
        masks = [self._mask()]
        path: list[int] = []  # draft tokens that the matcher has consumed
        for index, token in enumerate(draft):
            parent = parents[index] if parents else index - 1
            self._roll_back(path, parent)
            here, known = masks[parent + 1], parent == (path[-1] if path else -1)
            if not known or token in self._eos_ids or not _allows(here, token):
                masks.append(here)
                continue
            self._require(self._matcher.consume_token(token))
            path.append(index)
            masks.append(self._mask())
        self._roll_back(path, -1)
        return masks

    def _roll_back(self, path: list[int], parent: int) -> None:
        """Roll back along `path`, to the token `parent` or one before it."""
        left = len(path)
        while path and path[-1] > parent:
            path.pop()
        if left > len(path):
            self._require(self._matcher.rollback(left - len(path)))

    def commit(self, tokens: Sequence[int]) -> None:
        """Consume committed ids, which the masks must have allowed; only end tokens can follow the end."""
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
        # A matcher that gives up (at its limits, or without a way to an end) stops and allows only EOS: not an answer.
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
    """Compiles the grammars of one target; several threads may use it at once.

    `width` is that of the logits; ids beyond the tokenizer's are padding and never allowed. The first `start` reads the
    vocabulary (1.2 s and 240 MB for 150,000 tokens), since many servers never need it.
    """

    def __init__(self, tokenizer_json: bytes, width: int, eos_ids: Sequence[int], chat_template: str) -> None:
        self._tokenizer_json, self._width, self._template = tokenizer_json, width, chat_template
        self._eos_ids = tuple(eos_ids)
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()

    def start(self, guide: Guide, committed: Sequence[int]) -> Constraint:
        """The constraint of an answer that begins with `committed`. Takes milliseconds, for a huge schema a second.

        Raises InvalidRequest or Unsupported (`field` is `response_format`, `tools` or `tool_choice`) if the guide
        cannot be compiled or enforced, and TruthConflict for committed ids that break the grammar.
        """
        grammar = grammar_of(guide, self._template)
        matcher = _with_large_stack(lambda: self._compile(grammar))
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
        limits = LLParserLimits(verbose_errors=False)  # its errors must not quote the answer
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
                except Exception as error:  # the libraries may raise any error
                    cause = f"the tokenizer of this target cannot be guided: {_short(str(error))}"
                    raise Unsupported(cause, field) from error
            return self._vocabulary


class _GuidanceTokenizer:
    """A tokenizer in the form llguidance reads; `tokens` [width] holds the bytes of each id, none for padding."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special: list[int], eos_id: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos_id
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text.decode(), add_special_tokens=False).ids
        return ids


def _vocabulary(tokenizer_json: str, width: int, eos_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's tokenizer, with added tokens that are text treated as text.

    By itself it takes every added token for a control token, also `<think>`, `<tool_call>` and runs of spaces, and
    excludes them from free text.
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


def _with_large_stack(work: Callable[[], T]) -> T:
    """Run `work` in its own thread with a stack of `COMPILER_STACK`."""
    with ThreadPoolExecutor(1, "grammar") as pool:
        with _stack_size_lock:  # the size is the process's, and holds for threads that start from now on
            usual = threading.stack_size(COMPILER_STACK)
            try:
                future = pool.submit(work)  # starts the thread
            finally:
                threading.stack_size(usual)
        return future.result()


def _allows(mask: bytes, token: int) -> bool:
    return 0 <= token < 8 * len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def _short(cause: str) -> str:
    """The informative line of a message of llguidance."""
    lines = cause.strip().splitlines() or ["unknown"]
    line = lines[-1] if lines[-1].startswith("error:") else lines[0]
    return line.removeprefix("error: ").split(". Enable ")[0][:MAX_CAUSE]
