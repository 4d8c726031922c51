"""Steps in fixed shapes compute what a fresh pass does; the tap reads the states of the rows that a step computed."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from opensled.core.errors import UnsupportedModel
from tests.fixed_tape import TapeCapture
from tests.tiny_models import VOCABULARY, random_model
from verify_server.engine.base import Segment
from verify_server.engine.torch import fixed_steps, loading, torch_engine
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.fixed_steps import FixedSteps, check_fixed, skip_capture
from verify_server.engine.torch.geometry import has_experts
from verify_server.engine.torch.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.packing import Geometry
from verify_server.engine.torch.selftest import attending_by
from verify_server.engine.torch.tap import HiddenTap
from verify_server.engine.torch.torch_engine import TorchEngine, load

BLOCKS = 60
MOST = 12  # KV blocks of a sequence
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A random model by family, in float64."""

    def make(family: str):
        folder = random_model(family, tmp_path_factory.mktemp(family))
        return loading.load_network(loading.find_weights(str(folder)), CPU, torch.float64)

    return cache(make)


def model_of(network, backend: str = "gather", by_path: bool = False) -> PackedModel:
    return PackedModel(network, KVMemory(BLOCKS), Geometry(1, 1, 64, by_path=by_path), backend)


class Texts:
    """Sequences that grow by chunks, drafts and trees."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lengths = [0] * 5

    def step(self, max_rows: int) -> list[Segment]:
        """Segments of several sequences with up to `max_rows` rows together."""
        segments, room = [], max_rows
        for number in self.draw.sample(range(5), self.draw.randint(1, 5)):
            count = self.draw.randint(1, max(1, min(room, max_rows // 2)))
            if room < count:
                break
            segments.append(self._segment(number, count))
            room -= count
        return segments

    def _segment(self, number: int, count: int) -> Segment:
        start = self.lengths[number]
        if start + count > MOST * 16:
            start = self.lengths[number] = 0
        nodes = self.draw.randint(0, count - 1) if start else 0
        parents = tuple([self.draw.randint(-1, node - 1) for node in range(nodes)])
        self.lengths[number] += count - nodes
        blocks = tuple([number + 5 * index for index in range(-(-(start + count) // 16))])
        tokens = tuple(self.draw.choices(range(VOCABULARY), k=count))
        return Segment(tokens, start, blocks, self.draw.randint(0, count), parents)


def close(given: torch.Tensor, expected: torch.Tensor) -> bool:
    return (
        given.shape == expected.shape and bool((given - expected).abs().max() <= 1e-9)
        if len(expected)
        else True
    )


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("by_path", [False, True])
def test_a_replay_computes_what_a_fresh_pass_does(family, by_path, network):
    """Every bucket in turn, in another order each time; what a replay leaves behind is nobody's."""
    plain, own = (model_of(network(family), by_path=by_path) for _ in range(2))
    capture = TapeCapture()
    fixed = FixedSteps(own, capture)
    texts, draw = Texts(3), random.Random(5)
    for _ in range(36):
        segments = texts.step(draw.choice((1, 2, 4, 8, 16, 32)))
        expected, _ = plain.run(segments)
        given = fixed.run(segments)
        assert given is not None and close(given[0], expected)
    assert len(capture.tapes) > 3
    for layer in range(2):
        for mine, theirs in zip(own.memory.layer(layer), plain.memory.layer(layer)):
            assert torch.allclose(mine[: BLOCKS * 16], theirs[: BLOCKS * 16], atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_replay_has_the_bits_of_the_same_pass_computed_anew(family, network):
    first, second = (model_of(network(family)) for _ in range(2))
    replayed, anew = FixedSteps(first, TapeCapture()), FixedSteps(second, skip_capture)
    texts = Texts(8)
    for rows in (8, 1, 16, 4, 16, 8, 2, 16):
        segments = texts.step(rows)
        given, expected = replayed.run(segments), anew.run(segments)
        assert given is not None and expected is not None and torch.equal(given[0], expected[0])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3"])
def test_two_steps_of_one_bucket_launch_the_same_kernels(family, network):
    """Nothing of a pass depends on what is in the buffers: only then a graph may stand for it."""
    names = []
    for seed in (1, 2):
        capture = TapeCapture()
        texts = Texts(seed)
        FixedSteps(model_of(network(family)), capture).run(texts.step(8)[:1])
        names.append(capture.tapes[0].names)
    assert names[0] == names[1]


def test_experts_are_chosen_in_the_middle_of_a_pass_and_known_by_name(network):
    """So they get no graph; see `capture_of`."""
    model = model_of(network("qwen3_moe"))
    with pytest.raises(AssertionError, match="waits for the device"):
        FixedSteps(model, TapeCapture()).run([Segment((1, 2), 0, (0,), 1)])
    assert has_experts(model.network) and not has_experts(network("llama"))


def test_a_row_that_is_none_writes_into_no_block(network):
    model = model_of(network("llama"))
    fixed = FixedSteps(model, skip_capture)
    fixed.run([Segment((5,), 0, (0,), 1)])
    before = [tensor.clone() for tensor in model.memory.layer(0)]
    fixed.run([Segment((7, 8, 9), 0, (4,), 1)])  # three rows in a bucket of four
    for old, new in zip(before, model.memory.layer(0)):
        changed = (old != new).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(changed) <= {64, 65, 66, *range(BLOCKS * 16, BLOCKS * 16 + 16)}


def test_a_step_too_large_for_every_bucket_is_left_to_the_caller(network):
    fixed = FixedSteps(model_of(network("llama")), skip_capture)
    blocks = tuple(range(20))
    assert fixed.run([Segment((1,) * 257, 0, blocks, 1)]) is None
    assert fixed.run([Segment((1,) * 3, 0, blocks, 1)]) is not None


def test_without_memory_for_a_graph_the_step_is_left_to_the_caller(network):
    asked = []

    def no_memory(compute):
        asked.append(compute)

    fixed = FixedSteps(model_of(network("llama")), no_memory)
    segment = Segment((1, 2), 0, (0,), 2)
    assert fixed.run([segment]) is None and fixed.run([segment]) is None
    assert len(asked) == 1  # not tried again


def test_taps_hold_the_states_of_the_step_that_was_replayed(network):
    plain, own = model_of(network("llama")), model_of(network("llama"))
    tap = HiddenTap(own.network, (0, 2))
    fixed = FixedSteps(own, TapeCapture(), [tap])
    texts = Texts(4)
    for rows in (4, 8, 4, 8, 4):
        segments = texts.step(rows)
        plain.run(segments)
        expected = tap.stack_rows(sum(len(segment.tokens) for segment in segments)).clone()
        given = fixed.run(segments)
        assert given is not None and close(tap.stack_rows(given[1].live), expected)


def test_the_check_at_load_counts_steps_and_fails_closed(network, monkeypatch):
    from opensled.core.errors import SelfTestFailed

    model = model_of(network("llama"))
    assert check_fixed(model, FixedSteps(model, skip_capture), is_exact=False) == 8
    plain = fixed_steps.FixedSteps.run

    def stale(self, segments):
        found = plain(self, segments)
        return found and (found[0].roll(1, -1), found[1])

    monkeypatch.setattr(fixed_steps.FixedSteps, "run", stale)
    with pytest.raises(SelfTestFailed, match="fixed shape"):
        check_fixed(model, FixedSteps(model, skip_capture), is_exact=False)


def test_an_engine_in_fixed_shapes_writes_the_same_text(tmp_path):
    folder = str(random_model("llama", tmp_path))
    kinds = {"numerics": "fast", "kv_tokens": 512}
    plain = load(folder, "cpu", "float64", attention="sdpa", **kinds)
    fixed = load(folder, "cpu", "float64", attention="gather", graphs="shapes", **kinds)
    assert greedy(fixed) == greedy(plain)
    assert fixed._fixed is not None and fixed._fixed._buckets


def greedy(engine) -> list[int]:
    tokens = [5, 9, 2]
    held = 0
    for _ in range(20):
        logits = engine.forward([Segment(tuple(tokens[held:]), held, (3, 1, 7), 1)]).logits
        held = len(tokens)
        tokens.append(int(logits[0].argmax()))
    return tokens


def test_the_backends_that_read_by_a_table_are_known():
    names: Sequence[str] = ("gather", "triton") if _has_triton() else ("gather",)
    for name in names:
        assert isinstance(backend_of(name), fixed_steps.PagedBackend)


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


# -- the tap ----------------------------------------------------------------------------------------------------


TEXT = tuple(7 * place % 89 + 3 for place in range(41))
TAPPED_BLOCKS = (5, 2, 9)
TAPS = (0, 1, 2, 3)


class Recorder:
    """A reader that keeps what it is given, by slot."""

    taps = TAPS

    def __init__(self, num_blocks: int) -> None:
        self.states = torch.full((num_blocks * BLOCK_SIZE, len(TAPS), 48), torch.nan, dtype=torch.float64)
        self.positions = torch.full((num_blocks * BLOCK_SIZE,), -1)

    def read(self, hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        self.states[slots], self.positions[slots] = hidden.double(), positions

    def move(self, sources: Tensor, targets: Tensor) -> None:
        self.states[targets], self.positions[targets] = self.states[sources], self.positions[sources]

    def along(self, blocks: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        slots = [blocks[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE for place in range(count)]
        return self.states[slots], self.positions[slots]


@pytest.fixture
def tapped(tmp_path: Path) -> Callable[..., tuple[TorchEngine, Recorder]]:
    def loaded(arch: str, **options: str) -> tuple[TorchEngine, Recorder]:
        folder = random_model(arch, tmp_path / arch)
        engine = torch_engine.load(str(folder), device="cpu", kv_tokens=256, **options)
        recorder = Recorder(engine.info.num_blocks)
        engine.attach(recorder)
        return engine, recorder

    return loaded


def plain_states(engine: TorchEngine, ids: tuple[int, ...]) -> Tensor:
    """[length, taps, size] of transformers itself."""
    with torch.inference_mode(), attending_by(engine.network, "eager"):
        found = engine.network(
            input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True
        ).hidden_states
    return torch.stack([found[tap][0] for tap in TAPS], dim=1).double()


@pytest.mark.parametrize("numerics", ["auto", "fast"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "qwen3_moe"])
def test_a_reader_gets_what_transformers_give(tapped, arch, numerics):
    """In pieces, beside another sequence, through a rejected draft, and through a tree of which one path stands."""
    engine, recorder = tapped(arch, dtype="float32", numerics=numerics)
    other = Segment(TEXT[::-1][:20], 0, (7, 1), 1)
    engine.forward([Segment(TEXT[:17], 0, TAPPED_BLOCKS, 0), other])
    engine.forward([Segment((TEXT[17], 1, 1, 1), 17, TAPPED_BLOCKS, 4)])  # all three are rejected
    engine.forward([Segment((TEXT[18],), 18, TAPPED_BLOCKS, 1), Segment((4,), 20, (7, 1), 1)])
    tree = (TEXT[19], 1, TEXT[20], 2, TEXT[21])
    engine.forward([Segment(tree, 19, TAPPED_BLOCKS, 5, (-1, 0, 0, 2, 2))])
    engine.compact(TAPPED_BLOCKS, [(21, 20), (23, 21)])
    states, positions = recorder.along(TAPPED_BLOCKS, 22)
    assert positions.tolist() == list(range(22))
    assert torch.allclose(states, plain_states(engine, TEXT[:22]), rtol=1e-3, atol=1e-3)


def test_the_last_place_is_behind_the_final_norm(tapped):
    engine, recorder = tapped("llama", dtype="float64")
    scores = engine.forward([Segment(TEXT, 0, TAPPED_BLOCKS, len(TEXT))])
    states, _ = recorder.along(TAPPED_BLOCKS, len(TEXT))
    logits = states[:, -1] @ engine.network.get_output_embeddings().weight.double().T
    assert torch.allclose(logits, scores.logits.double())


def test_a_network_whose_places_cannot_be_told_is_refused(tmp_path):
    engine = torch_engine.load(str(random_model("llama", tmp_path)), device="cpu", kv_tokens=256)
    engine.network.get_decoder().norm = None
    with pytest.raises(UnsupportedModel, match="final norm"):
        HiddenTap(engine.network, TAPS)


def test_a_network_that_adds_behind_a_hook_is_refused(tmp_path):
    """As some families scale what leaves a layer, or embeddings that were taken too early."""
    engine = torch_engine.load(str(random_model("llama", tmp_path)), device="cpu", kv_tokens=256)
    assert HiddenTap(engine.network, TAPS).stack_rows(3).shape == (3, len(TAPS), 48)
    engine.network.get_decoder().layers[1].register_forward_pre_hook(
        lambda _, inputs: (inputs[0] * 1.5, *inputs[1:])
    )
    with pytest.raises(UnsupportedModel, match="are not where"):
        HiddenTap(engine.network, TAPS)


def test_places_that_a_network_does_not_have(tmp_path):
    engine = torch_engine.load(str(random_model("llama", tmp_path)), device="cpu", kv_tokens=256)
    with pytest.raises(UnsupportedModel, match="3 layers"):
        HiddenTap(engine.network, (0, 4))
