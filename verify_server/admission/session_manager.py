"""Opens sessions, finds lost ones again, and forgets those without a reader."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from opensled.core.errors import NotFound, Overloaded, TruthConflict, UsageError, VocabularyMismatch
from opensled.core.messages import Limits, Open, Opened, is_chat
from opensled.core.noise import KEY_BYTES, noise_key
from opensled.net.old_connection import over_old_connection
from opensled.net.probes import DRAINING
from scheduler.estimates import DeviceBook
from verify_server.access.security import Tenants
from verify_server.access.signing import TOKEN_SECONDS, TokenSigner
from verify_server.access.tenant_pool import Spent
from verify_server.admission.admission_controller import AdmissionController
from verify_server.admission.admission_rules import AdmissionRequest
from verify_server.admission.input_processor import InputProcessor
from verify_server.engine.base import MAX_TREE, EngineInfo
from verify_server.riders.opening import Keeper, Opening
from verify_server.riders.registry import riders_of
from verify_server.round.budget import MIN_ACCEPTANCE, DraftBudget, DraftRecords, Quotas
from verify_server.round.counters import SessionStats
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.loaded_model import LoadedModel
from verify_server.round.loop import VerifyLoop
from verify_server.round.offer import DraftLimits
from verify_server.round.rider import Rider
from verify_server.round.sequence import Sequence
from verify_server.round.session import Session
from verify_server.round.session_timing import SessionTiming
from verify_server.round.sources import DraftSources
from verify_server.round.terms import Terms
from verify_server.rules.base import AcceptanceRule
from verify_server.rules.consent import require_rule
from verify_server.rules.served import ServedRule, ServedRules
from verify_server.text.guide import GrammarsFull
from verify_server.vision.image_store import ImageStore

# Seconds between two looks at sessions whose end is waited for. Chosen: short beside an answer.
IDLE_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class SessionLimits:
    """What the manager admits."""

    max_sessions: int = 256
    max_draft: int = 16  # tokens of a chain
    linger: float = 60.0  # seconds for which a session without a reader is remembered
    tenants: Tenants = field(default_factory=Tenants)  # with the limits of each
    rules: ServedRules = field(default_factory=ServedRules)
    min_pace: float = 0.0  # tokens/s promised to a session that asks for none and is no background session
    max_pace: float | None = None  # most tokens/s promised; None = half of what one session alone would get
    max_tree: int = MAX_TREE  # tokens of a draft tree, if the engine computes trees; 0 = chains only


# Makes the session of an `Open` whose prompt has these ids, and adds it to the loop.
Create = Callable[[Open, tuple[int, ...]], Awaitable[Session]]
# Opens a new sequence: calls `Create`, perhaps with another `Open` and ids, after what it does elsewhere.
Opener = Callable[[Open, tuple[int, ...], Create], Awaitable[Session]]

# The ids of a prompt, as the server that answers has them
Counter = Callable[[Open], Awaitable[tuple[int, ...]]]


class SessionManager:
    """Turns `Open` messages into sessions of the loop."""

    def __init__(
        self,
        loop: VerifyLoop,
        target: LoadedModel,
        limits: SessionLimits,
        signer: TokenSigner | None = None,
        keeper: Keeper | None = None,
        opener: Opener | None = None,
        counter: Counter | None = None,
    ) -> None:
        """`signer`: of the cluster's resume tokens; None = tokens that only this process accepts. `keeper`: of texts
        of tenants that asked for it; None = none are kept. `opener`: of new sequences, which else this server
        alone holds. `counter`: of prompts; None = by this server's tokenizer and template.

        Raises UsageError if the KV memory or the KV budget of a tenant is too small for one draft.
        """
        self.loop, self.limits, self.rules = loop, limits, limits.rules
        self.model_id, self.keeper = target.model_id, keeper
        self._opener, self._counter = opener, counter
        self.draining = False
        self.hands_over = False  # readers continue elsewhere
        self.stats = SessionStats()
        info = loop.machine.target.facts
        self.sequence_limits = _sequence_limits(info, loop.machine.target.memory.tokens, limits)
        self.images = ImageStore(loop.machine.target.see) if info.images else None
        self.inputs = InputProcessor(target.text, info, self.sequence_limits, limits.tenants, self.images)
        self._draft_limits = DraftLimits(
            self.inputs.vocab_size, limits.max_draft, self.sequence_limits.max_tree, info.tree_reads
        )
        self._ids = itertools.count(1)
        self._signer = signer or TokenSigner(loop.clock, TOKEN_SECONDS)
        self._remembered: dict[int, Session] = {}
        self._expiries: dict[int, asyncio.TimerHandle] = {}  # of sessions without a reader
        self._quotas, self.records = Quotas(limits.tenants, loop.clock), DraftRecords(loop.clock)
        self._admission = AdmissionController(
            loop, limits.max_sessions, limits.tenants, self._quotas, limits.max_pace
        )
        self.devices = DeviceBook()

    @property
    def unready(self) -> str:
        """Why no new sequence is admitted; "" = one is."""
        return DRAINING if self.draining else ""

    @property
    def remembered(self) -> tuple[Session, ...]:
        """All sessions: with a reader, and without one but not yet forgotten."""
        return tuple(self._remembered.values())

    async def open(self, message: Open, tenant: str, spent: Spent | None = None) -> tuple[Session, Opened]:
        """The session of an `Open`, old or new, and the answer to it; the caller attaches the reader next.

        `spent`: see `InputProcessor.prompt_ids`.
        """
        if self.hands_over:
            raise _shutting_down()
        self._require_target(message)
        if message.prompt_logprobs is not None:
            self._begin_anew(message, tenant)
        elif not _needs_tokenizer(message):
            self._forget_shorter(message, len(message.prompt), tenant)
        # It costs more than to find its session: also where it resumes one with text to tokenize
        is_work = self._known(message, tenant) is None or _needs_tokenizer(message)
        with self._arriving(message, tenant) if is_work else nullcontext():
            prompt_ids = await self.inputs.prompt_ids(message, tenant, spent)
            session = self._resume(message, prompt_ids, tenant)
            if session is None:
                create = partial(self._create, tenant=tenant, spent=spent)
                opening = (
                    self._opener(message, prompt_ids, create) if self._opener else create(message, prompt_ids)
                )
                session = await opening
        self._cancel_expiry(session)
        token = self._signer.sign(session.id, session.tenant)
        terms, takes, device = session.terms, session.sources.limits, session.sources.device
        limits = replace(
            self.inputs.limits_of(tenant),
            max_tree=takes.max_tree,
            min_draft=takes.min_draft,
        )
        opened = Opened(
            tuple(session.sequence.tokens[: session.sequence.prompt_length]),
            terms.key,
            token,
            limits,
            device.turn.hint,
            terms.rule.draft_probs,
            rule=terms.rule_label,
            why=device.turn.why,
        )
        return session, session.complete(opened)

    async def count(self, message: Open, tenant: str, spent: Spent | None = None) -> Opened:
        """The answer to an `Open` that may take no token: it has the ids of the prompt, and there is no session."""
        if self.hands_over:
            raise _shutting_down()
        self._require_target(message)
        with self._arriving(message, tenant):
            if self._counter is None:
                ids = await self.inputs.prompt_ids(message, tenant, spent)
            else:
                ids = await self._counter(message)
        return Opened(ids, secrets.token_bytes(KEY_BYTES), b"", self.inputs.limits_of(tenant))

    def leave(self, session: Session) -> None:
        """The reader is gone without a message: remember the session for `linger` seconds."""
        session.detach()
        if session.id in self._remembered and session.id not in self._expiries:
            later = asyncio.get_running_loop().call_later
            self._expiries[session.id] = later(self.limits.linger, self.forget, session)

    def forget(self, session: Session) -> None:
        """Free everything of a session."""
        self._cancel_expiry(session)
        if self._remembered.pop(session.id, None) is not None:
            self.loop.remove(session)
            session.observer.forgotten()

    async def idle(self) -> None:
        """Wait until no session has a reader."""
        while self._admission.taken:
            await asyncio.sleep(IDLE_POLL_SECONDS)

    def hand_over(self) -> None:
        """Admit no session any more, and send all readers back to the address they asked first."""
        self.draining = self.hands_over = True
        for session in self.remembered:
            if session.has_reader:
                session.hand_over()
            else:
                self.forget(session)

    def close(self) -> None:
        """End the threads and processes of a server that has stopped serving."""
        self.inputs.close()
        self.loop.close()
        if self.keeper is not None:
            self.keeper.close()

    def _cancel_expiry(self, session: Session) -> None:
        if (expiry := self._expiries.pop(session.id, None)) is not None:
            expiry.cancel()

    def _require_target(self, message: Open) -> None:
        """No target continues a sequence of another one, for example after a restart with a new model."""
        if message.model_id not in ("", self.model_id):
            raise NotFound(f"this server serves {self.model_id!r}, not {message.model_id[:80]!r}", "model_id")
        if message.fingerprint not in ("", self.inputs.text.fingerprint):
            raise VocabularyMismatch(f"the vocabulary of {self.model_id!r} is not the one the device knows")

    def _known(self, message: Open, tenant: str) -> Session | None:
        """The session that the resume token of an `Open` names; None = the `Open` begins a new one."""
        number = self._signer.session_of(message.resume_token, tenant) if message.resume_token else None
        session = self._remembered.get(number) if number is not None else None
        return None if session is None or session.failed else session

    def _begin_anew(self, message: Open, tenant: str) -> None:
        """Log-probabilities of a prompt are not kept: a reader that comes back for them gets a session of its own."""
        if (session := self._known(message, tenant)) is not None:
            session.outbox.put(None)
            self.forget(session)

    def _resume(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Session | None:
        self._forget_shorter(message, len(prompt_ids), tenant)
        session = self._known(message, tenant)
        if session is None:
            return None
        held = (*prompt_ids, *message.committed)
        if tuple(session.sequence.tokens[: len(held)]) != held:
            raise TruthConflict("the committed ids of this Open are not what the session committed")
        if session.terms.images != _digests(message):
            raise TruthConflict("the images of this Open are not those of the session")
        self.stats.opened["resumed"] += 1
        return session

    def _forget_shorter(self, message: Open, prompt_length: int, tenant: str) -> None:
        """A device that knows more of the text than its session here went on elsewhere meanwhile, and begins anew."""
        session = self._known(message, tenant)
        if session is not None and prompt_length + len(message.committed) > session.sequence.confirmed:
            session.outbox.put(None)  # an older stream ends
            self.forget(session)

    def _arriving(self, message: Open, tenant: str) -> AbstractContextManager[None]:
        """Keeps a place while the prompt is read; raises Overloaded before any work if there is none."""
        self._require_open()
        positions = self.inputs.length_of(message) + len(message.committed)
        return self._admission.arriving(
            AdmissionRequest(tenant, positions, self._pace(message, tenant), message.background)
        )

    def _require_open(self) -> None:
        if self.hands_over or (self.draining and not over_old_connection()):
            raise _shutting_down()

    def _pace(self, message: Open, tenant: str) -> float:
        """The pace that is promised: of what is asked for, as much as the tenant may have and one session can get."""
        if message.pace:
            return self._admission.promise(message.pace, tenant)
        return 0.0 if message.background else self.limits.min_pace

    async def _create(
        self, message: Open, prompt_ids: tuple[int, ...], tenant: str, spent: Spent | None
    ) -> Session:
        served = self.rules.create(message.rule)
        require_rule(served, message.guide, self.limits.tenants.limits_of(tenant), self.limits.max_draft)
        ends = self.inputs.ends(message, len(prompt_ids), tenant)
        self.inputs.check(message, prompt_ids, ends, tenant)
        opening = self._opening(message, prompt_ids, tenant, served.rule, spent)
        riders = await self._riders_of(opening)
        self._require_open()
        if (absent := self._admission.yielding(tenant)) is not None:
            self.forget(absent)
        kv_tokens = self.limits.tenants.limits_of(tenant).kv_tokens
        content = {place: id for rider in riders for place, id in rider.content.items()}
        session = Session(
            id=next(self._ids),
            tenant=tenant,
            sequence=Sequence(
                opening.tokens,
                len(prompt_ids),
                ends,
                self.loop.machine.target.memory.place(tenant, kv_tokens, content),
            ),
            terms=self._terms(message, served),
            sources=self._sources(message, tenant, served.rule, riders),
            riders=riders,
            timing=SessionTiming(self._pace(message, tenant)),
        )
        self._remembered[session.id] = session
        self.loop.add(session)
        self._admission.count_entry()
        self.stats.opened["new"] += 1
        return session

    async def _riders_of(self, opening: Opening) -> tuple[Rider, ...]:
        """See `riders_of`. Where there is no room for a grammar, guided sessions without a reader give way: one who
        comes back brings the text, and its grammar is made anew."""
        while True:
            try:
                return await riders_of(opening)
            except GrammarsFull as error:
                taken = self.inputs.grammar_bytes
                absent = self._admission.yielding_grammar(opening.tenant, taken, error.own)
                if absent is None:
                    raise
                self.forget(absent)
                while absent.in_step:  # it gives its memory back when that ends
                    await asyncio.sleep(IDLE_POLL_SECONDS)

    def _opening(
        self,
        message: Open,
        prompt_ids: tuple[int, ...],
        tenant: str,
        rule: AcceptanceRule,
        spent: Spent | None,
    ) -> Opening:
        machine = self.loop.machine
        keeper = self.keeper if self.limits.tenants.limits_of(tenant).keep else None
        width = machine.target.facts.vocab_size
        return Opening(message, prompt_ids, tenant, rule, self.inputs, width, machine.stats, keeper, spent)

    def _terms(self, message: Open, served: ServedRule) -> Terms:
        label, rule = served
        seed = message.params.seed
        key = message.noise_key or (secrets.token_bytes(KEY_BYTES) if seed is None else noise_key(seed))
        guide = message.guide if message.guide is not None and message.guide.masks else None
        return Terms(message.params, key, rule, label, message.background, _digests(message), guide)

    def _limits_under(self, rule: AcceptanceRule) -> DraftLimits:
        """A rule that must know what tokens are drawn from takes chains only."""
        limits = self._draft_limits
        return limits._replace(
            max_tree=limits.max_tree if rule.trees else 0,
            min_draft=rule.min_draft,
        )

    def _sources(
        self, message: Open, tenant: str, rule: AcceptanceRule, riders: tuple[Rider, ...]
    ) -> DraftSources:
        """Who drafts for a new session."""
        quota, record = self._quotas.of(tenant), self.records.of(tenant, message.device)
        budget = DraftBudget(quota, record, MIN_ACCEPTANCE, riders=riders)
        device = DeviceDrafts(self.devices.of(tenant, message.device), budget)
        stage, servers = self.loop.machine.target.drafting, []
        # A rule with `draft_probs` must know what tokens are drawn from; a loose one lets tokens of a draft stand, and
        # who asks for it means the device's model.
        if stage is not None and rule.lossless and not rule.draft_probs:
            servers = stage.sources(tenant, riders)
        return DraftSources(self._limits_under(rule), device, servers)


def _digests(message: Open) -> tuple[bytes, ...]:
    return tuple([image.digest for image in message.images])


def _needs_tokenizer(message: Open) -> bool:
    """Whether the prompt of an `Open` is no token ids yet."""
    return isinstance(message.prompt, str) or is_chat(message.prompt)


def _sequence_limits(info: EngineInfo, memory: int, limits: SessionLimits) -> Limits:
    """A sequence that fills the KV memory, so many tokens, alone must still have room for its draft."""
    max_draft = limits.max_draft
    budgets = [
        ("tenant-kv-tokens in [limits] (or kv_tokens in the token file)", budget)
        for budget in limits.tenants.kv_budgets
    ]
    for flag, tokens in [("--kv-tokens", memory), *budgets]:
        if tokens < max_draft + 2:
            raise UsageError(f"KV memory for {tokens} tokens holds no draft of {max_draft}; raise {flag}")
    return Limits(
        max_draft, min(info.context_length, memory - max_draft), min(limits.max_tree, info.max_tree)
    )


def _shutting_down() -> Overloaded:
    return Overloaded("the server is shutting down; reopen elsewhere or later", retry_after=1.0)
