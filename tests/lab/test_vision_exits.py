"""The early exit of a tiny vision-language model: its layer alone learns, and what is written is a draft."""

import json

import pytest
import torch
from transformers import LlamaForCausalLM

from lab.training.corpus import chat_stream
from lab.training.vision import exit_draft
from lab.training.vision.export import export
from lab.training.vision.recipe import Plan, VisionRecipe
from lab.training.vision.rows import RowMaker
from lab.training.vision.start import fresh
from lab.training.vision.tokens import IMAGE, IMAGE_ID, vision_tokenizer
from opensled.models.llama import LlamaModel
from opensled.models.store import model_path
from verify_server.drafting.exits.exit_file import load
from verify_server.text.hf_text import HFText

MICRO = VisionRecipe(
    tower_hidden=32, tower_layers=1, tower_heads=2, hidden=32, layers=4, heads=2, kv_heads=1, head_dim=32, ffn=64,
    pictures=2, texts=1, length=128, text_tokens=4000,
)  # fmt: skip
LAYERS = 2


@pytest.fixture(scope="module")
def tokenizer():
    return vision_tokenizer(model_path("tiny"))


@pytest.fixture(scope="module")
def maker(tokenizer):
    return RowMaker(MICRO, tokenizer, chat_stream(tokenizer, MICRO.text_tokens, 1))


@pytest.fixture(scope="module")
def made(tokenizer, maker, tmp_path_factory):
    """A model, its folder, and the folder of its exit."""
    root = tmp_path_factory.mktemp("exits")
    whole = fresh(MICRO)
    export(whole, tokenizer, root / "target")
    before = {name: weight.clone() for name, weight in whole.state_dict().items()}
    exit_draft.make(whole, maker, LAYERS, root / "target", root / "draft", Plan(3, 1e-2, 1))
    after = whole.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before), "the backbone is frozen"
    return whole, root / "target", root / "draft"


def test_the_layer_learns(maker):
    learner = exit_draft.ExitLearner(fresh(MICRO), LAYERS)
    losses = exit_draft.train(learner, lambda step: maker.batch(0), Plan(8, 1e-2, 1))
    assert losses[-1] < losses[0]


def test_the_draft_is_an_ordinary_llama_of_the_targets_first_layers(made):
    whole, target, folder = made
    draft = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert draft.config.num_hidden_layers == LAYERS + 1
    own = whole.model.language_model.state_dict()
    for name, weight in draft.model.state_dict().items():
        if not name.startswith(f"layers.{LAYERS}."):
            assert torch.equal(weight, own[name].half().float()), name
    about = load(folder)
    assert (about.layers, about.target) == (LAYERS, "target")
    assert about.vocabulary == HFText(target).fingerprint
    assert json.loads((folder / "exit.json").read_text())["training"]["steps"] == 3


def test_llama_cpp_reads_the_draft_and_its_placeholder(made):
    *_, folder = made
    [path] = folder.glob("*.gguf")
    assert LlamaModel(path).pieces()[IMAGE_ID] == IMAGE


def test_guesses_are_those_of_the_model_that_is_written(made, maker):
    """The learner's view of an exit, over states of the whole, equals a plain pass of the draft over text."""
    whole, _, folder = made
    learner = exit_draft.ExitLearner(whole, LAYERS)
    draft = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    learner.layer.load_state_dict(draft.model.layers[LAYERS].state_dict())
    batch = maker.batch(5)
    text = slice(MICRO.pictures, None)  # the row without a picture
    seen = learner.seen(batch)
    turned = learner.model.model.rotary_emb(seen.left, batch.positions)
    with torch.no_grad():
        behind = learner.layer(seen.left, position_embeddings=turned, attention_mask=batch.mask)
        mine = learner.model.lm_head(learner.model.model.norm(behind))[text]
        plain = draft(input_ids=batch.ids[text, :-1], use_cache=False).logits
    assert torch.allclose(mine, plain, atol=1e-2)
