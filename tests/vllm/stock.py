"""vLLM as it comes, with drafts from outside: what engine vllm stands on, in as few lines as it takes."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

LONGEST = 5  # tokens of a draft
Known = dict[tuple[int, ...], list[int]]  # answers by prompt


@dataclass
class Devices:
    """What draws the drafts: it knows the answers, and errs as often as it is told."""

    known: Known = field(default_factory=dict)
    right: float = 1.0  # share of draft tokens
    late: float = 0.0  # share of sequences without a draft in a step
    steps: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def draft(self, prompt: Sequence[int], done: int) -> list[int]:
        answer = self.known.get(tuple(prompt), [])
        return [id ^ (self.chance.random() >= self.right) for id in answer[done : done + LONGEST]]


DEVICES = Devices()


class DraftedScheduler(Scheduler):
    """Drafts enter just before a step is planned; a sequence whose device is late is held back."""

    def schedule(self, *args: Any, **options: Any) -> Any:
        DEVICES.steps += 1
        for request in self.running:
            if request.is_prefill_chunk or not request.num_output_tokens:
                continue
            if DEVICES.chance.random() < DEVICES.late:
                request.next_decode_eligible_step = self.current_step + 2
            else:
                request.spec_token_ids = DEVICES.draft(request.prompt_token_ids, request.num_output_tokens)
        return super().schedule(*args, **options)


class NoProposals:
    """vLLM verifies drafts only where it has a proposer of its own."""

    def __init__(self, vllm_config: Any) -> None:
        """Nothing."""

    def load_model(self, *args: Any, **options: Any) -> None:
        """Nothing."""

    def propose(self, sampled_token_ids: list[list[int]], *args: Any, **options: Any) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]


class MatchingWorker(CPUWorker):
    """Samples each row with noise of its position: a draft stands while it equals the target's own choice."""

    def init_device(self) -> None:
        super().init_device()
        self.model_runner._sample = self._match

    def _match(self, logits: torch.Tensor, metadata: Any) -> SamplerOutput:
        batch = self.model_runner.input_batch
        lengths = [0] * len(batch.req_ids) if metadata is None else list(metadata.num_draft_tokens)
        drafts = iter([] if metadata is None else metadata.draft_token_ids.tolist())
        rows = iter(logits.double())
        tokens = torch.full((len(lengths), max(lengths, default=0) + 2), -1, dtype=torch.int32)
        for place, length in enumerate(lengths):
            draft = [next(drafts) for _ in range(length)]
            own = [self._sampled(next(rows), place, index) for index in range(length + 1)]
            stands = next((i for i, (ours, theirs) in enumerate(zip(draft, own)) if ours != theirs), length)
            tokens[place, : stands + 1] = torch.tensor(own[: stands + 1], dtype=torch.int32)
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)

    def _sampled(self, scores: torch.Tensor, place: int, index: int) -> int:
        batch = self.model_runner.input_batch
        if temperature := float(batch.temperature_cpu[place]):
            params = self.model_runner.requests[batch.req_ids[place]].sampling_params
            position = int(batch.num_tokens_no_spec[place]) + index
            noise = np.random.Generator(np.random.Philox(key=[params.seed, position])).gumbel(
                size=len(scores)
            )
            scores = scores / temperature + torch.from_numpy(noise)
        return int(scores.argmax())


def load(folder: Path, **options: Any) -> LLM:
    """The model in a folder, in this process; the schedule asks `DEVICES`."""
    arguments = dict(
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        enforce_eager=True,
        async_scheduling=False,
        block_size=32,  # the least that vLLM's attention takes on a CPU
        kv_cache_memory_bytes=64 << 20,
        **{f"{kind}_cls": f"{__name__}.{cls.__name__}" for kind, cls in PLUGS.items()},
        speculative_config={
            "method": "custom_class",
            "model": f"{__name__}.{NoProposals.__name__}",
            "num_speculative_tokens": LONGEST,
        },
    )
    # An earlier test may have loaded numba, one of whose objects answers to every name; vLLM looks at all objects.
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name == "llvmlite.binding.ffi"}
    try:
        return LLM(str(folder), **{**arguments, **options})
    finally:
        sys.modules.update(hidden)


PLUGS = {"scheduler": DraftedScheduler, "worker": MatchingWorker}


def ask(
    llm: LLM, questions: Sequence[str], tokens: int, temperature: float = 0.0
) -> tuple[Known, list[str], int]:
    """Answers to chats, ids by prompt and texts, and the steps they took."""
    before = DEVICES.steps
    params = [
        SamplingParams(max_tokens=tokens, temperature=temperature, seed=7 + index)
        for index in range(len(questions))
    ]
    found = llm.chat([[{"role": "user", "content": text}] for text in questions], params, use_tqdm=False)
    ids = {tuple(each.prompt_token_ids): list(each.outputs[0].token_ids) for each in found}
    return ids, [each.outputs[0].text for each in found], DEVICES.steps - before
