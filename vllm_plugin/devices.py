"""Sessions of devices in vLLM's scheduler: their waiting drafts, and the plan of the policy for the next step.

Knows vLLM's requests by their counts of tokens only; scheduler.py turns a plan into vLLM's terms.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from hw_profiles.learned import CostModel
from hw_profiles.seed import seed_cost
from hw_profiles.step_cost import HardwareProfile, StepCost
from opensled.core.messages import HintReason, Why
from scheduler.estimates import OF_DEVICE
from scheduler.plan import SchedulingPolicy, SessionView, Slice, Snapshot
from verify_server.text.guide import Constraint, GrammarRebuilt
from vllm_plugin.messages import Advice, News, RequestTerms, encode, read_tick
from vllm_plugin.proposals import LOOK_S

log = logging.getLogger("vllm.opensled")

# Chosen: steps between two that wait for drafts which forecasts call late, least and most: 3 % of the time
TRY_EVERY = 16, 256


@dataclass(eq=False, slots=True)
class Device:
    """A session of a device; lengths are in tokens, the prompt included."""

    request: Any  # vLLM's
    terms: RequestTerms
    number: int  # in the policy's snapshots
    view: SessionView  # for the policy
    length: int = 0  # of the text at the latest look
    base: int = 0  # tokens that its waiting draft follows
    draft: Sequence[int] = ()  # () = none waits
    in_step: int = 0  # draft tokens in a step that is not over
    told: tuple[int | None, Why] = (None, None)  # the latest advice
    grammar: Future[Constraint | None] | None = None  # of a guided answer; gives None where it failed
    spelled: int = 0  # tokens of the text that the grammar knows
    masks: list[bytes] = field(default_factory=list)  # for the rows of the next step
    stuck: bool = False  # its grammar failed: the step that it is in decides nothing, and it ends
    heard: bool = False  # news came since its latest token
    missed: bool = False  # its draft does not fit the text, and the front does not know that yet
    asked: tuple[int, float] = (0, 0.0)  # length of the text on which it was asked for a draft, and when
    left_s: float = inf  # how long after that the first step began without it

    def __post_init__(self) -> None:
        self._look()
        self.spelled = self.length

    def hear(self, news: News, now: float) -> None:
        """Take the view of the front, and its draft."""
        self.view, self.heard = replace(news.view, id=self.number), True
        if news.ids:
            self.view.ready_since = now
            self.base, self.draft = news.base, news.ids
            self._fit()
            self.missed = not self.draft
            self._show_draft(now if self.missed else news.view.device.asked_since)
        self._look()

    def grow(self, now: float, verified: bool) -> int:
        """The text has grown after a step; returns by how many tokens. `verified`: the step held its draft."""
        news = self.request.num_tokens - self.length
        if news:
            self.heard = False
            if verified:
                self.draft = ()
            waiting, self.missed = self.missed or bool(self.draft), False
            self._fit()
            left_now = (verified or (waiting and not self.draft)) and not self.view.server_drives
            self.view = replace(self.view, waiting_since=now, ready_since=now)
            self._show_draft(now if left_now else self.view.device.asked_since)
            self._look()
            if left_now:
                self.asked, self.left_s = (self.length, now), inf
        return news

    def _show_draft(self, asked_since: float) -> None:
        """Its view has the draft that still waits."""
        if not self.draft and self.view.device.tokens is None and self.view.device.asked_since == asked_since:
            return
        count, reach = len(self.draft), self.view.device.reach
        self.view.device = replace(
            self.view.device, tokens=count or None, reach=reach[len(reach) - count :], asked_since=asked_since
        )

    @property
    def goes_on(self) -> bool:
        """Whether its next step may begin before its latest one is known, as any user's: no draft is about."""
        drafts = self.draft or self.in_step or not self.view.server_drives
        # Penalties and grammars need the newest token's id.
        return not drafts and not self.terms.params.penalizes and self.grammar is None

    @property
    def is_awaited(self) -> bool:
        """Whether its device is at work on a draft."""
        return not (self.draft or self.view.server_drives or self.view.paused or self.view.absent)

    @property
    def just_decodes(self) -> bool:
        """Whether each step decides one token of it, until the policy asks its device for drafts."""
        return self.view.server_drives and not (self.draft or self.view.paused or self.view.absent)

    @property
    def takes_proposals(self) -> bool:
        """Whether vLLM's drafter, if there is one, drafts for it: its device rests."""
        return not (self.draft or self.grammar or self.terms.trial)

    def mask(self, draft: Sequence[int]) -> bool:
        """Find the masks of the rows of a guided answer, if it is one. False: they are not known yet."""
        if self.grammar is None or self.stuck:
            return True
        try:
            grammar, text = self.grammar.result(), self.request.all_token_ids
            if grammar is None:
                self.stuck = True
                return True
            grammar.commit(text[self.spelled :])
            self.spelled = len(text)
            self.masks = grammar.next_masks(draft)
        except GrammarRebuilt:
            return False
        except Exception:
            log.exception("a guided answer ends: its grammar failed")
            self.stuck = True
        return True

    def take_masks(self, draft: Sequence[int]) -> list[bytes]:
        """The masks of a row and of one more for each token of the draft; a mask b"" allows nothing."""
        if len(self.masks) <= len(draft):  # it begins here
            self.mask(draft)
        masks, self.masks = self.masks, []
        return [b""] * (len(draft) + 1) if self.stuck else masks[: len(draft) + 1]

    def _fit(self) -> None:
        """Rebase the draft on the text as it is now."""
        behind = self.request.num_tokens - self.base
        if behind > 0:
            since = self.request.all_token_ids[self.base :]
            fits = behind < len(self.draft) and list(since) == list(self.draft[:behind])
            self.draft = self.draft[behind:] if fits else ()
            self.base += behind

    def _look(self) -> None:
        self.length = self.request.num_tokens
        self.view.context = self.length - 1
        self.view.uncomputed = 1


class _Beside(StepCost):
    """The cost of device rows in a step that has other rows in any case."""

    def __init__(self, cost: StepCost, tokens: int, contexts: int, sessions: int) -> None:
        self._cost, self._other = cost, (tokens, contexts, sessions)

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """See `StepCost`."""
        others, read, beside = self._other
        return self._cost.verify_s(tokens + others, contexts + read, sessions + beside)


class _Gathering:
    """Steps that wait for the drafts of most sessions against the forecasts, now and then: as long as steps begin at
    once, a front that shares its processor with them is late, and so are all its forecasts."""

    def __init__(self) -> None:
        self._steps, self._pause = 0, TRY_EVERY[0]
        self._until = -inf

    def until(self, awaited: int, ready: int, step_s: float, now: float) -> float:
        """When the step of the `ready` sessions may begin."""
        if self._until > -inf:
            if awaited and now < self._until:
                return self._until
            self._until, self._pause = -inf, min(2 * self._pause, TRY_EVERY[1]) if awaited else TRY_EVERY[0]
        self._steps += 1
        if self._steps >= self._pause and awaited >= ready:
            self._steps, self._until = 0, now + step_s / 2
        return self._until


@dataclass
class Fleet:
    """All sessions of devices, and what the policy decides about them."""

    policy: SchedulingPolicy
    max_step_tokens: int
    devices: dict[str, Device] = field(default_factory=dict)  # by request
    named: dict[str, Device] = field(default_factory=dict)  # by the session's name
    wake_at: float = inf  # where nothing is decided now, when that changes by itself
    costs: CostModel = field(default_factory=lambda: CostModel(seed_cost()))
    # Seconds by which drafts come later than a front forecasts, where no step delays them
    trip_s: float = 0.0
    _trips: int = 0  # that are known
    _gathering: _Gathering = field(default_factory=_Gathering)
    _looked: float = -inf  # when the policy was last asked
    _memory: object = None
    _numbers: int = 0
    _mail: dict[str, list[Advice]] = field(default_factory=dict)  # by front
    _waiting: dict[str, Future[bytes]] = field(default_factory=dict)  # fronts that wait for advice

    def add(self, request: Any, terms: RequestTerms) -> Device:
        """A session begins, or goes on in a request of its own."""
        self._numbers += 1
        device = Device(request, terms, self._numbers, replace(terms.view, id=self._numbers))
        self.devices[request.request_id] = self.named[terms.session] = device
        return device

    def remove(self, request_id: str) -> None:
        """A request is over."""
        device = self.devices.pop(request_id, None)
        if device is not None and self.named.get(device.terms.session) is device:
            del self.named[device.terms.session]

    def hear(self, data: bytes) -> None:
        """News of sessions arrive; a draft for an ended session is dropped."""
        now = time.monotonic()
        for news in read_tick(data):
            if (device := self.named.get(news.session)) is not None:
                device.hear(news, now)
                self._add_trip(device, news, now)

    def _add_trip(self, device: Device, news: News, now: float) -> None:
        forecast, (length, asked) = news.view.device.forecast, device.asked
        if forecast is None:
            return
        if news.ids and news.base == length:
            told_s, device.asked = forecast.away_s(len(news.ids)), (0, 0.0)
            # A front may share its processor with steps: only waiting shows how soon a draft can be here.
            if device.left_s >= told_s + self.trip_s:
                self._trips += 1
                late_s = min(now - asked, device.left_s) - told_s  # a step delays it from then on
                self.trip_s += (late_s - self.trip_s) / min(self._trips, OF_DEVICE)
        device.view.device.forecast = forecast._replace(delay_s=max(0.0, forecast.delay_s + self.trip_s))

    def plan(self, load: tuple[int, int, int], now: float) -> dict[str, Slice]:
        """Choose the sessions of the next step, by request. `load`: tokens, KV positions, requests of all others."""
        devices = [device for device in self.devices.values() if is_decoding(device.request)]
        candidates = [device for device in devices if not device.terms.trial]
        if now < self._looked + LOOK_S and all(each.just_decodes for each in candidates):
            self.wake_at, chosen = inf, {each.number: Slice(each.number, 1, True) for each in candidates}
        else:
            chosen = self._ask(candidates, load, now)
            chosen = self._gather(candidates, chosen, now) if chosen and not load[0] else chosen
        for trial in devices:
            if trial.terms.trial and trial.heard:
                chosen[trial.number] = Slice(trial.number, 1 + len(trial.draft), True)
        return {each.request.request_id: chosen[each.number] for each in devices if each.number in chosen}

    def profile(self, load: tuple[int, int, int], sessions: int) -> HardwareProfile:
        """The room and costs of a step that decides so many sessions beside the `load` (see `plan`)."""
        cost = _Beside(self.costs.cost, *load) if load[0] else self.costs.cost
        return HardwareProfile(max(sessions, self.max_step_tokens - load[0]), cost)

    def _gather(self, candidates: Sequence[Device], chosen: dict[int, Slice], now: float) -> dict[int, Slice]:
        """The chosen ones, or nothing yet if the step waits for others."""
        awaited = [each for each in candidates if each.is_awaited]
        away = sum([each.number not in chosen for each in awaited])
        contexts = sum([each.length for each in candidates])
        step_s = self.costs.cost.verify_s(len(candidates), contexts, len(candidates))
        until = self._gathering.until(away, len(chosen), step_s, now)
        if now < until:
            self.wake_at = until
            return {}
        for each in awaited:
            each.left_s = min(each.left_s, now - each.asked[1])
        return chosen

    def _ask(self, candidates: Sequence[Device], load: tuple[int, int, int], now: float) -> dict[int, Slice]:
        """The slices of those that the policy chooses, by number; they get its advice."""
        self._looked = now
        snapshot = Snapshot(tuple([device.view for device in candidates]), self._memory)
        found = self.policy.plan(snapshot, self.profile(load, len(candidates)), now)
        self._memory = found.memory
        self.wake_at = found.wake_at
        chosen = {piece.session: piece for piece in found.slices if piece.decide}
        for device in candidates:
            if (piece := chosen.get(device.number)) is not None:
                self._advise(device, piece)
        return chosen

    def _advise(self, device: Device, piece: Slice) -> None:
        if piece.hint is None or device.told == (piece.hint, piece.why):
            return
        device.told = piece.hint, piece.why
        mail = self._mail.setdefault(device.terms.front, [])
        mail.append(Advice(device.terms.session, piece.hint, piece.why))

    def rest(self) -> None:
        """Ask all devices for no drafts, as none is verified any more."""
        for device in self.devices.values():
            self._advise(device, Slice(device.number, 1, True, hint=0, why=HintReason("operator")))
        self.send_advice()

    def wait_for_advice(self, front: str) -> Future[bytes]:
        """The next advice for the sessions of a front, as soon as there is some."""
        waiting = self._waiting[front] = Future()
        self.send_advice()
        return waiting

    def send_advice(self) -> None:
        """Answer the fronts that wait and that have mail."""
        for front in [front for front in self._waiting if self._mail.get(front)]:
            self._waiting.pop(front).set_result(encode(self._mail.pop(front)))


def is_decoding(request: Any) -> bool:
    """Whether the request is past its prompt."""
    return not request.is_prefill_chunk and request.num_output_tokens + request.num_output_placeholders > 0
