"""llguidance: grammars compiled for one vocabulary, and the same in a fork with limits.

The compiler takes seconds to minutes and gigabytes for some short schemas, and nothing can interrupt it. So a grammar
is compiled in a fork first (fork_server.py), and in the server only what a fork has compiled within `LIMITS`.

llguidance is imported by the first grammar: a server without it serves answers that are not guided.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tokenizers import Tokenizer

from opensled.core.errors import InvalidRequest, RequestError, Unsupported
from opensled.process.distribution import GUIDE
from opensled.process.fork_frames import ForkLimits
from opensled.text.tokenizer import panics_told, tokenizer_of
from verify_server.text.tool_grammar import Grammar, GrammarPart

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# The compiler recurses along references, with several KB of stack each: about 700 overflow a thread's usual 8 MB
# and end the whole server. Should a schema fill this stack, it ends the fork; only used pages take memory.
COMPILER_STACK = 256 * 1024 * 1024  # bytes
# Of one grammar. Chosen: the largest schemas in use take a tenth of it, also on a slow hub.
LIMITS = ForkLimits(seconds=2.0, memory=COMPILER_STACK + (128 << 20))
MAX_STATES = 250_000  # of the lexer of one matcher; the library's own bound
MAX_CAUSE = 200  # characters of llguidance's text in our messages; chosen
HANDLER = "verify_server.text.grammar_compiler:answering"
ANY = Grammar('start: answer\nanswer: %json {"type": "object"}', (), "")

T = TypeVar("T")
_stack_size_lock = threading.Lock()


class GrammarCompiler:
    """Compiles grammars for one vocabulary; several threads may use it at once.

    `width` is that of the logits; ids beyond the tokenizer's are padding and never allowed. The first grammar reads the
    vocabulary (1.2 s and 240 MB for 150,000 tokens), since many servers never need it.
    """

    def __init__(
        self, tokenizer_json: bytes, width: int, eos_ids: Sequence[int], marks: Sequence[str] = ()
    ) -> None:
        """`marks`: of thoughts, channels and calls; they are text for grammars, also where they are special tokens."""
        self._tokenizer_json, self._width, self._eos_ids = tokenizer_json, width, tuple(eos_ids)
        self._marks = tuple(marks)
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()

    def setup(self) -> bytes:
        """What `answering` makes a compiler of in another process."""
        about = {"width": self._width, "eos_ids": self._eos_ids, "marks": self._marks}
        return json.dumps(about).encode() + b"\n" + self._tokenizer_json

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Its matcher, with the first mask computed. Raises InvalidRequest or Unsupported."""
        return _with_large_stack(lambda: self._compile(grammar))

    def added_bytes(self, grammar: Grammar) -> int:
        """What its matcher adds to this process's memory. Raises as `compile` does."""
        return _with_large_stack(lambda: self._added_bytes(grammar))

    def _added_bytes(self, grammar: Grammar) -> int:
        warm = self._compile(ANY)  # what a first grammar takes, and the process itself, is not this grammar's
        before = _resident_bytes()
        matcher = self._compile(grammar)
        taken = _resident_bytes() - before
        del matcher, warm
        return taken

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        vocabulary = self.read_vocabulary(grammar.field)
        # its errors must not quote the answer
        limits = LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar.lark), log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
            return matcher
        for part in grammar.parts:
            alone = LLMatcher.grammar_from_json_schema(part.schema)
            cause = LLMatcher.validate_grammar(alone, vocabulary, limits=limits)
            if cause:
                raise InvalidRequest(f"{part.what} cannot be compiled: {short(cause)}", part.field)
        raise InvalidRequest(f"the grammar cannot be compiled: {short(matcher.get_error())}", grammar.field)

    def read_vocabulary(self, field: str) -> LLTokenizer:
        """Raises Unsupported for the request's `field` if no grammar can be kept to with this vocabulary."""
        if not self._eos_ids:
            raise Unsupported("a target without an end token cannot end a guided answer", field)
        if not can_guide():
            raise Unsupported(
                f"this server cannot guide answers: it lacks the package llguidance ({GUIDE})", field
            )
        with self._lock:
            if self._vocabulary is None:
                try:
                    self._vocabulary = _vocabulary(
                        self._tokenizer_json.decode(), self._width, self._eos_ids, "\n".join(self._marks)
                    )
                except Exception as error:  # the libraries may raise any error
                    cause = f"the tokenizer of this target cannot be guided: {short(str(error))}"
                    raise Unsupported(cause, field) from error
            return self._vocabulary


def can_guide() -> bool:
    """Whether the library that guides answers is installed."""
    return find_spec("llguidance") is not None


def answering(setup: bytes) -> Callable[[bytes], bytes]:
    """What answers in a fork: a function from a grammar (`question`) to a `Checked`, as bytes."""
    about, _, tokenizer_json = setup.partition(b"\n")
    compiler = GrammarCompiler(tokenizer_json, **json.loads(about))
    compiler.read_vocabulary("")
    return lambda question: _answer(compiler, question)


def question(grammar: Grammar) -> bytes:
    """A grammar as bytes."""
    return json.dumps(asdict(grammar)).encode()


def _answer(compiler: GrammarCompiler, question: bytes) -> bytes:
    fields = json.loads(question)
    parts = tuple(GrammarPart(**part) for part in fields.pop("parts"))
    try:
        taken = compiler.added_bytes(Grammar(**fields, parts=parts))
    except RequestError as error:
        return json.dumps({"code": error.code, "reason": str(error), "field": error.field}).encode()
    return json.dumps({"bytes": taken}).encode()


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class _GuidanceTokenizer:
    """A tokenizer in the form llguidance reads; `tokens` [width] holds the bytes of each id, none for padding."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special: list[int], eos_id: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos_id
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text.decode(), add_special_tokens=False).ids
        return ids


@panics_told()
def _vocabulary(tokenizer_json: str, width: int, eos_ids: Sequence[int], marks: str) -> LLTokenizer:
    """llguidance's tokenizer, with added tokens that are text treated as text, and special ones in `marks`.

    By itself it takes every added token for a control token, also `<think>`, `<tool_call>` and runs of spaces, and
    excludes them from free text.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    tokenizer = tokenizer_of(tokenizer_json.encode())
    plain = LLTokenizer(tokenizer_json, slices=[])
    tokens, special = [b""] * width, list(eos_ids)
    for id in tokenizer.get_vocab(with_added_tokens=True).values():
        if id < width:
            tokens[id] = plain.decode_bytes([id])
    for id, token in tokenizer.get_added_tokens_decoder().items():
        if id in eos_ids or (token.special and token.content not in marks):
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


def short(cause: str) -> str:
    """The informative line of a message of llguidance."""
    lines = cause.strip().splitlines() or ["unknown"]
    line = lines[-1] if lines[-1].startswith("error:") else lines[0]
    return line.removeprefix("error: ").split(". Enable ")[0][:MAX_CAUSE]
