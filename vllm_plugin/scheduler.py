"""vLLM's scheduler, plain or asynchronous, with the plan for devices' sessions: drafts go in, sessions are held back.

All other requests are vLLM's own matter. Each part of ours is contained: it changes only a request's draft and its
turn, so that after a fault vLLM goes on without drafts.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.logger import init_logger
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from hw_profiles.learned import LearnedCost
from scheduler import make_policy
from scheduler.plan import PolicyOptions, Slice
from vllm_plugin.devices import Device, Fleet, is_decoding
from vllm_plugin.messages import ADVICE, LOAD, TICK, encode, terms_of
from vllm_plugin.option import settings_of
from vllm_plugin.proposals import ASKS, Proposals
from vllm_plugin.text import Grammars, mask_rows

logger = init_logger("vllm.opensled")

_Begun = tuple[float, int, int, int]  # time, tokens, KV positions and requests of a step


class DeviceScheduler(Scheduler):
    """Plans a step when the one before it is over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = settings_of(self.vllm_config)
        policy = make_policy(settings["policy"], PolicyOptions(settings["draft_wait"]))
        self.fleet = Fleet(policy, self.max_num_scheduled_tokens)
        # None = vLLM's drafter, if there is one, drafts as it does by itself
        self.own: Proposals | None = None
        drafter, is_alone = self.vllm_config.speculative_config, self.parallel_config.data_parallel_size == 1
        # Engines in parallel enter each pass of a drafter together.
        if drafter is not None and is_alone and settings["policy"] == "goodput":
            self.own = Proposals(policy, drafter.method, self.num_spec_tokens, self.fleet.costs.cost)
        self.broken = False  # by a fault of ours: there are no drafts any more
        self._planned: dict[str, Slice] | None = None  # for the next step, if that was looked at already
        self._alarm = _Alarm()
        self._grammars = Grammars(self.vllm_config.model_config)
        self._begun: dict[int, _Begun] = {}  # of each step that is not over; the asynchronous one has several
        self._ended = 0.0  # when the latest step ended
        _add_utilities()

    # -- requests -----------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """See `Scheduler`."""
        if (terms := terms_of(request.sampling_params)) is not None:
            device = self.fleet.add(request, terms)
            if terms.guide is not None:
                ids, start = tuple(request.prompt_token_ids), terms.prompt_length
                device.grammar = self._grammars.start(terms.guide, ids[:start], ids[start:])
                request.structured_output_request = _Compiling(device.grammar)
                request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        if self.own is not None:
            self.own.add(request)
        super().add_request(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.fleet.remove(request.request_id)
        if self.own is not None:
            self.own.remove(request.request_id)
        self._planned = None
        return super()._free_request(request, *args, **kwargs)

    def tick(self, data: bytes, wake: Callable[[], None]) -> None:
        """News of sessions, between two steps. `wake`: ends the sleep of the engine."""
        self._alarm.wake = wake
        self._planned = None
        self._contained("news", lambda: self.fleet.hear(data))

    def load(self) -> bytes:
        """See `read_load`."""
        free, cost = self.kv_cache_manager.block_pool.get_num_free_blocks(), self.fleet.costs.cost
        return encode((free * self.block_size, cost if isinstance(cost, LearnedCost) else None))

    def has_requests(self) -> bool:
        """See `Scheduler`; False while all requests are sessions that wait for their devices: the engine sleeps."""
        return super().has_requests() and not self._all_wait()

    def _all_wait(self) -> bool:
        fleet = self.fleet
        if self.broken or not fleet.devices or self.waiting or self.finished_req_ids:
            return False
        if len(self.running) != len(fleet.devices) or any(each.in_step for each in fleet.devices.values()):
            return False
        if any(request.is_prefill_chunk or _in_flight(request) for request in self.running):
            return False
        self._contained("plan", self._plan)
        if self.broken or self._planned:
            return False
        self._alarm.set(fleet.wake_at)
        return True

    # -- a step -------------------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """See `Scheduler`."""
        if self.fleet.devices:
            self._contained("schedule", self._place_drafts)
        if self.own is not None:
            self._contained("proposals", self._cut_proposals)
        step = super().schedule(*args, **kwargs)
        if self.own is not None:
            setattr(step, ASKS, self.own.asks)
        if self.fleet.devices or self.own is not None:
            self._contained("count", lambda: self._count(step))
        return step

    def _cut_proposals(self) -> None:
        """Leave of the proposals of vLLM's drafter what pays, beside the drafts of devices."""
        devices, deciding, others = self.fleet.devices, dict[str, Request](), list[Request]()
        for request in self.running:
            id = request.request_id
            if is_decoding(request) and request.next_decode_eligible_step <= self.current_step + 1:
                if id not in devices or devices[id].takes_proposals:
                    deciding[id] = request
                else:
                    others.append(request)
        tokens = sum([1 + len(request.spec_token_ids) for request in others])
        load = tokens, sum([request.num_tokens for request in others]), len(others)
        assert self.own is not None
        self.own.plan(deciding, self.fleet.profile(load, len(deciding)), time.monotonic())

    def _plan(self) -> None:
        if self._planned is not None and time.monotonic() < self.fleet.wake_at:
            return
        others = [request for request in self.running if request.request_id not in self.fleet.devices]
        load = len(others), sum([request.num_tokens for request in others]), len(others)
        self._planned = self.fleet.plan(load, time.monotonic())
        self.fleet.send_advice()

    def _place_drafts(self) -> None:
        if self._would_split():
            self._planned = {}
        else:
            self._plan()
        planned, self._planned = self._planned or {}, None
        for id, device in self.fleet.devices.items():
            request = device.request
            if request.is_prefill_chunk or not (request.num_output_tokens or request.num_output_placeholders):
                continue  # its prompt is computed as any other
            self._place(device, planned.get(id))

    def _would_split(self) -> bool:
        """Whether a step beside the one that is computed would have nothing but drafts of devices: in two groups they
        cost two steps, and after it they can share one."""
        devices = self.fleet.devices.values()
        return (
            len(self.running) == len(devices)
            and not self.waiting
            and any(_in_flight(each.request) for each in devices)
            and not any(each.goes_on or each.request.is_prefill_chunk for each in devices)
        )

    def _place(self, device: Device, piece: Slice | None) -> None:
        request, draft = device.request, device.draft
        # In flight, in the asynchronous scheduler only: its latest step has decided, but the tokens are not known yet.
        if piece is None or (_in_flight(request) and not device.goes_on):
            self._hold(request)
            return
        # vLLM's drafter, if there is one, sets the size of its buffers.
        most = self.num_spec_tokens or len(draft)
        draft = list(draft[:most] if piece.draft is None else draft[: min(most, piece.draft)])
        if self.num_spec_tokens and device.takes_proposals:
            draft = request.spec_token_ids
        if not device.mask(draft):
            self._hold(request)
            return
        request.next_decode_eligible_step, request.spec_token_ids = 0, draft

    def _hold(self, request: Request) -> None:
        # `schedule` counts the step first, then skips each request that is eligible in a later one only.
        request.next_decode_eligible_step = self.current_step + 2

    def _count(self, step: Any) -> None:
        drafted = step.scheduled_spec_decode_tokens
        for request_id in step.num_scheduled_tokens:
            if (device := self.fleet.devices.get(request_id)) is not None:
                device.in_step = len(drafted.get(request_id, ()))
        tokens, requests = sum(step.num_scheduled_tokens.values()), len(step.num_scheduled_tokens)
        contexts = sum([self.requests[each].num_computed_tokens for each in step.num_scheduled_tokens])
        self._begun[id(step)] = time.monotonic(), tokens, contexts, requests

    def get_grammar_bitmask(self, step: Any) -> GrammarOutput | None:
        """See `Scheduler`; with the masks of devices' guided answers, whose grammars are this server's own."""
        guided = [
            device
            for id in step.num_scheduled_tokens
            if (device := self.fleet.devices.get(id)) and device.grammar
        ]
        for device in guided:  # its grammar is compiled: from now on it is none of vLLM's
            device.request.structured_output_request = None
        found = super().get_grammar_bitmask(step)
        deciding = [device for device in guided if not device.request.is_prefill_chunk]
        if not deciding:
            return found
        words = -(-self.vllm_config.model_config.get_vocab_size() // 32)
        ids, rows, counts = list[str](), list[NDArray[np.int32]](), list[int]()
        if found is not None:
            ids, counts = [*found.structured_output_request_ids], [*found.num_acceptable_drafts]
            rows = [found.grammar_bitmask]
        for device in deciding:
            draft = step.scheduled_spec_decode_tokens.get(device.request.request_id, ())
            ids.append(device.request.request_id)
            rows.append(mask_rows(device.take_masks(draft), words))
            counts.append(len(draft))
        return GrammarOutput(ids, np.concatenate(rows), counts)

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's counters need its `speculative_config`."""
        return super().make_spec_decoding_stats(*args, **kwargs) if self.num_spec_tokens else None

    def update_from_output(self, step: Any, output: Any) -> Any:
        """See `Scheduler`."""
        found, begun = super().update_from_output(step, output), self._begun.pop(id(step), None)
        if (self.fleet.devices or self.own is not None) and not self.broken:
            self._contained("update", lambda: self._commit(step, output, found, begun))
        return found

    def _commit(
        self, step: Any, output: Any, outputs: dict[int, EngineCoreOutputs], begun: _Begun | None
    ) -> None:
        now, drafted = time.monotonic(), step.scheduled_spec_decode_tokens
        drafting_s = self.own.learn(step, output) if self.own is not None else 0.0
        for id in step.num_scheduled_tokens:
            device = self.fleet.devices.get(id)
            if device is None:
                continue
            device.in_step = 0
            decoded = _decodes_now(device)
            grown = device.grow(now, verified=bool(drafted.get(id)))
            if not grown and decoded and not _in_flight(device.request):
                self._end(device.request, outputs)  # the worker could not decide its rows
        started, tokens, contexts, requests = begun or (now, 0, 0, 0)
        if tokens:
            self.fleet.costs.observe(tokens, contexts, requests, now - max(started, self._ended) - drafting_s)
        self._ended, self._planned = now, None

    def _end(self, request: Request, outputs: dict[int, EngineCoreOutputs]) -> None:
        self.finish_requests([request.request_id], RequestStatus.FINISHED_ERROR)
        output = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR)
        outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(output)

    # -- faults -------------------------------------------------------------------------------------------

    def _contained(self, part: str, work: Callable[[], None]) -> None:
        """Run a part of ours; after a fault there are no drafts any more, and each session decodes as vLLM does it."""
        if not self.broken:
            try:
                work()
                return
            except Exception:
                logger.exception("OpenSLED: a fault in %s; vLLM serves on, without drafts", part)
                self.broken, self._planned, self.own = True, None, None
                with suppress(Exception):
                    self.fleet.rest()
        for device in self.fleet.devices.values():
            request = device.request
            if _in_flight(request):  # the asynchronous worker knows its newest token only after this step
                self._hold(request)
            else:
                request.next_decode_eligible_step, request.spec_token_ids = 0, []


def _in_flight(request: Request) -> bool:
    return bool(request.num_output_placeholders)


def _decodes_now(device: Device) -> bool:
    return not device.request.is_prefill_chunk and device.request.num_output_tokens > 0


class _Compiling(StructuredOutputRequest):
    """Guide of a request: until its grammar is there, vLLM lets the request wait."""

    def __init__(self, grammar: Future[Any]) -> None:
        super().__init__(StructuredOutputsParams(json_object=True), grammar, reasoning_ended=True)


class _AsyncDeviceScheduler(DeviceScheduler, AsyncScheduler):
    """Plans a step while the one before it is computed."""


def make_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> DeviceScheduler:
    """The scheduler for vLLM's configuration; in place of a class."""
    is_async = vllm_config.scheduler_config.async_scheduling
    kind = _AsyncDeviceScheduler if is_async else DeviceScheduler
    return kind(*args, vllm_config=vllm_config, **kwargs)


class _Alarm:
    """Wakes the engine at a time, from a thread of its own."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._at, self._changed = inf, threading.Condition()
        threading.Thread(target=self._run, name="opensled alarm", daemon=True).start()

    def set(self, at: float) -> None:
        """Wake it then (seconds of the monotonic clock), and not at the time set before."""
        with self._changed:
            if at != self._at:
                self._at = at
                self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while True:
                seconds = self._at - time.monotonic()
                if seconds > 0:
                    self._changed.wait(None if seconds == inf else seconds)
                else:
                    self._at = inf
                    self.wake()


def _add_utilities() -> None:
    """Add the methods that the fronts call: vLLM's engine core calls each of its methods by name."""
    core = sys.modules["vllm.v1.engine.core"]

    def tick(self: Any, data: bytes) -> None:
        wake = (core.EngineCoreRequestType.WAKEUP, None)
        self.scheduler.tick(data, lambda: self.input_queue.put_nowait(wake))

    def advice(self: Any, front: str) -> Future[bytes]:
        return self.scheduler.fleet.wait_for_advice(front)

    setattr(core.EngineCore, TICK, tick)
    setattr(core.EngineCore, ADVICE, advice)
    setattr(core.EngineCore, LOAD, lambda self: self.scheduler.load())
