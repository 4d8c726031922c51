"""Sessions that vLLM writes: each is one `generate()` of vLLM's client; drafts go to its scheduler, one tick for all.

Drafts and verdicts meet by positions alone. vLLM's outputs tell by how many tokens a text has grown; how many of
them were drafted shows by comparing. A draft was verified if it differs from the text, or if several tokens came at
once; else it waits on, here and in the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from vllm import SamplingParams as VllmParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from opensled.core.errors import EngineError
from opensled.core.messages import Draft, DraftToken, HintReason, TokenLogprobs, Why
from opensled.core.protocol import common_prefix
from scheduler.plan import SessionView, Slice
from verify_server.engine.base import EngineInfo
from verify_server.kv.memory import ENDLESS, SequenceMemory, TargetMemory
from verify_server.riders.answer_logprobs import LogprobsReading
from verify_server.round.loop import VerifyLoop
from verify_server.round.machine import StepMachine
from verify_server.round.outbox import Outbox
from verify_server.round.session import Session
from verify_server.round.target import Target
from verify_server.rules.base import AcceptanceResult, Reading
from vllm_plugin.messages import (
    ADVICE,
    LOAD,
    TICK,
    News,
    RequestTerms,
    encode,
    extra_args,
    read_advice,
    read_load,
)

log = logging.getLogger(__name__)

LOAD_S = 0.5  # seconds between two looks at its load; chosen: as often as replicas send heartbeats
LOST = "the target model failed on this step; the server's log says why"


class _VllmMemory(TargetMemory):
    """KV that vLLM keeps: where there is none it preempts, so that no sequence is refused for it."""

    left = ENDLESS  # tokens that no request of vLLM held lately

    def states(self) -> dict[str, int]:
        """See `TargetMemory`."""
        return {"free": self.left}

    def room_beside(self, others: Iterable[SequenceMemory]) -> int:
        """See `TargetMemory`."""
        return ENDLESS


class VllmTarget(Target):
    """Facts of a target whose steps are vLLM's own; it plans and computes them."""

    def __init__(self, facts: EngineInfo) -> None:
        self.facts, self.memory = facts, _VllmMemory()

    def step(self, work: Sequence[Any]) -> NoReturn:
        """See `Target`."""
        raise AssertionError("vLLM computes its steps by itself")


class _Writing:
    """One session while vLLM writes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: SessionView | None = None  # the view that the scheduler knows
        self.task: asyncio.Task[None] | None = None
        self.begun = False  # vLLM has told of it, so that the scheduler knows it
        self.likeliest = 0  # tokens whose log-probabilities are told in each place
        self.drafted = 0  # tokens of the draft that the scheduler has
        self.advice: tuple[int | None, Why] = (None, None)  # for the next verdict


class VllmLoop(VerifyLoop):
    """See `VerifyLoop`; the rounds are vLLM's."""

    def __init__(self, machine: StepMachine, client: Any, clock: Callable[[], float]) -> None:
        """`client`: vLLM's `EngineClient`."""
        super().__init__(machine, clock)
        self.rests = False  # no draft is verified: the self-test has failed
        self._client, self._core = client, client.engine_core
        self._front = uuid.uuid4().hex
        self._writing: dict[int, _Writing] = {}  # by session
        self._named: dict[str, Session] = {}
        self._news: dict[str, News] = {}  # for the next tick, by session
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Carry news and advice until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_ticks())
            tasks.create_task(self._take_load())
            for engine in getattr(self._core, "core_engines", [None]):
                tasks.create_task(self._take_advice(engine))

    # -- what streams ask ---------------------------------------------------------------------------------

    def attach(self, session: Session, known: int) -> Outbox:
        """See `VerifyLoop`; from now on vLLM writes the session, if it does not yet."""
        outbox = super().attach(session, known)
        self._begin(session)
        self._tell(session)
        return outbox

    def _begin(self, session: Session) -> None:
        if session.id in self._writing or session.sequence.over:
            return
        writing = self._writing[session.id] = _Writing(uuid.uuid4().hex)
        self._named[writing.name] = session
        writing.task = asyncio.create_task(self._write(session, writing))

    def submit(self, session: Session, draft: Draft) -> bool:
        """See `VerifyLoop`."""
        device = session.sources.device
        asked = device.asked_since
        gains = super().submit(session, draft)
        self._tell(session, dropped=device.asked_since != asked)
        return gains

    def listen(self, session: Session) -> None:
        """See `VerifyLoop`."""
        super().listen(session)
        self._tell(session)

    def remove(self, session: Session) -> None:
        """See `VerifyLoop`."""
        super().remove(session)
        self._stop(session)

    def wake(self) -> None:
        """See `VerifyLoop`."""
        self._changed.set()

    def _stop(self, session: Session) -> None:
        writing = self._writing.pop(session.id, None)
        if writing is not None:
            del self._named[writing.name]
            if writing.task is not None and writing.task is not asyncio.current_task():
                writing.task.cancel()

    # -- what vLLM writes ---------------------------------------------------------------------------------

    async def _write(self, session: Session, writing: _Writing) -> None:
        """Write until the text ends or its reader leaves; a reader who comes back continues it in a new request."""
        stream = self._client.generate(
            self._prompt(session), self._params(session, writing), f"opensled-{writing.name}"
        )
        try:
            async for output in stream:
                (choice,) = output.outputs
                if choice.finish_reason == "abort":  # SIGTERM: vLLM ends
                    raise EngineDeadError
                if choice.finish_reason == "error":
                    raise EngineError(LOST)
                writing.begun = True
                if choice.token_ids:
                    cached = output.num_cached_tokens or 0
                    self._commit(session, writing, tuple(choice.token_ids), choice.logprobs, cached)
                if session.sequence.over or not session.has_reader:
                    break
        except EngineDeadError:
            session.hand_over()  # its device comes back as soon as a server is there again
        except Exception as error:
            if not isinstance(error, EngineError):
                log.exception("vLLM ended a session")
                error = EngineError(LOST)
            self.remove(session)
            session.fail(error)
        finally:
            await stream.aclose()
        self._stop(session)
        if session.sequence.over:
            self.remove(session)
        elif session.has_reader and not session.failed:  # a new one came while the request ended
            self._begin(session)

    def _prompt(self, session: Session) -> dict[str, Any]:
        # Sequences share KV within a tenant only, and users of vLLM, who may name a salt, cannot guess this one.
        salt = f"{self._front} {session.tenant}"
        return {"prompt_token_ids": list(session.sequence.tokens), "cache_salt": salt}

    def _params(self, session: Session, writing: _Writing) -> VllmParams:
        sequence, terms = session.sequence, session.terms
        view = writing.sent = session.view(self.clock())
        told = RequestTerms(
            writing.name,
            self._front,
            terms.key.hex(),
            sequence.prompt_length,
            terms.params,
            view,
            terms.guide,
        )
        reads = [each for rider in session.riders for each in rider.reads(0, 0, True)]
        counts = [each.count for each in reads if isinstance(each, LogprobsReading)]
        writing.likeliest = counts[0] if counts else 0
        ends = sequence.ends
        return request_params(told, ends.last_length - len(sequence), ends.ids, counts[0] if counts else None)

    def _commit(
        self, session: Session, writing: _Writing, news: tuple[int, ...], logprobs: Any, cached: int
    ) -> None:
        sequence, device, now = session.sequence, session.sources.device, self.clock()
        waiting = device.offer
        block = waiting.block if waiting is not None else None
        agreed = common_prefix(block.ids, news) if block is not None else 0
        ends = len(sequence) + len(news) >= sequence.ends.last_length or news[-1] in sequence.ends.ids
        used = block is not None and (len(news) > 1 or not agreed or ends)
        if not used:
            device.offer = None
            if block is not None:  # else only drafts that prove wrong would be learned from
                device.estimate.device.confidences.add_verdict([(block.tokens[0].confidence, True)])
        if not sequence.computed:
            sequence.progress(len(sequence) - 1, cached)
            session.tell_prefill()
        sequence.progress(len(sequence) - 1, 0)
        verified = min(writing.drafted, len(news)) if agreed == len(news) else writing.drafted
        hint, why = (0, HintReason("operator")) if self.rests else writing.advice
        piece = Slice(session.id, 1, True, draft=verified if used else 0, hint=hint, why=why)
        item = session.plan(piece, now)
        if not used:
            device.offer = waiting
        assert item.check is not None
        check = item.check._replace(draft=tuple(map(DraftToken, news[:-1])))
        read: dict[type[Reading], Any] = {}
        if logprobs is not None:
            read[LogprobsReading] = _logprobs(news, logprobs, writing.likeliest)
        session.commit(item._replace(check=check), AcceptanceResult(len(news) - 1, news[-1], read=read), now)
        self.machine.stats.step(1, len(news), 0.0)
        if not sequence.over:
            self._tell(session)

    # -- news and advice ----------------------------------------------------------------------------------

    def _tell(self, session: Session, dropped: bool = False) -> None:
        """News for the scheduler: a draft that waits, or a view that has changed in what the scheduler cannot know.
        `dropped`: the device drafts anew, as its draft came too late."""
        writing = self._writing.get(session.id)
        if writing is None or not writing.begun:
            return
        view, offer = session.view(self.clock()), session.sources.device.offer
        ids: tuple[int, ...] = ()
        if offer is not None and not self.rests:
            budget = session.sources.device.budget.longest(
                len(offer.block.tokens), len(session.sequence), self.clock()
            )
            ids = offer.block.ids[: min(budget, session.sources.limits.max_draft, session.sequence.useful)]
        known = writing.sent
        if not ids and not dropped and known is not None and _same(known, view):
            return
        writing.sent, writing.drafted = view, len(ids)
        self._news[writing.name] = News(writing.name, view, offer.block.base if offer else 0, ids)
        self._changed.set()

    async def _send_ticks(self) -> None:
        lost = False  # the latest: told once, as a server that drains refuses all of them
        while True:
            await self._changed.wait()
            self._changed.clear()
            taken, self._news = self._news, {}
            if not taken:
                continue
            try:
                await self._core.call_utility_async(TICK, encode([*taken.values()]))
                lost = False
            except Exception:
                if not lost:
                    log.exception("drafts are lost; their sessions go on without")
                lost = True

    async def _take_load(self) -> None:
        """For admission, metrics, and a cluster's choice among replicas."""
        machine, memory = self.machine, self.machine.target.memory
        assert isinstance(memory, _VllmMemory)
        while True:
            try:
                memory.left, cost = read_load(await self._core.call_utility_async(LOAD))
            except Exception:
                log.exception("no more news of vLLM's memory and steps")
                return
            if cost is not None:
                machine.profile = replace(machine.profile, cost=cost)
            await asyncio.sleep(LOAD_S)

    async def _take_advice(self, engine: Any) -> None:
        while True:
            try:
                found = await (
                    self._core.call_utility_async(ADVICE, self._front)
                    if engine is None
                    else self._core._call_utility_async(ADVICE, self._front, engine=engine)
                )
            except Exception:
                log.exception("no more hints for devices")
                return
            for advice in read_advice(found):
                session = self._named.get(advice.session)
                if session is not None:
                    self._writing[session.id].advice = advice.hint, advice.why


def request_params(
    terms: RequestTerms, max_tokens: int, ends: Collection[int], logprobs: int | None
) -> VllmParams:
    """vLLM's parameters of a device's request; its sampler is not used, and the ends are ours."""
    return VllmParams(
        temperature=0.0,
        max_tokens=max_tokens,
        stop_token_ids=sorted(ends),
        ignore_eos=True,
        detokenize=False,
        logprobs=logprobs,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra_args(terms),
    )


def _same(known: SessionView, view: SessionView) -> bool:
    """Whether the scheduler can go on with the view that it knows."""
    return (
        known.server_drives == view.server_drives
        and known.paused == view.paused
        and known.absent == view.absent
        and known.device.hint == view.device.hint
        and known.device.longest == view.device.longest
    )


def _logprobs(news: Sequence[int], found: Any, count: int) -> list[TokenLogprobs]:
    """Log-probabilities of each token: its own, then those of the `count` likeliest, as vLLM has found them."""
    told = []
    for id, each in zip(news, found):
        likeliest = sorted((value.rank, other, value.logprob) for other, value in each.items())
        told.append(
            (
                (id, each[id].logprob),
                *[(other, logprob) for rank, other, logprob in likeliest if rank <= count],
            )
        )
    return told
