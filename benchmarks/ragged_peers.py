"""What a ragged step is compared with: plain transformers, and its continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from opensled.errors import EngineError

PAGE = 32  # tokens; the default of 256 was slower on a CPU


def load_plain(path: Path) -> PreTrainedModel:
    """The model as transformers loads it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval()


class Plain:
    """One `DynamicCache` and one forward for each session."""

    @torch.inference_mode()
    def __init__(
        self, model: PreTrainedModel, prompts: list[list[int]], contexts: Sequence[int], draft: int
    ) -> None:
        self.model, self.draft = model, draft
        self.caches = [DynamicCache(config=model.config) for _ in contexts]
        self.inputs: list[torch.Tensor] = []
        for prompt, length, cache in zip(prompts, contexts, self.caches):
            ids = torch.tensor([prompt])
            model(input_ids=ids[:, :length], past_key_values=cache, logits_to_keep=1)
            self.inputs.append(ids[:, length : length + draft])

    @torch.inference_mode()
    def verify(self) -> None:
        """Logits of every draft token of every session; the caches are as before afterwards."""
        for ids, cache in zip(self.inputs, self.caches):
            self.model(input_ids=ids, past_key_values=cache)
            cache.crop(-self.draft)


class ContinuousBatching:
    """transformers' own batch processor, stepped from this thread instead of its background one."""

    def __init__(
        self, model: PreTrainedModel, prompts: list[list[int]], contexts: Sequence[int], longest: int
    ) -> None:
        self.model = model
        config = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=len(contexts) * (-(-longest // PAGE) + 1),
            max_batch_tokens=1024,
            allow_block_sharing=False,
            use_async_batching=False,
            use_cuda_graph=False,
        )
        generation = GenerationConfig(do_sample=False, max_new_tokens=longest, eos_token_id=-1)
        manager = model.init_continuous_batching(generation, config)
        self.processor = manager._create_batch_processor()  # what its thread would do first
        for prompt, length in zip(prompts, contexts):
            # The prompt's last step decides a first token as well, so it is one shorter than the context.
            manager.add_request(prompt[: length - 1], max_new_tokens=longest - length)
        while not self._all_decode():
            self.decode()

    def _all_decode(self) -> bool:
        """Whether every prompt is computed."""
        scheduler = self.processor.scheduler
        active = scheduler.active_requests.values()
        return (
            bool(active) and not scheduler.waiting_requests and all(state.generated_len() for state in active)
        )

    def decode(self) -> None:
        """One step: one token for each sequence once all prompts are computed."""
        if not self.processor.prepare_next_batch():
            raise EngineError("continuous batching has nothing to do")
        self.processor._generation_step(self.model)
        self.processor.update_batch()
