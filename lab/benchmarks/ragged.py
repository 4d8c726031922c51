"""One verify step over ragged sessions in one packed forward, against the same work done otherwise."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from lab.benchmarks.figure import Comparison, Figure, in_turns
from lab.testbed.provenance import SEED
from opensled.core.errors import EngineError
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path
from verify_server.engine.base import SampleRequest, Segment
from verify_server.engine.torch import torch_engine
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.torch_engine import TorchEngine

DRAFT = 5  # tokens a session verifies in a step: the newest committed one and 4 drafted ones
LEVELS = ("exact", "fast")
REQUIRED = 3.0  # against one forward per session with the same engine
PAGE = 32  # tokens of continuous batching; its default of 256 was slower on a CPU
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True)
class Work:
    """Which sessions: context lengths in tokens."""

    contexts: tuple[int, ...]
    repeats: int

    @property
    def longest(self) -> int:
        """Positions a session may come to: every repeat decodes one more."""
        return max(self.contexts) + DRAFT + self.repeats + 2

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Random tokens, enough for the context and the tokens to verify."""
        random = torch.Generator().manual_seed(SEED)
        ids = torch.randint(20, vocab_size, (len(self.contexts), self.longest), generator=random)
        return ids.tolist()


def measure(quick: bool) -> Figure:
    """The bundled target and one that is no toy for a cache."""
    torch.set_num_threads(1)  # the same for all; more would measure the machine's other load
    work = Work((20, 33, 47, 60) * 4, 2) if quick else Work(tuple(100 + 800 * i // 15 for i in range(16)), 7)
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = {"tiny": model_path("tiny")}
        if not quick:
            models["61M"] = _random_llama(Path(folder))
        for name, path in models.items():
            samples.update(in_turns(dict(_contenders(name, path, work)), work.repeats))
    return Figure(
        title="Ragged verify step",
        unit="ms",
        more_is_better=False,
        compared=(
            "One step of 16 sessions x 5 tokens with mixed contexts, float32, one thread, logits of all 80 rows: the "
            "torch engine's packed forward over paged KV against the same engine with one forward per session, and "
            "against transformers with one DynamicCache and one forward per session. transformers' continuous "
            "batching has no verify hook, so against it one decode step is compared: 16 sessions x 1 token, greedy, "
            "its scheduling and bookkeeping included, against the engine's forward and `Scores.sample_one`; its "
            "attention is `paged|sdpa`, its pages hold 32 tokens."
        ),
        loses=(
            "Only the weights are shared: attention and gathering each session's KV cost the same either way, and a "
            "step of 80 tokens is bound by arithmetic, so the gain is 2.7 to 4 and not 16. Level `exact` pays for "
            "padded shapes."
        ),
        samples=samples,
        ratios=tuple(ratio for name in models for ratio in _ratios(name)),
        facts={"threads": 1, "contexts": list(work.contexts), "tokens per session": DRAFT, "61M": _CONFIG},
    )


def _ratios(model: str) -> Iterator[Comparison]:
    for level in LEVELS:
        ours = f"{model}, {level}"
        yield Comparison(f"{ours}, one forward per session", f"{ours}, packed", f"{ours}, one each", REQUIRED)
        yield Comparison(
            f"{ours}, transformers per session", f"{ours}, packed", f"{model}, transformers one each"
        )
        yield Comparison(f"{ours}, decode step", f"{ours}, decode", f"{model}, continuous batching decode")


def _contenders(model: str, path: Path, work: Work) -> Iterator[tuple[str, Callable[[], float]]]:
    for level in LEVELS:
        sessions = Sessions(path, level, work)
        yield f"{model}, {level}, packed", partial(_timed, sessions.verify)
        yield f"{model}, {level}, one each", partial(_timed, sessions.verify_one_by_one)
        yield f"{model}, {level}, decode", partial(_timed, sessions.decode)
    prompts = work.prompts(LlamaConfig.from_pretrained(path).vocab_size)
    plain = Plain(_plain(path), prompts, work.contexts, DRAFT)
    yield f"{model}, transformers one each", partial(_timed, plain.verify)
    batching = ContinuousBatching(_plain(path), prompts, work.contexts, work.longest)
    yield f"{model}, continuous batching decode", partial(_timed, batching.decode)


def _timed(run: Callable[[], None]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1000


class Sessions:
    """Sessions of the torch engine whose contexts are computed; a verify step is run again and again."""

    def __init__(self, path: Path, level: str, work: Work) -> None:
        blocks = -(-work.longest // BLOCK_SIZE)
        self.engine: TorchEngine = torch_engine.load(
            str(path),
            device="cpu",
            dtype="float32",
            numerics=level,
            kv_tokens=len(work.contexts) * blocks * BLOCK_SIZE,
        )
        self.tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(len(work.contexts))]
        self.lengths = list(work.contexts)  # tokens in the KV blocks
        prompts = work.prompts(self.engine.info.vocab_size)
        for prompt, length, table in zip(prompts, self.lengths, self.tables):
            self.engine.forward([self._segment(prompt[:length], 0, table, 0)])
        self.segments = [
            self._segment(prompt[length : length + DRAFT], length, table, DRAFT)
            for prompt, length, table in zip(prompts, self.lengths, self.tables)
        ]
        self.newest = [prompt[length] for prompt, length in zip(prompts, self.lengths)]

    def _segment(self, tokens: Sequence[int], start: int, table: tuple[int, ...], rows: int) -> Segment:
        used = -(-(start + len(tokens)) // BLOCK_SIZE)
        return Segment(tuple(tokens), start, table[:used], rows)

    def verify(self) -> None:
        self.engine.forward(self.segments)

    def verify_one_by_one(self) -> None:
        for segment in self.segments:
            self.engine.forward([segment])

    def decode(self) -> None:
        """One more greedy token for every session."""
        scores = self.engine.forward(
            [
                self._segment([token], length, table, 1)
                for token, length, table in zip(self.newest, self.lengths, self.tables)
            ]
        )
        for index, length in enumerate(self.lengths):
            [self.newest[index]] = scores.sample_one(SampleRequest([index], GREEDY, bytes(16), length + 1))
            self.lengths[index] += 1


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


_CONFIG = {
    "vocab_size": 8192, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 16,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 2048,
}  # fmt: skip


def _plain(path: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval()


def _random_llama(folder: Path) -> Path:
    """A Llama of 61M random parameters."""
    torch.manual_seed(SEED)
    LlamaForCausalLM(LlamaConfig(**_CONFIG, tie_word_embeddings=True)).save_pretrained(folder)
    return folder
