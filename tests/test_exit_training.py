"""Training of early exits: the backbone stays as it is, every term of the loss counts, and the layer learns.

Run: pytest tests/test_exit_training.py
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from opensled.errors import NotFound, UnsupportedModel, UsageError
from opensled.messages import SamplingParams
from opensled_training.distil.self_prompts import Given, Script, Written
from opensled_training.distil.target_model import load_target
from opensled_training.exits import command
from opensled_training.exits.config import TrainExitConfig, Weights
from opensled_training.exits.exit_losses import fused
from opensled_training.exits.exit_measure import drafted, without_a_layer
from opensled_training.exits.exit_model import exit_model, source_of
from opensled_training.exits.exit_pupil import ExitPupil, new_pupil
from opensled_training.exits.exit_source import imitated, with_exits
from opensled_training.heads import windows
from opensled_training.heads.capture import Source, capture, writer_of
from opensled_training.heads.trainer import Plan, Trainer
from opensled_training.heads.windows import Window, read_shard
from verify_server.config import ServeConfig
from verify_server.drafting import model as draft_model
from verify_server.drafting.base import Ask
from verify_server.drafting.model import ServerModel
from verify_server.engine import ENGINES
from verify_server.exits import exit_file

VOCABULARY, END, LAYERS, EXIT, LENGTH = 90, 7, 5, 2, 4


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=[END],
        initializer_range=0.15,
    )
    return LlamaForCausalLM(config).requires_grad_(False).eval()


@pytest.fixture(scope="module")
def shards(target, tmp_path_factory) -> list[Path]:
    """Texts of the target with the states of its exit; of the same ones it is asked again and again."""
    folder = tmp_path_factory.mktemp("texts")
    source = with_exits(Source("random", target, None, torch.float32), (EXIT, 3))
    draw = random.Random(1)
    heads = [tuple(draw.randrange(10, VOCABULARY) for _ in range(6)) for _ in range(24)]
    scripts = [Script("kind", (Given(head), Written(40, 0.0, True))) for head in heads]
    capture(source, writer_of(source, iter(scripts), 8, 60, seed=1), folder)
    return windows.shards(folder)


def texts(shards: list[Path], pupil: ExitPupil) -> list[Window]:
    found = []
    for path in shards:
        shard = read_shard(path)
        chosen = [shard.taps.index(tap) for tap in pupil.shape.taps]
        found += [replace(window, hidden=window.hidden[:, chosen]) for window in shard.windows]
    return found


def pupil_of(target, weights=Weights(), begun="last") -> ExitPupil:
    return new_pupil(exit_model(target, EXIT, begun), EXIT, LAYERS, begun, LENGTH, weights)


def trained(target, shards, folder: Path, weights=Weights(), epochs: int = 12) -> ExitPupil:
    folder.mkdir(parents=True, exist_ok=True)
    pupil = pupil_of(target, weights)
    plan = Plan(str(weights), epochs, 128, 256, rate=3e-3, warming=5, measure_steps=1000)
    Trainer(pupil, shards, texts(shards, pupil)[:4], folder, plan).run()
    return pupil


def test_states_that_leave_the_exit_and_the_last_three_layers_are_kept(shards) -> None:
    assert imitated(LAYERS) == (3, 4, 5)
    assert read_shard(shards[0]).taps == windows.taps(shards[0]) == (EXIT, 3, 4, 5)


@pytest.mark.parametrize(("begun", "source"), [("last", 4), ("middle", 3), ("next", 2)])
def test_the_draft_is_a_part_of_the_target(target, begun, source) -> None:
    model = exit_model(target, EXIT, begun)
    assert source_of(begun, EXIT, LAYERS) == source
    assert model.config.num_hidden_layers == len(model.model.layers) == EXIT + 1
    for place, number in enumerate((*range(EXIT), source)):
        for name, weight in target.model.layers[number].state_dict().items():
            assert torch.equal(model.model.layers[place].state_dict()[name], weight)
    assert target.config.num_hidden_layers == LAYERS  # its own config is not touched
    with pytest.raises(UsageError, match="layers 1 to 4"):
        exit_model(target, LAYERS)


def test_a_pupil_says_what_the_whole_draft_says(target, shards) -> None:
    """The states of the capture are those of plain transformers: float16 rounds them."""
    pupil = pupil_of(target)
    for window in texts(shards, pupil)[:5]:
        batch = pupil.batch([window], [window.starts()])
        with torch.no_grad():
            logits = pupil.model(torch.tensor(window.ids[None].astype(np.int64))).logits[0]
            ours = pupil.model.lm_head(pupil.normed(batch))
        assert torch.allclose(ours, logits, atol=0.05)


def test_what_is_imitated_are_the_last_three_outputs_behind_the_norm(target, shards) -> None:
    pupil = pupil_of(target)
    window = texts(shards, pupil)[0]
    with torch.no_grad():
        states = target.model(torch.tensor(window.ids[None].astype(np.int64)), output_hidden_states=True)
        outputs = [target.model.norm(state[0]) for state in states.hidden_states[3:5]]
        expected = torch.stack([*outputs, states.last_hidden_state[0]]).mean(0)
        kept = torch.from_numpy(window.hidden).float()
        deep = torch.cat([target.model.norm(kept[:, 1:3]), kept[:, 3:]], dim=1)
    assert torch.allclose(fused(deep), expected, atol=0.02)


def test_the_backbone_is_bit_for_bit_the_targets_before_and_after(target, shards, tmp_path) -> None:
    before = {name: weight.clone() for name, weight in target.state_dict().items()}
    pupil = trained(target, shards, tmp_path / "run", epochs=2)
    after = pupil.model.state_dict()
    layer = f"model.layers.{EXIT}."
    changed = {name for name in after if not torch.equal(after[name], before.get(name, after[name] + 1))}
    assert changed == {name for name in after if name.startswith(layer)}
    assert all(torch.equal(weight, before[name]) for name, weight in target.state_dict().items())


def test_the_layer_learns_what_the_raw_exit_does_not_know(target, shards, tmp_path) -> None:
    pupil = trained(target, shards, tmp_path / "run")
    found = texts(shards, pupil)
    raw, untrained, learned = (
        drafted(each, found) for each in (without_a_layer(pupil), pupil_of(target), pupil)
    )
    assert learned.first_accepted > max(raw.first_accepted, untrained.first_accepted) + 0.2
    assert 1 <= raw.tokens_per_round < learned.tokens_per_round <= 1 + LENGTH


@pytest.mark.parametrize("left_out", Weights._fields)
def test_each_term_has_an_effect(target, shards, left_out) -> None:
    """On the gradient, and only if its weight is not 0."""
    pupil = pupil_of(target)
    batch = pupil.batch(*zip(*[(window, window.starts()) for window in texts(shards, pupil)[:3]]))
    found = pupil.terms(batch)
    assert all(term.isfinite() and term > 0 for term in found)
    [part] = torch.autograd.grad(getattr(found, left_out), [pupil.head.mlp.up_proj.weight], retain_graph=True)
    assert part.abs().max() > 0
    whole, rest = found.total(Weights()), found.total(Weights()._replace(**{left_out: 0.0}))
    assert torch.isclose(whole - rest, getattr(found, left_out))
    alone = found.total(Weights(0, 0, 0)._replace(**{left_out: 2.0}))
    assert torch.isclose(alone, 2 * getattr(found, left_out))


@pytest.mark.parametrize("layers", ["0", "5", "-1", "2,2", "a", "2,", "1.5"])
def test_exits_that_a_target_does_not_have_are_refused(layers) -> None:
    with pytest.raises(UsageError, match="behind layers 1 to 4"):
        TrainExitConfig(layers=layers).exits(LAYERS)


def test_exits_are_named_by_their_layers() -> None:
    assert TrainExitConfig().exits(30) == (15,)
    config = TrainExitConfig(layers="8,12", out="x/mine")
    assert config.exits(30) == (8, 12)
    assert config.folder(8, 2) == Path("x/mine-8") and config.folder(8, 1) == Path("x/mine")
    with pytest.raises(UsageError, match="nothing would be learned"):
        command.train_exit(TrainExitConfig(cosine=0, divergence=0, tokens=0))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The whole command on the bundled target, for one round over few texts."""
    folder = tmp_path_factory.mktemp("made")
    config = TrainExitConfig(
        "tiny", "2", positions=1000, epochs=1, out=str(folder / "exit"), work=str(folder / "work"), threads=1
    )
    assert command.train_exit(config) == 0
    return folder


@pytest.mark.long
def test_the_command_writes_a_draft_with_its_card(made, capsys) -> None:
    folder = made / "exit"
    about = exit_file.load(folder)
    assert about.layers == 2 and about.target == "tiny"
    assert about.training["weights"] == {"cosine": 1.0, "divergence": 1.0, "tokens": 1.0}
    assert about.training["rows"] > 0 and about.training["positions"] >= 1000
    assert 0 < about.training["first_accepted"] < 1 <= about.training["tokens_per_round"]
    assert list(folder.glob("*.gguf")) and (folder / "tokenizer.json").is_file()
    network = AutoModelForCausalLM.from_pretrained(folder)
    assert network.config.num_hidden_layers == 3
    assert set(about.weights()) == set(network.model.layers[2].state_dict())


@torch.inference_mode()
@pytest.mark.long
def test_the_gguf_file_for_devices_is_the_same_model(made) -> None:
    """Its layers are rounded to 8 bits."""
    [path] = (made / "exit").glob("*.gguf")
    ids = torch.tensor([[5 + 7 * place % 211 for place in range(60)]])
    ours, theirs = (
        model(ids).logits[0]
        for model in (AutoModelForCausalLM.from_pretrained(made / "exit"), load_target(path))
    )
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9
    assert (ours - theirs).abs().mean() < 0.05 * ours.std()


@pytest.mark.long
def test_a_server_takes_the_folder_as_an_ordinary_draft_model_too(made) -> None:
    config = ServeConfig(model="tiny", engine="torch", kv_tokens=160, draft_model=str(made / "exit"))
    drafter = draft_model.load(config, ENGINES.get("torch")(config))
    assert type(drafter) is ServerModel
    ask = Ask(1, "", (5, 6, 7, 8), 3, SamplingParams(0.0), b"key", (0, 1))
    assert len(drafter.propose([ask])[0].block.ids) == 3


@pytest.mark.long
def test_states_of_other_exits_are_refused(made) -> None:
    config = TrainExitConfig("tiny", "1", positions=1000, work=str(made / "work"), threads=1)
    with pytest.raises(UsageError, match="no states for exits behind 1 layers"):
        command.train_exit(config)


@pytest.mark.parametrize("damage", ["[]", "{", '{"format": 2}', '{"format": 1, "layers": 0}'])
def test_damaged_cards_are_refused(tmp_path, damage) -> None:
    (tmp_path / exit_file.ABOUT).write_text(damage)
    with pytest.raises(UnsupportedModel):
        exit_file.load(tmp_path)


@pytest.mark.long
def test_a_folder_without_its_layer_is_refused(made, tmp_path) -> None:
    about = replace(exit_file.load(made / "exit"), folder=tmp_path)
    with pytest.raises(NotFound, match="lacks its weights"):
        about.weights()
    weights = (made / "exit" / exit_file.WEIGHTS).read_bytes()
    (tmp_path / exit_file.WEIGHTS).write_bytes(weights)
    with pytest.raises(UnsupportedModel, match="no layer 22"):
        replace(about, layers=22).weights()
    (tmp_path / exit_file.WEIGHTS).write_bytes(weights[:1000])
    with pytest.raises(UnsupportedModel, match="cannot be read"):
        about.weights()
