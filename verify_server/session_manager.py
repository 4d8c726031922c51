"""The manager: opens sessions, finds lost ones again, and forgets those nobody comes back for."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from opensled.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    TruthConflict,
    UsageError,
    VocabularyMismatch,
)
from opensled.messages import ChatMessage, Guide, Limits, Open, Opened, Prompt, is_chat
from opensled.noise import KEY_BYTES, noise_key
from opensled.protocol import EndRules
from scheduler.admission import AdmissionRequest
from scheduler.estimates import DeviceBook
from verify_server.acceptance.served import ServedRules
from verify_server.admission_controller import AdmissionController
from verify_server.counters import SessionStats
from verify_server.draft_budget import DraftBudget, DraftRecords, Quotas
from verify_server.engine.base import MAX_TREE
from verify_server.kv.blocks import BlockTable
from verify_server.loop import VerifyLoop
from verify_server.security import Tenants
from verify_server.sequence import Sequence
from verify_server.session import DraftLimits, Session
from verify_server.session_timing import SessionTiming
from verify_server.signing import TokenSigner
from verify_server.target import Target
from verify_server.text.guide import Constraint, GuideCompiler

MAX_STOP_IDS = 256
GLANCE = 0.02  # seconds after which a manager that drains looks again who is still there
TOKEN_SECONDS = 24 * 3600.0  # how long a resume token is good
CHARACTERS = 4  # of text for each token, roughly
MAX_CHARACTERS = 64  # of text for each position of the context; hardly any token is longer


@dataclass(frozen=True)
class SessionLimits:
    """What the manager lets in."""

    max_sessions: int = 256
    max_draft: int = 16  # tokens of a chain
    linger: float = 60.0  # seconds a session without a reader is remembered
    tenants: Tenants = field(default_factory=Tenants)  # what each of them may take
    rules: ServedRules = field(default_factory=ServedRules)
    min_pace: float = 0.0  # tokens/s promised to whoever asks for none, unless he is a background session
    max_pace: float | None = None  # tokens/s promised at most; None = half the pace that one has alone
    min_acceptance: float = 0.05  # share of a device's drafts that gain something; below it they are ignored
    max_tree: int = MAX_TREE  # tokens of a draft tree, where the engine can compute them; 0 = chains only


class SessionManager:
    """Turns `Open` messages into sessions of the loop."""

    def __init__(
        self, loop: VerifyLoop, target: Target, limits: SessionLimits, signer: TokenSigner | None = None
    ) -> None:
        """`signer`: of resume tokens that a cluster understands; None: they are good in this process only."""
        self.loop, self.limits = loop, limits
        self.model_id, self.text = target.model_id, target.text
        info = loop.engine.info
        # A sequence that fills the KV memory alone must still have room for its draft.
        capacity = info.num_blocks * info.block_size - limits.max_draft
        _require_room_for_a_draft("--kv-tokens", capacity + limits.max_draft, limits.max_draft)
        for budget in limits.tenants.kv_budgets:
            _require_room_for_a_draft("--tenant-kv-tokens (or kv_tokens)", budget, limits.max_draft)
        max_tree = min(limits.max_tree, info.max_tree)
        self.sequence_limits = Limits(limits.max_draft, min(info.context_length, capacity), max_tree)
        # Ids beyond the tokenizer's are padding of the logits: they have no text, and only the target commits one.
        self._vocab_size = min(self.text.vocab_size, info.vocab_size)
        self._draft_limits = DraftLimits(self._vocab_size, limits.max_draft, max_tree, info.tree_reads)
        self.draining = False
        self.hands_over = False  # readers go on elsewhere
        self.stats = SessionStats()
        self.rules = limits.rules
        self._guides = GuideCompiler(
            self.text.tokenizer_json, info.vocab_size, info.eos_ids, self.text.chat_template
        )
        self._ids = itertools.count(1)
        self._signer = signer or TokenSigner(loop.clock, TOKEN_SECONDS)
        self._remembered: dict[int, Session] = {}
        self._quotas, self._records = Quotas(limits.tenants, loop.clock), DraftRecords()
        self._room = AdmissionController(
            loop, limits.max_sessions, limits.tenants, self._quotas, limits.max_pace
        )
        self._farewells: dict[int, asyncio.TimerHandle] = {}
        self._devices = DeviceBook()

    @property
    def remembered(self) -> tuple[Session, ...]:
        """Every session with a reader, or still waiting for one to come back."""
        return tuple(self._remembered.values())

    async def open(self, message: Open, tenant: str) -> tuple[Session, Opened]:
        """The session of an `Open`, old or new, and the answer to it; its reader calls `attach` next."""
        if self.hands_over:
            raise _shutting_down()
        self._require_target(message)
        with nullcontext() if self._known(message, tenant) else self._arriving(message, tenant):
            prompt_ids = await self._prompt_ids(message.prompt, message.guide, tenant)
            session = self._resume(message, prompt_ids, tenant)
            if session is None:
                self._check(message, prompt_ids, tenant)
                constraint = await self._constraint(message)
                session = self._create(message, prompt_ids, tenant, constraint)
        farewell = self._farewells.pop(session.id, None)
        if farewell is not None:
            farewell.cancel()
        token = self._signer.sign(session.id, session.tenant)
        limits = replace(self._limits_of(tenant), max_tree=session.limits.max_tree)
        return session, Opened(
            prompt_ids, session.key, token, limits, session.turn.hint, session.rule.draft_probs
        )

    def leave(self, session: Session) -> None:
        """The reader is gone without a word: remember the session for a while."""
        session.detach()
        if session.id in self._remembered and session.id not in self._farewells:
            later = asyncio.get_running_loop().call_later
            self._farewells[session.id] = later(self.limits.linger, self.forget, session)

    def forget(self, session: Session) -> None:
        """Free everything of a session."""
        farewell = self._farewells.pop(session.id, None)
        if farewell is not None:
            farewell.cancel()
        if self._remembered.pop(session.id, None) is not None:
            self.loop.remove(session)

    async def idle(self) -> None:
        """Wait until nobody waits for anything any more."""
        while self._room.taken:
            await asyncio.sleep(GLANCE)

    def hand_over(self) -> None:
        """Let nobody in any more, and send every reader back to where he asked first: others serve him from now on."""
        self.draining = self.hands_over = True
        for session in self.remembered:
            if session.has_reader:
                session.hand_over()
            else:
                self.forget(session)

    def _require_target(self, message: Open) -> None:
        """A sequence begun on one target must not be continued by another, say after a restart with a new model."""
        if message.model_id not in ("", self.model_id):
            raise NotFound(f"this server serves {self.model_id!r}, not {message.model_id[:80]!r}", "model_id")
        if message.fingerprint not in ("", self.text.fingerprint):
            raise VocabularyMismatch(f"the vocabulary of {self.model_id!r} is not the one the device knows")

    def _known(self, message: Open, tenant: str) -> Session | None:
        """The session that the resume token of an `Open` opens for `tenant`; None: he begins a new one."""
        number = self._signer.session_of(message.resume_token, tenant) if message.resume_token else None
        session = self._remembered.get(number) if number is not None else None
        return None if session is None or session.failed else session

    def _resume(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Session | None:
        session = self._known(message, tenant)
        if session is None:
            return None
        held = (*prompt_ids, *message.committed)
        if tuple(session.sequence.tokens[: len(held)]) != held:
            raise TruthConflict("the committed ids of this Open are not what the session committed")
        self.stats.opened["resumed"] += 1
        return session

    def _arriving(self, message: Open, tenant: str) -> AbstractContextManager[None]:
        """His place while his prompt is read; Overloaded before any work is done, where there is none."""
        if self.draining:
            raise _shutting_down()
        positions = length_of(message.prompt) + len(message.committed)
        return self._room.arriving(
            AdmissionRequest(tenant, positions, self._pace(message), message.background)
        )

    def _pace(self, message: Open) -> float:
        return message.pace or (0.0 if message.background else self.limits.min_pace)

    def _create(
        self, message: Open, prompt_ids: tuple[int, ...], tenant: str, constraint: Constraint | None
    ) -> Session:
        if self.draining:
            raise _shutting_down()
        self._make_room(tenant)
        rule = self.rules.create(message.rule)
        session = Session(
            id=next(self._ids),
            tenant=tenant,
            sequence=Sequence(
                (*prompt_ids, *message.committed),
                len(prompt_ids),
                self._ends(message, len(prompt_ids), tenant),
                BlockTable(self.loop.pool, tenant, self.limits.tenants.limits_of(tenant).kv_tokens),
            ),
            params=message.params,
            key=message.noise_key or self._key(message.params.seed),
            rule=rule,
            limits=self._draft_limits if rule.trees else self._draft_limits._replace(max_tree=0),
            top_logprobs=message.top_logprobs,
            constraint=constraint,
            background=message.background,
            budget=self._budget(tenant, message.device),
            timing=SessionTiming(self._devices.of(tenant, message.device), self._pace(message)),
        )
        self._remembered[session.id] = session
        self.loop.add(session)
        self._room.entered()
        self.stats.opened["new"] += 1
        return session

    def _budget(self, tenant: str, device: str) -> DraftBudget:
        record = self._records.of(tenant, device)
        return DraftBudget(self._quotas.of(tenant), record, self.limits.min_acceptance)

    async def _constraint(self, message: Open) -> Constraint | None:
        """The mask of a guided answer; compiling a large schema takes a while, so never on the event loop."""
        if message.guide is None or not message.guide.masks:
            return None
        if message.params.ignore_eos:
            raise InvalidRequest(
                "a guided answer ends where its guide says: leave ignore_eos out", "ignore_eos"
            )
        return await asyncio.to_thread(self._guides.start, message.guide, message.committed)

    def _make_room(self, tenant: str) -> None:
        """When all places are taken, a session whose reader is gone gives way; else Overloaded."""
        absent = self._room.yielding(tenant)
        if absent is not None:
            self.forget(absent)

    def _key(self, seed: int | None) -> bytes:
        return secrets.token_bytes(KEY_BYTES) if seed is None else noise_key(seed)

    def _ends(self, message: Open, prompt_length: int, tenant: str) -> EndRules:
        params = message.params
        eos = frozenset() if params.ignore_eos else frozenset(self.loop.engine.info.eos_ids)
        last = min(prompt_length + params.max_tokens, self._limits_of(tenant).context_length)
        return EndRules(eos, frozenset(params.stop_ids), last)

    def _limits_of(self, tenant: str) -> Limits:
        """What a sequence of this tenant may be: alone, and with a draft, it fits into his KV budget."""
        limits, budget = self.sequence_limits, self.limits.tenants.limits_of(tenant).kv_tokens
        if not budget:
            return limits
        return replace(limits, context_length=min(limits.context_length, budget - limits.max_draft))

    def _check(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> None:
        """What a new session must be before anybody makes room for it."""
        self.rules.create(message.rule)  # raises for a rule that is not served
        self._check_lengths(message, prompt_ids, tenant)
        params = message.params
        given = {"prompt": prompt_ids, "stop_ids": params.stop_ids, "logit_bias": dict(params.logit_bias)}
        for name, ids in given.items():
            _check_ids(ids, self._vocab_size, name)
        # What a target committed goes on, also where its logits are wider than the vocabulary.
        _check_ids(message.committed, self.loop.engine.info.vocab_size, "committed")

    def _check_lengths(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> None:
        ends, context = self._ends(message, len(prompt_ids), tenant), self._limits_of(tenant).context_length
        length = len(prompt_ids) + len(message.committed)
        if not prompt_ids:
            raise InvalidRequest("the prompt is empty: the target needs at least one token", "prompt")
        if length >= context:
            raise InvalidRequest(f"{length} tokens do not fit; this server's context is {context}", "prompt")
        if length >= ends.last_length:
            raise InvalidRequest("all max_tokens are committed already", "max_tokens")
        if len(ends.stop_ids) > MAX_STOP_IDS:
            raise InvalidRequest(f"at most {MAX_STOP_IDS} stop ids, not {len(ends.stop_ids)}", "stop_ids")

    async def _prompt_ids(self, prompt: Prompt, guide: Guide | None, tenant: str) -> tuple[int, ...]:
        limit = self.limits.tenants.limits_of(tenant).max_prompt
        context = self._limits_of(tenant).context_length
        ids = await self._encoded(prompt, guide, min(limit or context, context))
        if limit and len(ids) > limit:
            raise InvalidRequest(
                f"a prompt of {len(ids)} tokens; your tenant may send at most {limit}", "prompt"
            )
        return ids

    async def _encoded(self, prompt: Prompt, guide: Guide | None, longest: int) -> tuple[int, ...]:
        """Tokenizing takes seconds for megabytes: never on the event loop, and never for what cannot fit."""
        if isinstance(prompt, str):
            self._check_size(len(prompt), longest)
            return await asyncio.to_thread(self.text.encode, prompt)
        if is_chat(prompt):
            self._check_size(sum(map(_turn_size, prompt)) + _tool_size(guide), longest)
            tools = guide.tools if guide else ()
            return await asyncio.to_thread(self.text.render, prompt, tools)
        return prompt  # type: ignore[return-value]

    def _check_size(self, characters: int, tokens: int) -> None:
        longest = tokens * MAX_CHARACTERS
        if characters > longest:
            raise InvalidRequest(
                f"a prompt of {characters} characters; this server takes at most {longest}", "prompt"
            )


def _require_room_for_a_draft(flag: str, tokens: int, max_draft: int) -> None:
    if tokens < max_draft + 2:
        raise UsageError(f"KV memory for {tokens} tokens holds no draft of {max_draft}; raise {flag}")


def _shutting_down() -> Overloaded:
    return Overloaded("the server is shutting down; reopen elsewhere or later", retry_after=1.0)


def _check_ids(ids: Iterable[int], vocab_size: int, name: str) -> None:
    if any(not 0 <= id < vocab_size for id in ids):
        raise InvalidRequest(f"an id of {name} is outside the vocabulary of {vocab_size}", name)


def length_of(prompt: Prompt) -> int:
    """Tokens of a prompt; a guess where it is text."""
    if isinstance(prompt, str):
        return len(prompt) // CHARACTERS
    return sum(map(_turn_size, prompt)) // CHARACTERS if is_chat(prompt) else len(prompt)


def _turn_size(turn: ChatMessage) -> int:
    """Characters that a turn of a chat adds to a prompt."""
    calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in turn.tool_calls)
    return len(turn.role) + len(turn.content) + len(turn.tool_call_id) + len(turn.name) + calls


def _tool_size(guide: Guide | None) -> int:
    """Characters that the tools of a guide add to a prompt."""
    tools = guide.tools if guide else ()
    return sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools)
