"""Drives vLLM's engine core in this process: sequences come and go, and one call is one step.

After a failed step vLLM would hold requests that it never computes again, and its prefix cache KV that was never
computed. So nothing of a failed step stays: all sequences leave vLLM, its cache is emptied, and they come back one
in a step. The one whose return fails is the cause, and ends.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from vllm import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.core import EngineCore

from opensled.core.errors import EngineLost, InvalidRequest, OpenSledError
from opensled.core.protocol import EndRules
from verify_server.engine.base import EngineInfo
from verify_server.engine.vllm.decoding import Decode, DecodeResult
from verify_server.engine.vllm.scheduler import FleetScheduler
from verify_server.rules.decide import step_failed

log = logging.getLogger(__name__)


@dataclass
class _Sequence:
    """What vLLM must be told to compute a sequence anew."""

    tokens: list[int]  # its prompt, and what was decided
    ends: EndRules
    salt: str
    cached: int = 0  # of its tokens, those that vLLM found in its prefix cache


class VllmCore:
    """One model in vLLM. Called from one thread."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._scheduler = cast(FleetScheduler, core.scheduler)
        self._sequences: dict[str, _Sequence] = {}
        self._lost: deque[str] = deque()  # those that a failed step took, and that vLLM does not have now
        self.preempted = 0  # times that sequences lost their memory to others
        self._on_trial: str | None = None  # the one that came back last, until its text is computed
        self.block_size = int(core.vllm_config.cache_config.block_size)  # tokens
        self.vocab_size = int(core.vllm_config.model_config.get_vocab_size())
        self.context_length = int(core.vllm_config.model_config.max_model_len)
        self.longest_draft = self._scheduler.num_spec_tokens

    def add(self, id: str, tokens: Sequence[int], ends: EndRules, salt: str = "") -> None:
        """A sequence begins with its prompt and what is committed already; its KV is found where it can be.

        `salt`: sequences share KV only with those of the same one; "" is one, too. Raises InvalidRequest.
        """
        assert id not in self._sequences, "one name, one sequence"
        self._check(tokens, ends)
        self._sequences[id] = _Sequence(list(tokens), ends, salt)
        self._enter(id)

    def abort(self, ids: Iterable[str]) -> None:
        """Forget sequences; those that have ended are gone already."""
        gone = [id for id in ids if self._sequences.pop(id, None) is not None]
        self._core.abort_requests(gone)

    def text(self, id: str) -> Sequence[int]:
        """All tokens of a sequence, prompt included; () = it is none, or has ended."""
        sequence = self._sequences.get(id)
        return sequence.tokens if sequence is not None else ()

    def proposal(self, id: str) -> list[int]:
        """What vLLM's drafter proposes to follow the text of a sequence."""
        request = self._scheduler.requests.get(id)
        return (
            list(takewhile(lambda token: token >= 0, request.spec_token_ids)) if request is not None else []
        )

    def step(self, plan: Mapping[str, Decode]) -> dict[str, DecodeResult]:
        """Compute a step: prompts that wait, and those decodes of `plan` for which vLLM has memory and room.

        What became of each sequence; one that has reached its end is forgotten. A step may fail: then nothing is
        decided. Raises EngineLost if vLLM cannot go on.
        """
        self._return_one()
        self._scheduler.plan = {id: self._cut_unknown(decode) for id, decode in plan.items()}
        try:
            outputs = self._run()
        except Exception as error:
            return self._recover(error)
        self.preempted += len(self._scheduler.preempted)
        self._end_trial()
        return self._progress(outputs)

    def info(self, model: str) -> EngineInfo:
        """Facts of it; its level is that of an engine without tests, and its ends are the tokenizer's to say."""
        config = self._core.vllm_config
        return EngineInfo(
            model_id=model,
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            eos_ids=(),
            numerics="fast",
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            device=str(config.device_config.device),
            num_blocks=int(config.cache_config.num_gpu_blocks) - 1,  # vLLM keeps one for itself
            block_size=self.block_size,
            shares_blocks=bool(config.cache_config.enable_prefix_caching),
            runtime="vllm",
            processes=int(config.parallel_config.world_size),
            scores_prompts=False,
        )

    @property
    def idle(self) -> bool:
        """Whether vLLM has no sequence."""
        return not self._sequences

    # -- memory; read from any thread ---------------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        """KV blocks that no sequence holds."""
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def blocks(self, id: str) -> list[int]:
        """KV blocks of a sequence, in an order of their own; [] = it has none."""
        return [block for group in self._scheduler.kv_cache_manager.get_block_ids(id) for block in group]

    def without_memory(self) -> list[str]:
        """Sequences that have lost their memory, or wait for their first."""
        running = {request.request_id for request in self._scheduler.running}
        return [id for id in self._sequences if id not in running]

    def close(self) -> None:
        """End its processes, and free its memory."""
        self._core.shutdown()

    # -- a step -------------------------------------------------------------------------------------------

    def _run(self) -> list[EngineCoreOutput]:
        outputs, computed = self._core.step()
        self._core.post_step(computed)
        return [output for each in outputs.values() for output in each.outputs]

    def _progress(self, outputs: Sequence[EngineCoreOutput]) -> dict[str, DecodeResult]:
        ended = []
        for output in outputs:
            sequence = self._sequences[output.request_id]
            sequence.tokens += output.new_token_ids
            if output.prefill_stats is not None:
                sequence.cached = output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                ended.append(output.request_id)
        found = {id: self._progress_of(id) for id in self._sequences}
        for id in ended:
            del self._sequences[id]
        return found

    def _progress_of(self, id: str) -> DecodeResult:
        scheduler, sequence = self._scheduler, self._sequences[id]
        outcome, check = scheduler.outcomes.get(id), scheduler.checks.get(id)
        if isinstance(outcome, OpenSledError) and check is not None and check.draft:
            # A draft never ends an answer: one token whose embedding is not finite spoils the rows before it, too.
            log.warning("a step with a draft failed, and is taken again without it: %s", outcome)
            outcome = None
        request = scheduler.requests.get(id)  # None: it has ended, or waits to come back
        if request is not None and request.prefill_stats is not None:  # until its first token
            sequence.cached = request.prefill_stats.num_cached_tokens
        return DecodeResult(
            outcome,
            check,
            request.num_computed_tokens if request is not None else 0,
            sequence.cached,
        )

    def _cut_unknown(self, decode: Decode) -> Decode:
        """Without the part of the draft that begins with an id that the model does not know: it would fail the step."""
        check = decode.check
        for place, id in enumerate(check.ids):
            if not 0 <= id < self.vocab_size:
                return decode._replace(check=check._replace(draft=check.draft[:place]))
        return decode

    def _check(self, tokens: Sequence[int], ends: EndRules) -> None:
        if not tokens:
            raise InvalidRequest("the prompt is empty: the target needs at least one token", "prompt")
        if not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
            raise InvalidRequest(f"token ids must lie in [0, {self.vocab_size})", "prompt")
        if not len(tokens) < ends.last_length <= self.context_length:
            raise InvalidRequest(
                f"{len(tokens)} tokens that may become {ends.last_length}: the target has {self.context_length} "
                "positions",
                "prompt",
            )

    # -- entering and coming back -------------------------------------------------------------------------

    def _enter(self, id: str) -> None:
        """Hand a sequence to vLLM, as far as it is decided."""
        sequence = self._sequences[id]
        params = SamplingParams(
            temperature=0.0,  # its sampler is not used
            max_tokens=sequence.ends.last_length - len(sequence.tokens),
            stop_token_ids=sorted(sequence.ends.ids),
            detokenize=False,
        )
        request = EngineCoreRequest(
            request_id=id,
            prompt_token_ids=list(sequence.tokens),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=sequence.salt or None,
            data_parallel_rank=None,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))

    def _recover(self, error: Exception) -> dict[str, DecodeResult]:
        """Take all sequences out of vLLM after a failed step; what becomes of them. Raises EngineLost."""
        log.error("a step of vLLM failed", exc_info=error)
        found = dict.fromkeys(self._sequences, DecodeResult())
        if (blamed := self._on_trial) is not None and blamed in self._sequences:
            found[blamed] = DecodeResult(step_failed())
        try:
            self._leave()
        except Exception as worse:
            raise EngineLost("vLLM cannot go on after a failed step; the server's log says why") from worse
        if blamed is not None:
            self._sequences.pop(blamed, None)
        self._on_trial, self._lost = None, deque(self._sequences)
        return found

    def _leave(self) -> None:
        """Nothing of any sequence stays in vLLM: neither with its scheduler, nor with its workers, nor in its cache."""
        if getattr(self._core.model_executor, "is_failed", False):
            raise EngineLost("a process of vLLM has ended")
        self._core.abort_requests([*self._scheduler.requests])
        self._run()  # it tells the workers who is gone
        if not self._core.reset_prefix_cache():
            raise EngineLost("vLLM still holds KV of a failed step")

    def _return_one(self) -> None:
        """One sequence that a failed step took comes back, when the one before it has proved harmless."""
        if self._on_trial is not None and self._on_trial in self._sequences:
            return
        self._on_trial = None
        while self._lost and self._on_trial is None:
            if (id := self._lost.popleft()) in self._sequences:
                self._enter(id)
                self._on_trial = id

    def _end_trial(self) -> None:
        """A step has succeeded: whose text it has computed is proved harmless."""
        request = self._scheduler.requests.get(self._on_trial or "")
        if request is None or (request.num_computed_tokens and not request.is_prefill_chunk):
            self._on_trial = None


def start(arguments: Mapping[str, Any]) -> VllmCore:
    """Load a model; `arguments`: those of vLLM's `EngineArgs`. Raises what vLLM raises."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.executor import Executor

    config = EngineArgs(**arguments).create_engine_config()
    with _hide("llvmlite.binding.ffi"):
        return VllmCore(EngineCore(config, Executor.get_class(config), log_stats=False))


@contextmanager
def _hide(name: str) -> Iterator[None]:
    """Hide a loaded module for a while. At its start on a CPU, vLLM looks at every object of all modules, and fails at
    one of numba's, which answers to every name."""
    module = sys.modules.pop(name, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[name] = module
