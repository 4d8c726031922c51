"""vLLM's worker, which decides the rows of each sequence as every engine of this server does.

vLLM loads the class by name (`worker_cls`). Where several processes compute a model together, each of them has all
logits and decides the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from vllm.platforms import current_platform
from vllm.v1.outputs import ModelRunnerOutput, SamplerOutput
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from opensled.process.host_memory import available_host_bytes
from verify_server.engine.memory_plan import MEMORY_SHARE
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.engine.vllm.arguments import KV_CONTEXTS
from verify_server.rules.base import AcceptanceResult, decided_ids
from verify_server.rules.decide import Outcome, Question, decide

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker

NO_TOKEN = -1  # vLLM leaves it out


class FleetWorker(Worker):
    """`Worker` that samples with shared noise."""

    def init_device(self) -> None:
        """See `Worker`."""
        super().init_device()
        self.questions: Mapping[str, Question] = {}  # of the step, by request
        self.outcomes: dict[str, Outcome] = {}
        self.model_runner._sample = self._sample  # in place of vLLM's samplers, plain and rejecting

    def determine_available_memory(self) -> int:
        """Bytes for KV: see `Worker`, and `KV_CONTEXTS`."""
        contexts = self.vllm_config.additional_config.get(KV_CONTEXTS)
        if contexts and self.cache_config.kv_cache_memory_bytes is None:
            self.cache_config.kv_cache_memory_bytes = self._suiting(contexts)
        return super().determine_available_memory()

    def _suiting(self, contexts: int) -> int:
        """Bytes for so many full contexts within a share of the memory that is left, or for one within half of it."""
        specs = self.get_kv_cache_spec().values()
        each = sum(spec.max_memory_usage_bytes(self.vllm_config) for spec in specs)
        left = available_host_bytes() // self.parallel_config.world_size
        own_block = sum(spec.page_size_bytes for spec in specs)  # that vLLM keeps for itself
        return min(contexts * each, max(int(MEMORY_SHARE["cpu"] * left), min(each, left // 2))) + own_block

    def sample_tokens(self, questions: Mapping[str, Question] | None) -> ModelRunnerOutput:
        """See `Worker`; questions come in place of vLLM's masks, and outcomes go with its output."""
        self.questions, self.outcomes = questions or {}, {}
        output = super().sample_tokens(None)
        if self.outcomes:
            output.outcomes = self.outcomes
        return output

    def _sample(self, logits: torch.Tensor, metadata: SpecDecodeMetadata | None) -> SamplerOutput:
        """Decide the rows of all requests, in the order of the batch: each has one more than draft tokens."""
        ids = self.model_runner.input_batch.req_ids
        drafted = [0] * len(ids) if metadata is None else metadata.num_draft_tokens
        questions, row = {}, 0
        for id, count in zip(ids, drafted):
            if id in self.questions:
                questions[id] = self.questions[id]._replace(row=row)
            row += count + 1
        self.outcomes = decide(questions, TorchScores(logits))
        return SamplerOutput(self._tokens(ids, max(drafted, default=0)).to(logits.device), None)

    def _tokens(self, ids: list[str], longest: int) -> torch.Tensor:
        """int32 [requests, longest draft + 1]. At least two columns: in a single one vLLM takes NO_TOKEN for an id."""
        width = max(2, longest + 1)
        rows = [self._news(id) for id in ids]
        return torch.tensor([[*news, *[NO_TOKEN] * (width - len(news))] for news in rows], dtype=torch.int32)

    def _news(self, id: str) -> tuple[int, ...]:
        """Tokens that were decided of a request; () = none."""
        outcome = self.outcomes.get(id)
        if not isinstance(outcome, AcceptanceResult):
            return ()
        check = self.questions[id].check
        assert check is not None, "what is decided was asked"
        return decided_ids(check, outcome)
