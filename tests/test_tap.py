"""The tap: a head reads the states of exactly the rows that a step computed, in every family that has them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from opensled.core.errors import UnsupportedModel
from tests.tiny_models import random_model
from verify_server.engine.base import Segment
from verify_server.engine.torch import torch_engine
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.selftest import attending_by
from verify_server.engine.torch.tap import HiddenTap
from verify_server.engine.torch.torch_engine import TorchEngine

TEXT = tuple(7 * place % 89 + 3 for place in range(41))
BLOCKS = (5, 2, 9)
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
def test_a_reader_gets_what_transformers_give(tapped, arch: str, numerics: str) -> None:
    """In pieces, beside another sequence, through a rejected draft, and through a tree of which one path stands."""
    engine, recorder = tapped(arch, dtype="float32", numerics=numerics)
    other = Segment(TEXT[::-1][:20], 0, (7, 1), 1)
    engine.forward([Segment(TEXT[:17], 0, BLOCKS, 0), other])
    engine.forward([Segment((TEXT[17], 1, 1, 1), 17, BLOCKS, 4)])  # all three are rejected
    engine.forward([Segment((TEXT[18],), 18, BLOCKS, 1), Segment((4,), 20, (7, 1), 1)])
    tree = (TEXT[19], 1, TEXT[20], 2, TEXT[21])
    engine.forward([Segment(tree, 19, BLOCKS, 5, (-1, 0, 0, 2, 2))])
    engine.compact(BLOCKS, [(21, 20), (23, 21)])
    states, positions = recorder.along(BLOCKS, 22)
    assert positions.tolist() == list(range(22))
    assert torch.allclose(states, plain_states(engine, TEXT[:22]), rtol=1e-3, atol=1e-3)


def test_the_last_place_is_behind_the_final_norm(tapped) -> None:
    engine, recorder = tapped("llama", dtype="float64")
    scores = engine.forward([Segment(TEXT, 0, BLOCKS, len(TEXT))])
    states, _ = recorder.along(BLOCKS, len(TEXT))
    logits = states[:, -1] @ engine.network.get_output_embeddings().weight.double().T
    assert torch.allclose(logits, scores.logits.double())


def test_a_network_whose_places_cannot_be_told_is_refused(tmp_path: Path) -> None:
    engine = torch_engine.load(str(random_model("llama", tmp_path)), device="cpu", kv_tokens=256)
    engine.network.get_decoder().norm = None
    with pytest.raises(UnsupportedModel, match="final norm"):
        HiddenTap(engine.network, TAPS)


def test_a_network_that_adds_behind_a_hook_is_refused(tmp_path: Path) -> None:
    """As some families scale what leaves a layer, or embeddings that were taken too early."""
    engine = torch_engine.load(str(random_model("llama", tmp_path)), device="cpu", kv_tokens=256)
    assert HiddenTap(engine.network, TAPS).stack_rows(3).shape == (3, len(TAPS), 48)
    engine.network.get_decoder().layers[1].register_forward_pre_hook(
        lambda _, inputs: (inputs[0] * 1.5, *inputs[1:])
    )
    with pytest.raises(UnsupportedModel, match="are not where"):
        HiddenTap(engine.network, TAPS)


def test_places_that_a_network_does_not_have(tmp_path: Path) -> None:
    engine = torch_engine.load(str(random_model("llama", tmp_path)), device="cpu", kv_tokens=256)
    with pytest.raises(UnsupportedModel, match="3 layers"):
        HiddenTap(engine.network, (0, 4))
