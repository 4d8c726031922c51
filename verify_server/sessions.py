"""The door: opens sessions, finds lost ones again, and forgets those nobody comes back for."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from dataclasses import dataclass

from opensled.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    TruthConflict,
    Unsupported,
    UsageError,
    VocabularyMismatch,
)
from opensled.messages import Limits, Open, Opened, Prompt, is_chat
from opensled.noise import KEY_BYTES, noise_key
from opensled.protocol import EndRules
from verify_server.acceptance import RULES
from verify_server.kv import BlockTable
from verify_server.loop import VerifyLoop
from verify_server.session import Session
from verify_server.target import Target
from verify_server.tokens import TokenSigner

MAX_STOP_IDS = 256
MAX_CHARACTERS = 64  # of text for each position of the context; hardly any token is longer


@dataclass(frozen=True)
class DoorLimits:
    """What the door lets in."""

    max_sessions: int = 256
    max_draft: int = 16  # tokens per block
    linger: float = 60.0  # seconds a session without a reader is remembered


class Door:
    """Turns `Open` messages into sessions of the loop."""

    def __init__(self, loop: VerifyLoop, target: Target, limits: DoorLimits) -> None:
        self.loop, self.limits = loop, limits
        self.model_id, self.text = target.model_id, target.text
        info = loop.engine.info
        # A sequence that fills the KV memory alone must still have room for its draft.
        capacity = info.num_blocks * info.block_size - limits.max_draft
        if capacity < 2:
            raise UsageError(
                f"KV memory for {capacity + limits.max_draft} tokens holds no draft; raise --kv-tokens"
            )
        self.sequence_limits = Limits(limits.max_draft, min(info.context_length, capacity))
        self.draining = False
        self._rules = {name: RULES.get(name)() for name in RULES.names()}
        self._ids = itertools.count(1)
        self._signer = TokenSigner(loop.clock, lifetime=24 * 3600.0)
        self._remembered: dict[int, Session] = {}
        self._farewells: dict[int, asyncio.TimerHandle] = {}

    @property
    def remembered(self) -> tuple[Session, ...]:
        """Every session with a reader, or still waiting for one to come back."""
        return tuple(self._remembered.values())

    async def open(self, message: Open, tenant: str) -> tuple[Session, Opened]:
        """The session of an `Open`, old or new, and the answer to it; its reader calls `attach` next."""
        self._require_target(message)
        prompt_ids = await self._prompt_ids(message.prompt)
        session = self._resume(message, prompt_ids, tenant) or self._create(message, prompt_ids, tenant)
        farewell = self._farewells.pop(session.id, None)
        if farewell is not None:
            farewell.cancel()
        token = self._signer.sign(session.id, session.tenant)
        return session, Opened(prompt_ids, session.key, token, self.sequence_limits)

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

    def _require_target(self, message: Open) -> None:
        """A sequence begun on one target must not be continued by another, say after a restart with a new model."""
        if message.model_id not in ("", self.model_id):
            raise NotFound(f"this server serves {self.model_id!r}, not {message.model_id!r}", "model_id")
        if message.fingerprint not in ("", self.text.fingerprint):
            raise VocabularyMismatch(f"the vocabulary of {self.model_id!r} is not the one the device knows")

    def _resume(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Session | None:
        number = self._signer.session_of(message.resume_token, tenant) if message.resume_token else None
        session = self._remembered.get(number) if number is not None else None
        if session is None or session.failed:
            return None
        held = (*prompt_ids, *message.committed)
        if tuple(session.tokens[: len(held)]) != held:
            raise TruthConflict("the committed ids of this Open are not what the session committed")
        return session

    def _create(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Session:
        if self.draining:
            raise Overloaded("the server is shutting down; reopen elsewhere or later", retry_after=1.0)
        self._make_room()
        if message.rule not in self._rules:
            raise Unsupported(f"rule {message.rule!r} is not served; choose from {list(self._rules)}", "rule")
        tokens = [*prompt_ids, *message.committed]
        ends = self._ends(message, len(prompt_ids))
        self._check(tokens, ends)
        session = Session(
            id=next(self._ids),
            tenant=tenant,
            tokens=tokens,
            prompt_length=len(prompt_ids),
            params=message.params,
            key=message.noise_key or self._key(message.params.seed),
            ends=ends,
            rule=self._rules[message.rule],
            table=BlockTable(self.loop.pool),
            vocab_size=self.loop.engine.info.vocab_size,
            max_draft=self.limits.max_draft,
        )
        self._remembered[session.id] = session
        self.loop.add(session)
        return session

    def _make_room(self) -> None:
        """When all places are taken, a session whose reader is gone gives way; else Overloaded."""
        if len(self.loop.sessions) < self.limits.max_sessions:
            return
        absent = next((session for session in self.loop.sessions.values() if not session.has_reader), None)
        if absent is None:
            raise Overloaded(f"all {self.limits.max_sessions} sessions are taken; try again", retry_after=1.0)
        self.forget(absent)

    def _key(self, seed: int | None) -> bytes:
        return secrets.token_bytes(KEY_BYTES) if seed is None else noise_key(seed)

    def _ends(self, message: Open, prompt_length: int) -> EndRules:
        params = message.params
        eos = frozenset() if params.ignore_eos else frozenset(self.loop.engine.info.eos_ids)
        last = min(prompt_length + params.max_tokens, self.sequence_limits.context_length)
        return EndRules(eos, frozenset(params.stop_ids), last)

    def _check(self, tokens: list[int], ends: EndRules) -> None:
        info = self.loop.engine.info
        if not tokens:
            raise InvalidRequest("the prompt is empty: the target needs at least one token", "prompt")
        if len(ends.stop_ids) > MAX_STOP_IDS:
            raise InvalidRequest(f"at most {MAX_STOP_IDS} stop ids, not {len(ends.stop_ids)}", "stop_ids")
        if any(not 0 <= id < info.vocab_size for id in tokens):
            raise InvalidRequest(f"a prompt id is outside the vocabulary of {info.vocab_size}", "prompt")
        if len(tokens) >= self.sequence_limits.context_length:
            context = self.sequence_limits.context_length
            raise InvalidRequest(
                f"{len(tokens)} tokens do not fit; this server's context is {context}", "prompt"
            )
        if len(tokens) >= ends.last_length:
            raise InvalidRequest("all max_tokens are committed already", "max_tokens")

    async def _prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Tokenizing takes seconds for megabytes: never on the event loop, and never for what cannot fit."""
        if isinstance(prompt, str):
            self._check_size(len(prompt))
            return await asyncio.to_thread(self.text.encode, prompt)
        if is_chat(prompt):
            self._check_size(sum(len(turn.content) for turn in prompt))
            return await asyncio.to_thread(self.text.render, prompt)
        return prompt  # type: ignore[return-value]

    def _check_size(self, characters: int) -> None:
        longest = self.sequence_limits.context_length * MAX_CHARACTERS
        if characters > longest:
            raise InvalidRequest(
                f"a prompt of {characters} characters; this server takes at most {longest}", "prompt"
            )
