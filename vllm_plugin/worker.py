"""vLLM's worker, which decides the rows of devices' sessions with shared noise; all others are vLLM's own sampler's.

A session's rows need nothing but what vLLM carries anyway: its request's `extra_args`, and the draft of the step. Where
several processes compute a model together, each of them has all logits and decides the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from opensled.core.messages import DraftToken
from opensled.core.penalties import TokenCounts
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.rules.base import AcceptanceResult, DraftCheck, decided_ids
from verify_server.rules.decide import Question, decide
from verify_server.rules.match import Match
from vllm_plugin.draft_model import DraftModel, can_rest
from vllm_plugin.messages import RequestTerms, terms_of
from vllm_plugin.proposals import ASKS, DRAFTED, WITH_PASSES

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker

logger = init_logger("vllm.opensled")

LOGPROBS = ("logprob_token_ids", "logprobs", "selected_token_ranks")  # fields of `LogprobsTensors`
NO_TOKEN = -1  # vLLM leaves it out
VERIFIES = object()  # in place of a `speculative_config`
RULE = Match()


class _Session:
    """A device's session, as far as this worker has decided it."""

    def __init__(self, terms: RequestTerms) -> None:
        self.terms, self.key = terms, bytes.fromhex(terms.key)
        self.counts = TokenCounts() if terms.params.penalizes else None  # of the answer
        self.counted = terms.prompt_length  # tokens of the text, prompt included, that are counted


class DeviceWorker(Worker):
    """`Worker` that samples devices' rows with shared noise."""

    def init_device(self) -> None:
        """See `Worker`."""
        super().init_device()
        runner = self.model_runner
        self._sessions: dict[str, _Session | None] = {}  # of all requests; None = a user's
        self._plain, runner._sample = runner._sample, self._sample
        self._lay_out, runner._prepare_inputs = runner._prepare_inputs, self._prepare_inputs
        self._keep, runner._bookkeeping_sync = runner._bookkeeping_sync, self._bookkeeping_sync
        self._propose, runner.propose_draft_token_ids = runner.propose_draft_token_ids, self._draft
        self._draft_model: DraftModel | None = None
        self._drafts_plainly = False  # after a fault of ours
        self._drafted: tuple[int, int, int, float] | None = None  # after the step: see Proposals.learn

    def _prepare_inputs(self, scheduler_output: Any, *args: Any) -> Any:
        """The runner lays out a row for each draft token only where it has a `speculative_config`, and only here: in
        other places it would look for a drafter."""
        runner = self.model_runner
        for id in scheduler_output.finished_req_ids:
            self._sessions.pop(id, None)
        if runner.speculative_config is not None or not scheduler_output.scheduled_spec_decode_tokens:
            return self._lay_out(scheduler_output, *args)
        runner.speculative_config = VERIFIES
        try:
            return self._lay_out(scheduler_output, *args)
        finally:
            runner.speculative_config = None

    def _bookkeeping_sync(self, scheduler_output: Any, sampler_output: Any, *args: Any) -> Any:
        """The asynchronous runner wants the newest tokens in one column. A user's is in column 0; a session's is not
        read, for it sits the next step out."""
        runner, tokens = self.model_runner, sampler_output.sampled_token_ids
        if runner.use_async_scheduling and tokens.shape[-1] > 1 and runner.speculative_config is None:
            runner.input_batch.prev_sampled_token_ids = tokens[:, :1].contiguous()
        return self._keep(scheduler_output, sampler_output, *args)

    # -- vLLM's own drafter -------------------------------------------------------------------------------

    def sample_tokens(self, *args: Any) -> Any:
        """See `Worker`; the output tells what was drafted."""
        output = super().sample_tokens(*args)
        if self._drafted is not None:
            setattr(output, DRAFTED, self._drafted)
            self._drafted = None
        return output

    def _draft(self, step: Any, sampled: Any, metadata: Any, *args: Any) -> Any:
        """Draft for those that the scheduler names, if it names any and the drafter has passes to save."""
        asks, runner = getattr(step, ASKS, None), self.model_runner
        if asks is None or self._drafts_plainly or runner.speculative_config.method not in WITH_PASSES:
            return self._propose(step, sampled, metadata, *args)
        if asks:
            runner._sync_device()  # drafting alone is timed
        began = time.perf_counter()
        try:
            found, counts = self._drafts_of(asks, step, sampled, metadata, *args)
        except Exception:
            logger.exception("OpenSLED: vLLM's drafter drafts for all requests from now on")
            self._drafts_plainly = True
            return self._propose(step, sampled, metadata, *args)
        if counts[0]:
            runner._sync_device()
            self._drafted = (*counts, time.perf_counter() - began)
        return found

    def _drafts_of(
        self, asks: Mapping[str, int], step: Any, sampled: Any, metadata: Any, *args: Any
    ) -> tuple[Any, tuple[int, int, int]]:
        if self._draft_model is None and can_rest(self.model_runner):
            self._draft_model = DraftModel(self.model_runner)
        if self._draft_model is not None and torch.is_tensor(sampled):
            *_, common, _ = args
            self._draft_model.forget(common)
            return self._draft_model.propose(asks, sampled, metadata, common.block_table_tensor)
        # A head reads states of the target, which are gone after the step: it goes on reading in one short pass.
        longest = min(step.num_spec_tokens_to_schedule, max(asks.values(), default=0))
        step.num_spec_tokens_to_schedule = longest
        found = self._propose(step, sampled, metadata, *args)
        return found, (longest, longest * len(found), 0)

    # -- sampling -----------------------------------------------------------------------------------------

    def _sample(self, logits: torch.Tensor, metadata: SpecDecodeMetadata | None) -> SamplerOutput:
        """Sample all requests, in the order of the batch: each has one row more than draft tokens."""
        batch = self.model_runner.input_batch
        places = [place for place, id in enumerate(batch.req_ids) if self._session_of(id) is not None]
        if not places and metadata is None:
            return self._plain(logits, metadata)
        drafted = [0] * len(batch.req_ids) if metadata is None else list(metadata.num_draft_tokens)
        rows = [0]
        for count in drafted:
            rows.append(rows[-1] + count + 1)
        # First: vLLM's sampler may change logits.
        decided = self._decide(logits, metadata, places, drafted, rows)
        output = self._sample_users(logits, metadata, rows, len(places) < len(drafted))
        if not places:
            return output
        try:
            return self._widen(output, decided, places, rows, logits)
        except Exception:
            logger.exception("OpenSLED: no token of a device in this step")
            return self._widen(output, {}, places, rows, logits)

    def _sample_users(
        self, logits: torch.Tensor, metadata: SpecDecodeMetadata | None, rows: list[int], has_users: bool
    ) -> SamplerOutput:
        runner = self.model_runner
        told = runner.input_batch.sampling_metadata.max_num_logprobs
        # vLLM's sampler is left out where nothing of its output would be used.
        if not has_users and told is None and runner.speculative_config is None:
            return SamplerOutput(logits.new_full((len(rows) - 1, 1), NO_TOKEN, dtype=torch.int32), None)
        if metadata is None or runner.speculative_config is not None:  # vLLM's drafter drafts for users
            return self._plain(logits, metadata)
        runner.input_batch.update_async_output_token_ids()
        newest = logits[torch.tensor(rows[:-1], device=logits.device)]
        return runner.sampler(logits=newest, sampling_metadata=runner.input_batch.sampling_metadata)

    def _session_of(self, id: str) -> _Session | None:
        if id not in self._sessions:
            terms = terms_of(self.model_runner.requests[id].sampling_params)
            self._sessions[id] = None if terms is None else _Session(terms)
        return self._sessions[id]

    def _decide(
        self,
        logits: torch.Tensor,
        metadata: SpecDecodeMetadata | None,
        places: list[int],
        drafted: list[int],
        rows: list[int],
    ) -> dict[int, tuple[int, ...]]:
        """The decided tokens of the sessions at `places`; none of one whose rows cannot be decided."""
        ids = [] if metadata is None else metadata.draft_token_ids.tolist()
        # Drafts lie without the rows of newest tokens.
        drafts = {place: ids[rows[place] - place : rows[place] - place + drafted[place]] for place in places}
        found: dict[int, tuple[int, ...]] = {}
        for tries in (drafts, dict.fromkeys(places, ())):  # a draft never ends an answer
            left = [place for place in places if place not in found]
            try:
                found |= self._decided({place: tries[place] for place in left}, rows, logits)
            except Exception:
                logger.exception("OpenSLED: the rows of devices could not be decided")
        return found

    def _decided(
        self, drafts: Mapping[int, Sequence[int]], rows: list[int], logits: torch.Tensor
    ) -> dict[int, tuple[int, ...]]:
        checks = {place: self._check(place, draft) for place, draft in drafts.items()}
        questions = {place: Question(check, RULE, row=rows[place]) for place, check in checks.items()}
        outcomes = decide(questions, TorchScores(logits)) if questions else {}
        return {
            place: decided_ids(checks[place], outcome)
            for place, outcome in outcomes.items()
            if isinstance(outcome, AcceptanceResult)
        }

    def _check(self, place: int, draft: Sequence[int]) -> DraftCheck:
        batch = self.model_runner.input_batch
        session = self._session_of(batch.req_ids[place])
        assert session is not None
        known = int(batch.num_tokens_no_spec[place])
        tokens = tuple([DraftToken(id) for id in draft if id >= 0])
        check = DraftCheck(tokens, known, session.terms.params, session.key)
        if session.counts is None:
            return check
        session.counts.add(batch.token_ids_cpu[place, session.counted : known].tolist())
        session.counted = max(known, session.counted)
        return check._replace(emitted=session.counts.along(check.ids))

    def _widen(
        self,
        output: SamplerOutput,
        decided: dict[int, tuple[int, ...]],
        places: list[int],
        rows: list[int],
        logits: torch.Tensor,
    ) -> SamplerOutput:
        """With the tokens of sessions in place of the sampler's: ids int32 [requests, width], filled up with NO_TOKEN;
        log-probabilities, where any request wants them, [requests * width, ...]."""
        count, columns = output.sampled_token_ids.shape
        # In a single column NO_TOKEN would count as an id; several cost vLLM more.
        least = 1 if len(decided) == len(places) else 2
        width = max(least, columns, *[len(news) for news in decided.values()])
        if width == 1 and len(decided) == count and output.logprobs_tensors is None:
            column = [decided[place] for place in range(count)]
            return SamplerOutput(torch.tensor(column, dtype=torch.int32, device=logits.device), None)
        table = [[NO_TOKEN] * width for _ in range(count)]
        for place, news in decided.items():
            table[place][: len(news)] = news
        tokens = torch.tensor(table, dtype=torch.int32, device=logits.device)
        users = torch.ones(count, dtype=torch.bool, device=logits.device)
        users[places] = False
        tokens[users, :columns] = output.sampled_token_ids[users].to(torch.int32)
        logprobs = output.logprobs_tensors
        if logprobs is not None:
            logprobs = self._logprobs(_spread(logprobs, columns, width), decided, rows, logits)
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs)

    def _logprobs(
        self,
        wide: LogprobsTensors,
        decided: dict[int, tuple[int, ...]],
        rows: list[int],
        logits: torch.Tensor,
    ) -> LogprobsTensors:
        sampler, likeliest = self.model_runner.sampler, wide.logprobs.shape[-1] - 1
        for place, news in decided.items():
            own = sampler.compute_logprobs(logits[rows[place] : rows[place] + len(news)])
            own = sampler.gather_logprobs(own, likeliest, torch.tensor(news, device=logits.device))
            for name in LOGPROBS:
                getattr(wide, name)[place, : len(news)] = getattr(own, name)
        return LogprobsTensors(*[getattr(wide, name).flatten(0, 1) for name in LOGPROBS])


def _spread(found: LogprobsTensors, columns: int, width: int) -> LogprobsTensors:
    """Each tensor of [requests * columns, ...] as one of [requests, width, ...], filled up with zeros."""
    spread = []
    for each in [getattr(found, name) for name in LOGPROBS]:
        count, rest = len(each) // columns, each.shape[1:]
        wide = each.new_zeros((count, width, *rest))
        wide[:, :columns] = each.view(count, columns, *rest)
        spread.append(wide)
    return LogprobsTensors(*spread)
