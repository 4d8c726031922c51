"""A middle model in small: `tiny` writes text, three of its five layers learn from it, a GGUF file comes out."""

import json
import random

import pytest
import torch

from lab.training.distil import workplace
from lab.training.distil.distiller import Pace
from lab.training.distil.middle import KEPT, REPORT, MiddlePlan, make_middle, middle_of
from lab.training.distil.self_prompts import SOURCES, Given, Script, Written
from lab.training.distil.self_text import SelfTextWriter, save_shard
from lab.training.distil.target_model import load_target
from lab.training.distil.workplace import Workplace
from opensled.models.store import model_file
from verify_server.engine.torch.torch_engine import load
from verify_server.text.gguf_text import GgufText

TARGET = model_file("tiny", "*.gguf")
PACE = Pace(rate=1e-3, warming=5, measured=10_000)


def scripts(count: int, temperature: float) -> list[Script]:
    draw = random.Random(4)
    return [
        Script(f"kind {number % 2}", (Given(tuple(draw.choices(range(300, 900), k=8))), Written(12, temperature, True)))
        for number in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Workplace:
    """With held-out texts that are shorter than those of smollm2."""
    torch.set_num_threads(1)
    found = Workplace(tmp_path_factory.mktemp("middle"), TARGET)
    for name, temperature in (("greedy", 0.0), ("sampled", 0.8)):
        asked = scripts(6, temperature)
        texts = list(SelfTextWriter(load_target(TARGET), iter(asked), 3, 30, seed=1).texts())
        save_shard(texts, found.heldout / f"{name}.npz")
    return found


@pytest.fixture(scope="module")
def made(place):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workplace, "TOKENS_PER_ROW", 150)
        patched.setattr("lab.training.distil.self_text.SHARD_TOKENS", 300)
        # Reading the standard library takes longer than all the rest.
        sources = {kind: source for kind, source in SOURCES.items() if kind != "tasks"}
        patched.setattr("lab.training.distil.self_prompts.SOURCES", sources)
        patched.setattr("lab.training.distil.documentation.passages", lambda: ("A passage of few words.",))
        yield make_middle(place, MiddlePlan(3, 1000, 1500, 500), PACE, compiled=False)


def test_one_command_makes_a_model_that_a_relay_can_serve(place, made):
    engine = load(str(made), device="cpu", dtype="float32", kv_tokens=256)
    assert engine.info.vocab_size == 2048
    assert GgufText(made).fingerprint == GgufText(TARGET).fingerprint
    assert load_target(made).config.num_hidden_layers == 3 == len(json.loads((place.run / KEPT).read_text()))


def test_short_and_long_texts_are_written(place, made):
    assert place.written(long=False) >= 850 and place.written(long=True) >= 150


def test_the_table_says_how_often_it_agrees(place, made):
    head, _, row, *_ = (place.run / REPORT).read_text().splitlines()
    assert head.split(" | ")[1:3] == ["kind 0", "kind 1"] and "shared noise" in head
    shares = [float(cell) for cell in row.strip("| ").split(" | ")[1:]]
    assert made.name in row and len(shares) == 4 and all(0 <= share <= 1 for share in shares)


def test_a_second_run_goes_on_where_the_first_one_ended(place, made):
    texts = {path: path.stat().st_mtime_ns for path in place.texts.iterdir()}
    before = load_target(made).state_dict()
    again = make_middle(place, MiddlePlan(3, 1000, 1500, 500), PACE, compiled=False)
    assert {path: path.stat().st_mtime_ns for path in place.texts.iterdir()} == texts
    assert all(torch.equal(tensor, before[name]) for name, tensor in load_target(again).state_dict().items())


def test_a_folder_is_of_one_model(place, made):
    with pytest.raises(ValueError, match="3 layers, not 2: take another --work"):
        make_middle(place, MiddlePlan(2, 1000, 1500, 500), PACE, compiled=False)


def test_layers_below_the_first_gap_are_left_alone():
    middle = middle_of(load_target(TARGET), (0, 1, 3, 4))
    trained = [all(weight.requires_grad for weight in layer.parameters()) for layer in middle.model.layers]
    assert trained == [False, False, True, True]
    assert not middle.model.embed_tokens.weight.requires_grad and middle.model.norm.weight.requires_grad
