"""vLLM's scheduler with the fleet's plan: what each sequence verifies in a step, and which ones wait.

The server sets `plan` before a step, and reads `outcomes`, `checks` and `preempted` after it. vLLM loads the class by
name (`scheduler_cls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from verify_server.engine.vllm.decoding import Decode
from vllm_plugin.drafters import IN_ONE_PASS
from verify_server.rules.base import DraftCheck
from verify_server.rules.decide import Outcome, Question


class FleetScheduler(Scheduler):
    """`Scheduler` that verifies drafts from outside."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plan: Mapping[str, Decode] = {}  # of the next step, by request
        self.outcomes: dict[str, Outcome] = {}  # of the latest one
        self.checks: dict[str, DraftCheck] = {}  # that they are of
        self.preempted: frozenset[str] = frozenset()
        speculative = self.vllm_config.speculative_config
        self._proposes_all = speculative.method in IN_ONE_PASS or speculative.parallel_drafting

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """See `Scheduler`."""
        self.outcomes, self.checks = {}, {}
        for request in self.running:
            if not request.is_prefill_chunk:
                self._place(request)
        step = super().schedule(*args, **kwargs)
        self.preempted = frozenset(step.preempted_req_ids or ())
        step.num_spec_tokens_to_schedule = self._proposal_length()
        return step

    def _proposal_length(self) -> int:
        """Tokens that vLLM's drafter proposes after a step. What was not asked for is not verified."""
        if self._proposes_all:
            return self.num_spec_tokens
        # At least one: so a draft model reads the text in every step.
        asked = max((decode.ask for decode in self.plan.values()), default=0)
        return min(max(1, asked), self.num_spec_tokens)

    def _place(self, request: Request) -> None:
        """Set the draft of a sequence that decodes, or hold the sequence back: it keeps its turn and its memory."""
        decode = self._decode_of(request)
        if decode is None:
            # `schedule` counts the step first, then skips each request that is eligible in a later one only.
            request.next_decode_eligible_step = self.current_step + 2
        else:
            request.spec_token_ids = decode.draft(self.num_spec_tokens)

    def _decode_of(self, request: Request) -> Decode | None:
        """What the plan has for a sequence, if that was made for its text as it is now."""
        decode = self.plan.get(request.request_id)
        return decode if decode is not None and decode.check.position == request.num_tokens else None

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> dict[str, Question]:
        """The questions of a step, for `FleetWorker.sample_tokens`.

        vLLM asks for masks while its workers compute, and hands them on as they are.
        """
        questions: dict[str, Question] = {}
        for id in scheduler_output.num_scheduled_tokens:
            request = self.requests[id]
            decode = None if request.is_prefill_chunk else self._decode_of(request)
            if decode is None:
                continue
            check = decode.fit_check(scheduler_output.scheduled_spec_decode_tokens.get(id, ()))
            self.checks[id], asked = check, decode.question(check)
            if isinstance(asked, Question):
                questions[id] = asked
            else:
                self.outcomes[id] = asked
        return questions

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """See `Scheduler`."""
        self.outcomes.update(getattr(model_runner_output, "outcomes", {}))
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(id)
            # vLLM waits for the token after the last one. Where none was decided, it must compute the last one again.
            if request is not None and request.num_computed_tokens >= request.num_tokens:
                request.num_computed_tokens = request.num_tokens - 1
        return outputs
