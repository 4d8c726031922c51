"""Guided answers: grammars over the bytes of tokens, applied as masks on the target's logits.

The target samples from the masked logits, and drafts are verified against that sample. The grammars come from
verify_server/text/tool_grammar.py, the compiler is verify_server/text/grammar_compiler.py, and llguidance matches them.
`GrammarMemory` says how much the grammars of live answers may take together, and for one tenant.
"""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from opensled.core.errors import (
    EngineError,
    InvalidRequest,
    Overloaded,
    RequestError,
    TruthConflict,
    Unsupported,
    from_code,
)
from opensled.core.messages import CallForm, Guide, Tool
from opensled.process.fork_server import RETRY_SECONDS, ForkServer, OverLimit
from opensled.text.call_forms import BARE
from opensled.text.families import marks_of
from opensled.text.thinking import start_of, tail_of, thought_tags
from verify_server.text.grammar_compiler import HANDLER, LIMITS, GrammarCompiler, question, short
from verify_server.text.tool_grammar import Grammar, Thoughts, grammar_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

COARSEST = 2  # of `grammar_of`: the arguments are any object
MAX_CHECKED = 1024  # grammars that need no second check; chosen
# A usual schema takes 0.1 MB, one with 2,000 properties 12 MB. Chosen: hundreds of usual answers fit.
TENANT_BYTES = 128 << 20
ALL_BYTES = 512 << 20
GROWTH = 400_000  # bytes that a matcher adds while it is asked for the masks of an answer; measured


class GrammarsFull(Overloaded):
    """There is no room for one more grammar. `own`: those of its tenant alone fill what a tenant may have."""

    def __init__(self, size: int, own: bool) -> None:
        super().__init__(
            f"a grammar of {size >> 20} MB does not fit beside those of running answers; try again later",
            retry_after=RETRY_SECONDS,
        )
        self.own = own


class GrammarMemory:
    """Counts bytes by tenant; may be used in any thread."""

    def __init__(self, tenant_bytes: int = TENANT_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._max_of_one, self._most = tenant_bytes, all_bytes
        self._taken: Counter[str] = Counter()
        self._lock = threading.RLock()  # a collection within `take` may give back in the same thread

    def take(self, tenant: str, size: int) -> Callable[[], None]:
        """Count a grammar of `size` bytes; returns what gives them back, to be called once.

        Raises GrammarsFull if there is no room for it.
        """
        size = max(size, 0) + GROWTH
        with self._lock:
            own = self._taken[tenant] + size > self._max_of_one
            if own or self._taken.total() + size > self._most:
                raise GrammarsFull(size, own)
            self._taken[tenant] += size
        return partial(self._give_back, tenant, size)

    @property
    def by_tenant(self) -> Counter[str]:
        """The bytes that are taken."""
        with self._lock:
            return self._taken.copy()

    def _give_back(self, tenant: str, size: int) -> None:
        with self._lock:
            self._taken[tenant] -= size
            if not self._taken[tenant]:
                del self._taken[tenant]


class GrammarRebuilt(Exception):
    """The drafts of an answer have used its grammar up; another one is being made, and knows no drafts."""


class Constraint:
    """The grammar of one answer and its state. Not for two threads at once.

    A matcher has a bound on the states of its lexer, and those that drafts reach, which never become text, count too.
    Where they have used it up, the answer goes on with a new matcher, which sees committed ids only.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        width: int,
        eos_ids: frozenset[int],
        compile: Callable[[], Future[LLMatcher]] | None = None,
        coarse_tools: tuple[str, ...] = (),
    ) -> None:
        """`compile`: begins to make the same matcher anew, in another thread. `coarse_tools`: those whose arguments it
        holds less closely."""
        self._matcher, self._eos_ids, self._compile = matcher, eos_ids, compile
        self.coarse_tools = coarse_tools
        self._mask_bytes = (width + 7) // 8
        self._ended = False
        self._committed: list[int] = []  # without end ids
        self._saw_draft = False
        self._rebuilt: Future[LLMatcher] | None = None

    @property
    def takes_drafts(self) -> bool:
        """Whether it may be asked what follows a draft."""
        return self._rebuilt is None

    def next_masks(self, draft: Sequence[int], parents: Sequence[int] = ()) -> list[bytes]:
        """Masks [len(draft) + 1]: bit b of mask i (little-endian within bytes) tells if id b may follow draft[:i].

        With the `parents` of a tree in depth-first order, mask i + 1 is for what follows the path to draft[i]. After a
        draft id that is not allowed, or ends the answer, the last mask is repeated. Leaves the state unchanged.
        Raises EngineError if the grammar is stuck, and GrammarRebuilt if that is due to drafts: ask again, without one.
        """
        self._go_on()
        self._saw_draft = self._saw_draft or bool(draft)
        try:
            return self._masks(draft, parents)
        except EngineError:
            if not self._saw_draft or self._compile is None:
                raise
        self._rebuilt, self._saw_draft = self._compile(), False
        raise GrammarRebuilt

    def _go_on(self) -> None:
        """With the new matcher as soon as it is there. Raises GrammarRebuilt before."""
        if self._rebuilt is None or self._compile is None:
            return
        if not self._rebuilt.done():
            raise GrammarRebuilt
        self._matcher, self._compile = self._rebuilt.result(), None
        committed, self._committed = self._committed, []
        self.commit(committed)

    def _masks(self, draft: Sequence[int], parents: Sequence[int]) -> list[bytes]:
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
                self._committed.append(token)

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
            raise EngineError(f"the grammar of this answer is stuck: {short(cause)}")


class GuideCompiler:
    """Makes the constraints of one target; several threads may use it at once.

    `width` is that of the logits. A grammar is compiled in a fork before it is compiled here; a repeated one needs no
    second fork.
    """

    def __init__(
        self,
        tokenizer_json: bytes,
        width: int,
        eos_ids: Sequence[int],
        chat_template: str,
        calls: CallForm | None = BARE,
    ) -> None:
        """`calls`: how the model of the template writes them; None: in a form that is not known."""
        self._width, self._eos_ids, self._calls = width, frozenset(eos_ids), calls
        self._tags = thought_tags(chat_template)
        marks = (*(marks_of(self._tags) if self._tags else ()), *(calls or ()))
        self._compiler = GrammarCompiler(tokenizer_json, width, eos_ids, marks)
        self._forks = ForkServer(HANDLER, self._compiler.setup(), LIMITS)
        self.memory = GrammarMemory()
        self._again = ThreadPoolExecutor(1, "grammar again")  # of matchers that drafts have used up
        # Digest of a grammar -> the bytes it takes, or why it is refused; the latest last.
        self._checked = OrderedDict[bytes, int | RequestError]()

    def start(
        self, guide: Guide, committed: Sequence[int], tenant: str = "", prompt: Sequence[int] = ()
    ) -> Constraint:
        """The constraint of an answer to `prompt` that begins with `committed`. Takes milliseconds, for a huge schema a
        second.

        Raises InvalidRequest or Unsupported (`field` is `response_format`, `tools` or `tool_choice`) if the guide
        cannot be compiled or enforced, GrammarsFull if the live ones take too much memory, and TruthConflict for
        committed ids that break the grammar. Ends early, with `Cancelled`, by `opensled.process.fork_server.STOP`.
        """
        thoughts = self._thoughts(prompt)
        started = partial(self._start, guide, committed=committed, tenant=tenant, thoughts=thoughts)
        try:
            return started({})
        except (InvalidRequest, Unsupported) as error:
            loose = [tool for tool in guide.tools if not tool.strict]
            if error.field != "tools" or not loose:
                raise
            self._compiler.read_vocabulary("tools")  # where it is no schema's fault
        coarse = {tool.name: self._coarse(tool) for tool in loose}
        try:
            return started(coarse)
        except (InvalidRequest, Unsupported):
            return started(dict.fromkeys(coarse, COARSEST))

    def _thoughts(self, prompt: Sequence[int]) -> Thoughts | None:
        """What the answer to a prompt may think first."""
        if self._tags is None:
            return None
        vocabulary = self._compiler.read_vocabulary("tools")
        tail = tail_of(prompt, lambda token: vocabulary.decode_bytes([token]))
        return Thoughts(self._tags, start_of(self._tags, tail))

    def _coarse(self, tool: Tool) -> int:
        """How coarse the grammar of a tool must be to be compiled (`grammar_of`)."""
        alone = Guide(tools=(tool,), tool_choice="required")
        for coarse in range(COARSEST):
            try:
                self._check(grammar_of(alone, self._calls, {tool.name: coarse}))
            except (InvalidRequest, Unsupported):
                continue
            return coarse
        return COARSEST

    def _start(
        self,
        guide: Guide,
        coarse: Mapping[str, int],
        committed: Sequence[int],
        tenant: str,
        thoughts: Thoughts | None,
    ) -> Constraint:
        grammar = grammar_of(guide, self._calls, coarse, thoughts)
        self._compiler.read_vocabulary(grammar.field)
        give_back = self.memory.take(tenant, self._check(grammar))
        try:
            constraint = self._make_constraint(
                grammar, committed, tuple(dict.fromkeys((*filter(coarse.get, coarse), *grammar.loose)))
            )
        except BaseException:
            give_back()
            raise
        weakref.finalize(constraint, give_back)
        return constraint

    def close(self) -> None:
        """End the process of the forks, and the thread."""
        self._again.shutdown(wait=False, cancel_futures=True)
        self._forks.close()

    def _make_constraint(
        self, grammar: Grammar, committed: Sequence[int], coarse_tools: tuple[str, ...]
    ) -> Constraint:
        compile = partial(self._again.submit, self._compiler.compile, grammar)
        matcher = self._compiler.compile(grammar)
        constraint = Constraint(matcher, self._width, self._eos_ids, compile, coarse_tools)
        try:
            constraint.next_masks(())
        except EngineError as error:
            raise InvalidRequest("no answer can fulfil this schema", grammar.field) from error
        try:
            constraint.commit(committed)
        except EngineError as error:
            raise TruthConflict("the committed ids break the grammar that this Open asks for") from error
        return constraint

    def _check(self, grammar: Grammar) -> int:
        """The bytes that a grammar takes, as a fork has compiled it."""
        asked = question(grammar)
        digest = hashlib.sha256(asked).digest()
        if digest not in self._checked:
            try:
                self._checked[digest] = self._ask(asked, grammar.field)
            except (InvalidRequest, Unsupported) as error:
                self._checked[digest] = error
            if len(self._checked) > MAX_CHECKED:
                self._checked.popitem(last=False)
        found = self._checked[digest]
        if isinstance(found, RequestError):
            raise type(found)(str(found), found.field)
        return found

    def _ask(self, asked: bytes, field: str) -> int:
        try:
            answer = json.loads(self._forks.ask(asked))
        except OverLimit as error:
            raise InvalidRequest(
                f"compiling this schema takes more than {error}; simplify it", field
            ) from error
        if "code" in answer:
            raise from_code(answer["code"], answer["reason"], answer["field"])
        return int(answer["bytes"])


def _allows(mask: bytes, token: int) -> bool:
    return 0 <= token < 8 * len(mask) and bool(mask[token // 8] >> token % 8 & 1)
