"""The torch engine against plain transformers, and against itself in other batches."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from opensled.core import noise
from opensled.core.errors import EngineError, NonFiniteLogits, SelfTestFailed
from opensled.core.messages import SamplingParams
from tests.tiny_models import VOCABULARY, random_model
from tests.tiny_models import folder as folder
from verify_server.engine.base import SampleRequest, Segment
from verify_server.engine.torch import sdpa
from verify_server.engine.torch.packing import Attend
from verify_server.engine.torch.torch_engine import TorchEngine, load

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "qwen3_moe"]
EXACT_FAMILIES = [family for family in FAMILIES if family != "qwen3_moe"]
GREEDY = SamplingParams(temperature=0)
KEY = noise.noise_key(7)
NUM_BLOCKS = 48
NEW_TOKENS = 30


@pytest.fixture(scope="session")
def engine(folder: Callable[[str], Path]) -> Callable[[str, str], TorchEngine]:
    """A loaded engine by family and dtype."""
    return cache(lambda family, dtype: load(str(folder(family)), "cpu", dtype, NUM_BLOCKS * 16))


class Sessions:
    """Block bookkeeping at its plainest: every session draws scattered blocks from one shuffled pool."""

    def __init__(self, engine: TorchEngine, seed: int = 0) -> None:
        self.engine = engine
        self.free = random.Random(seed).sample(range(NUM_BLOCKS), NUM_BLOCKS)
        self.blocks: dict[str, list[int]] = {}

    def segment(self, name: str, tokens: list[int], start: int, rows: int) -> Segment:
        owned = self.blocks.setdefault(name, [])
        while len(owned) * 16 < start + len(tokens):
            owned.append(self.free.pop())
        return Segment(tuple(tokens), start, tuple(owned), rows)

    def close(self, name: str) -> None:
        self.free += self.blocks.pop(name)


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCABULARY), k=length)


def plain_model(folder: Path, family: str) -> PreTrainedModel:
    attend = "eager" if family == "gemma2" else "sdpa"
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation=attend, experts_implementation="eager"
    )


@torch.inference_mode()
def plain_greedy(model: PreTrainedModel, tokens: list[int], count: int) -> list[int]:
    """Greedy decoding by whole forward passes without a cache."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax().item())
    return tokens[-count:]


class Decoding:
    """One sequence decoded speculatively: a prompt in chunks, then verify chunks with partly wrong drafts."""

    def __init__(self, name: str, tokens: list[int], truth: list[int], seed: int) -> None:
        self.name, self.known, self.truth = name, list(tokens), truth
        self.prompt_length, self.computed = len(tokens), 0
        self.random = random.Random(seed)
        self.draft: list[int] = []

    @property
    def output(self) -> list[int]:
        return self.known[self.prompt_length :]

    def segment(self, sessions: Sessions) -> Segment:
        """A chunk of the prompt, or the newest token with a draft that goes wrong somewhere."""
        end = min(self.computed + self.random.randint(1, 17), len(self.known))
        known = self.known[self.computed : end]
        self.draft = []
        if end == len(self.known):
            right = self.truth[len(self.output) :][: self.random.randint(0, 4)]
            self.draft = [
                token if self.random.random() < 0.7 else (token + 1) % VOCABULARY for token in right
            ]
        rows = len(self.draft) + 1 if end == len(self.known) else 0
        return sessions.segment(self.name, known + self.draft, self.computed, rows)

    def commit(self, segment: Segment, decided: list[int]) -> None:
        """Keeps the accepted prefix and the token after it; the KV of the rest will be overwritten."""
        self.computed += len(segment.tokens) - len(self.draft)
        if decided:
            accepted = next((i for i, token in enumerate(self.draft) if token != decided[i]), len(self.draft))
            self.computed += accepted
            self.known += decided[: accepted + 1]


def decode(engine: TorchEngine, decodings: list[Decoding], count: int) -> None:
    sessions = Sessions(engine)
    while any(len(each.output) < count for each in decodings):
        active = [each for each in decodings if len(each.output) < count]
        segments = [each.segment(sessions) for each in active]
        scores = engine.forward(segments)
        row = 0
        for each, segment in zip(active, segments):
            decided = scores.sample_one(
                SampleRequest(range(row, row + segment.rows), GREEDY, KEY, segment.start)
            )
            row += segment.rows
            each.commit(segment, decided)


@pytest.mark.parametrize("family", FAMILIES)
def test_speculative_decoding_in_a_ragged_batch_equals_plain_greedy_decoding(family, engine, folder):
    model = plain_model(folder(family), family)
    decodings = []
    for i, length in enumerate((50, 3, 21)):
        tokens = prompt(length, seed=i)
        truth = plain_greedy(model, tokens, NEW_TOKENS)
        decodings.append(Decoding(str(i), tokens, truth, seed=i))
    decode(engine(family, "float64"), decodings, NEW_TOKENS)
    for each in decodings:
        assert each.output[:NEW_TOKENS] == each.truth


def test_a_step_equals_transformers_own_generate(engine, folder):
    tokens = prompt(20, seed=5)
    generated = plain_model(folder("llama"), "llama").generate(
        torch.tensor([tokens]), max_new_tokens=20, do_sample=False, eos_token_id=VOCABULARY
    )
    decoding = Decoding("a", tokens, generated[0, 20:].tolist(), seed=1)
    decode(engine("llama", "float64"), [decoding], 20)
    assert decoding.output[:20] == decoding.truth


def alone(engine: TorchEngine, tokens: list[int]) -> torch.Tensor:
    sessions = Sessions(engine, seed=9)
    return engine.forward([sessions.segment("a", tokens, 0, len(tokens))]).logits


def one_by_one(engine: TorchEngine, tokens: list[int]) -> torch.Tensor:
    sessions = Sessions(engine, seed=8)
    steps = [sessions.segment("a", [token], i, 1) for i, token in enumerate(tokens)]
    return torch.cat([engine.forward([step]).logits for step in steps])


def in_company(engine: TorchEngine, tokens: list[int], seed: int) -> torch.Tensor:
    """Random chunks, in random company, each chunk first computed as a draft that is rejected."""
    sessions, chance, found, position = Sessions(engine, seed), random.Random(seed), [], 0
    while position < len(tokens):
        chunk = tokens[position : position + chance.randint(1, 30)]
        others = [
            sessions.segment(f"o{i}", prompt(chance.randint(1, 40), i), 0, 1)
            for i in range(chance.randint(0, 5))
        ]
        wrong = [(token + 1) % VOCABULARY for token in chunk]
        engine.forward([sessions.segment("a", wrong, position, len(wrong))])
        logits = engine.forward([*others, sessions.segment("a", chunk, position, len(chunk))]).logits
        found.append(logits[len(others) :])
        position += len(chunk)
    return torch.cat(found)


@pytest.mark.parametrize("family", EXACT_FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_rows_have_the_same_bits_in_every_batch(family, dtype, engine):
    loaded, tokens = engine(family, dtype), prompt(150, seed=3)
    assert loaded.info.numerics == "exact"
    expected = alone(loaded, tokens)
    assert torch.equal(one_by_one(loaded, tokens), expected)
    for seed in range(5):
        assert torch.equal(in_company(loaded, tokens, seed), expected)


def test_experts_are_never_called_exact(engine, folder):
    assert engine("qwen3_moe", "float64").info.numerics == "fast"
    with pytest.raises(SelfTestFailed, match="numerics fast"):
        load(str(folder("qwen3_moe")), dtype="float64", numerics="exact")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fast_level_agrees_within_rounding(dtype, folder, engine):
    loaded = load(str(folder("llama")), "cpu", dtype, NUM_BLOCKS * 16, numerics="fast")
    assert (loaded.info.numerics, loaded.info.dtype) == ("fast", dtype)
    tokens = prompt(100, seed=3)
    error = (in_company(loaded, tokens, 1) - alone(engine("llama", "float64"), tokens)).abs().max().item()
    assert error < {"float32": 1e-4, "bfloat16": 0.6}[dtype]


def test_info_states_the_model(engine, folder):
    info = engine("llama", "float32").info
    assert info.model_id == str(folder("llama"))
    assert (info.vocab_size, info.context_length, info.eos_ids) == (VOCABULARY, 512, (2,))
    assert (info.dtype, info.device, info.num_blocks, info.block_size) == ("float32", "cpu", NUM_BLOCKS, 16)


def test_several_eos_ids_come_from_the_generation_config(tmp_path):
    loaded = load(str(random_model("llama", tmp_path, eos_token_id=[2, 5])))
    assert loaded.info.eos_ids == (2, 5)
    # An unstated KV pool holds 64 full contexts, if memory allows
    assert loaded.info.num_blocks * 16 == 64 * 512


def test_a_segment_may_want_no_rows(engine):
    loaded = engine("llama", "float32")
    assert len(loaded.forward([Sessions(loaded).segment("a", prompt(5, 0), 0, 0)]).logits) == 0


# Errors stay in their session


@pytest.fixture
def poisoned(folder) -> TorchEngine:
    """An engine whose token 96 turns everything it touches into NaN."""
    loaded = load(str(folder("llama")), "cpu", "float32", NUM_BLOCKS * 16)
    loaded._model.network.get_input_embeddings().weight[96] = torch.nan
    return loaded


def test_a_bad_row_fails_its_own_session_only(poisoned, engine):
    sessions, good = Sessions(poisoned), prompt(40, seed=1)
    good = [token % 96 for token in good]
    scores = poisoned.forward(
        [sessions.segment("bad", [5, 96, 5], 0, 2), sessions.segment("good", good, 0, 40)]
    )
    for params in (GREEDY, SamplingParams(top_p=0.9), SamplingParams(top_k=5)):
        with pytest.raises(NonFiniteLogits):
            scores.sample_one(SampleRequest([0, 1], params, KEY, 0))
        assert len(scores.sample_one(SampleRequest(range(2, 42), params, KEY, 0))) == 40
    clean = engine("llama", "float32")
    assert torch.equal(scores.logits[2:], alone(clean, good))
    sessions.close("bad")  # its blocks, full of NaN, go to the next session
    reused = poisoned.forward([sessions.segment("next", good, 0, 40)])
    assert torch.equal(reused.logits, alone(clean, good))


def test_a_failed_step_leaves_the_sessions_as_they_were(engine, monkeypatch):
    loaded, tokens = engine("llama", "float32"), prompt(40, seed=2)
    sessions = Sessions(loaded)
    loaded.forward([sessions.segment("a", tokens[:30], 0, 0)])
    step = sessions.segment("a", tokens[30:], 30, 10)

    plain = sdpa.BACKEND.attend

    def failing(query: torch.Tensor, batch: object, how: Attend) -> torch.Tensor:
        if how.layer == 1:
            raise RuntimeError("out of memory")
        return plain(query, batch, how)

    with monkeypatch.context() as patch:
        patch.setattr(sdpa.BACKEND, "attend", failing)
        with pytest.raises(RuntimeError):
            loaded.forward([step])
    assert torch.equal(loaded.forward([step]).logits, alone(loaded, tokens)[30:])


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_an_unknown_token_is_an_error_before_the_step(token, engine):
    with pytest.raises(EngineError):
        engine("llama", "float32").forward([Segment((token,), 0, (0,), 1)])
