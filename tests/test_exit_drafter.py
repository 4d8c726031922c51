"""An early exit beside a real torch target: it writes in the target's own KV, and the text stays the target's own.

Its drafts are held against those of the draft as a model of its own, which plain transformers run over the text alone.
"""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from edge_client.drafters.none import NoneDrafter
from lab.training.vision.exit_model import exit_model
from opensled.core.errors import NonFiniteLogits, NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path
from tests.drafters_beside import Recorder, Vocabulary, fresh_engine, texts_as_asked, written
from tests.fakes import FakeEngine, FakeText
from verify_server.drafting.exits import exit_attach, exit_file
from verify_server.drafting.exits.exit_drafter import ExitDrafter, ExitStates
from verify_server.drafting.exits.exit_file import ExitFile
from verify_server.drafting.heads.head_file import config_digest
from verify_server.drafting.model import ServerModel
from verify_server.engine.base import SampleRequest, Segment
from verify_server.engine.torch.selftest import attending_by
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.options.registries import SERVER_DRAFTERS
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask
from verify_server.round.loaded_model import ServedModel
from verify_server.round.machine import StepMachine

EXIT = 2
LONG = tuple(5 + 7 * place % 211 for place in range(40))


@pytest.fixture(scope="module")
def about(tmp_path_factory) -> ExitFile:
    """An exit of tiny whose layer is its last one, with noise: what it drafts is poor, and depends on all it reads."""
    network = fresh_engine().network
    model = exit_model(network, EXIT).float()
    torch.manual_seed(5)
    for weight in model.model.layers[-1].parameters():
        weight.data += 0.3 * weight.data.std().nan_to_num(0.1) * torch.randn_like(weight)
    folder = tmp_path_factory.mktemp("exit")
    model.save_pretrained(folder)
    found = ExitFile(folder, EXIT, "tiny", "of tiny", config_digest(network.config))
    found.save()
    return found


def test_the_draft_is_a_part_of_the_target():
    """Its first layers, and between them and the norm its last one, which alone learns."""
    target = fresh_engine().network
    own = target.model.layers
    model = exit_model(target, EXIT)
    assert model.config.num_hidden_layers == len(model.model.layers) == EXIT + 1
    for place, number in enumerate((*range(EXIT), len(own) - 1)):
        for name, weight in own[number].state_dict().items():
            assert torch.equal(model.model.layers[place].state_dict()[name], weight)
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert learning and all(name.startswith(f"model.layers.{EXIT}.") for name in learning)
    assert target.config.num_hidden_layers == len(own)  # its own config is not touched
    with pytest.raises(UsageError, match=f"layers 1 to {len(own) - 1}"):
        exit_model(target, len(own))


def alone(about: ExitFile) -> LlamaForCausalLM:
    """The draft as a model of its own."""
    return LlamaForCausalLM.from_pretrained(
        about.folder, dtype=torch.float64, attn_implementation="eager"
    ).eval()


def beside(engine: TorchEngine, about: ExitFile | None, name: str = "exit") -> ExitDrafter:
    config = ServeConfig(model="tiny", server_drafter=name, draft_model=str(about.folder) if about else "")
    drafter = SERVER_DRAFTERS.get(name)(config, ServedModel("tiny", engine, Vocabulary()))
    assert isinstance(drafter, ExitDrafter)
    return drafter


@torch.inference_mode()
def from_the_text(model: LlamaForCausalLM, ask: Ask, count: int) -> tuple[int, ...]:
    """`count` tokens, drawn with the session's noise from plain forward passes over the whole text."""
    ids = list(ask.tokens)
    for _ in range(count):
        scores = TorchScores(model(torch.tensor([ids])).logits[0, -1:])
        ids += scores.sample_one(SampleRequest([0], ask.params, ask.key, len(ids)))
    return tuple(ids[ask.length :])


def agrees(recorder: Recorder, model: LlamaForCausalLM) -> bool:
    asked = recorder.seen[:: max(1, len(recorder.seen) // 40)]
    return all(from_the_text(model, ask, len(made.block.ids)) == made.block.ids for ask, made in asked)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_and_drafts_under_eviction_trees_and_shared_prefixes(reference, about, temperature):
    engine = fresh_engine()
    recorder = Recorder(beside(engine, about))
    texts_as_asked(engine, recorder, reference, temperature)
    assert agrees(recorder, alone(about))


def text_along(engine: TorchEngine, recorder: Recorder, text: tuple[int, ...], most: int = 8) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=most)
    [answer], _ = written(engine, recorder, [text], [NoneDrafter()], [params], StepMachine)
    return list(answer)


def test_the_exit_computes_what_the_draft_as_a_model_computes(about):
    """In float64, behind a text that the target has read in pieces, a rejected draft among them."""
    engine = fresh_engine()
    drafter, blocks = beside(engine, about), (4, 1, 7)
    engine.forward([Segment(LONG[:19], 0, blocks, 0)])
    engine.forward([Segment((*LONG[19:25], 3, 3, 3), 19, blocks, 1)])
    engine.forward([Segment(LONG[25:39], 25, blocks, 1)])
    ours = drafter._engine.forward([Segment(LONG[39:], 39, blocks, 1)]).logits
    with torch.inference_mode():
        expected = alone(about)(torch.tensor([LONG])).logits[:, -1]
    # Norms and rotations of transformers are float32 in every precision.
    assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_no_bit_of_the_targets_depends_on_what_the_exit_writes(about, numerics):
    """A step gives the same numbers after a draft in its places as before it."""
    from verify_server.engine.torch import torch_engine

    engine = torch_engine.load(str(model_path("tiny")), device="cpu", kv_tokens=160, numerics=numerics)
    drafter, blocks = beside(engine, about), (2, 0, 5)
    engine.forward([Segment(LONG[:30], 0, blocks, 0)])
    step = [Segment((*LONG[30:34],), 30, blocks, 4)]
    before = engine.forward(step).logits.clone()
    tree = [Segment((LONG[30], 9, 8, 7), 30, blocks, 4, (-1, 0, 0, 1))]
    wide = engine.forward(tree).logits.clone()
    for tokens in ((LONG[30],), (88,), (99,), (77,)):
        drafter._engine.forward([Segment(tokens, 30, blocks, 1)])
        drafter._engine.forward([Segment((5, 6, 7), 31, blocks, 1)])
    assert torch.equal(engine.forward(step).logits, before)
    drafter._engine.forward([Segment((LONG[30], 1, 2), 30, blocks, 1)])
    assert torch.equal(engine.forward(tree).logits, wide)


def test_a_draft_that_is_no_number_leaves_nothing_in_the_targets_memory(about):
    """A token that is only drafted has an embedding that is none."""
    engine = fresh_engine()
    head = engine.network.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    engine.network.get_input_embeddings().weight[88] = torch.nan
    drafter, blocks = beside(engine, about), (2, 0, 5)
    engine.forward([Segment(LONG[:30], 0, blocks, 0)])
    step = [Segment(LONG[30:31], 30, blocks, 1)]
    before = engine.forward(step).logits.clone()
    drafter._engine.forward([Segment(LONG[30:31], 30, blocks, 1)])
    bad = drafter._engine.forward([Segment((88,), 31, blocks, 1)])
    assert isinstance(bad.sample([SampleRequest([0], SamplingParams(0.0), b"", 32)])[0], NonFiniteLogits)
    assert before.isfinite().all() and torch.equal(engine.forward(step).logits, before)


def shifted(self, hidden, positions, slots):
    return READ(self, hidden, positions + 1, slots)


def silent(self, hidden, positions, slots):
    self._memory.clear(self._attention.layer_idx, slots)


READ = ExitStates.read


@pytest.mark.parametrize("fault", [None, shifted, silent])
def test_a_planted_fault_is_seen_in_drafts_and_in_no_text(monkeypatch, reference, about, fault):
    if fault:
        monkeypatch.setattr(ExitStates, "read", fault)
    engine = fresh_engine()
    recorder = Recorder(beside(engine, about))
    assert text_along(engine, recorder, LONG) == reference.generate(LONG, max_tokens=8)[0]
    assert agrees(recorder, alone(about)) == (fault is None)


def test_an_exit_that_fails_costs_drafts_only(monkeypatch, reference, about, caplog):
    engine = fresh_engine()
    recorder = Recorder(beside(engine, about))
    monkeypatch.setattr(ExitStates, "_keys_values", lambda *_: 1 / 0)
    assert text_along(engine, recorder, LONG) == reference.generate(LONG, max_tokens=8)[0]
    assert "the early exit failed" in caplog.text


@pytest.mark.parametrize("layers", [1, 3])
def test_a_raw_exit_drafts_what_its_layers_say(reference, layers):
    engine = fresh_engine()
    recorder = Recorder(beside(engine, None, f"exit:{layers}"))
    assert text_along(engine, recorder, LONG) == reference.generate(LONG, max_tokens=8)[0]
    network = engine.network
    for ask, made in recorder.seen:
        with torch.inference_mode(), attending_by(network, "eager"):
            states = network(
                input_ids=torch.tensor([ask.tokens]), use_cache=False, output_hidden_states=True
            ).hidden_states[layers]
            logits = network.lm_head(network.model.norm(states[0, -1:]))
        assert not made.block.ids or made.block.ids[0] == int(logits.argmax())


def test_weights_and_kv_are_there_once(about):
    engine = fresh_engine()
    drafter = beside(engine, about)
    twin, network = drafter._engine._model.network, engine.network
    own = {id(weight) for weight in network.parameters()}
    new = [name for name, weight in twin.named_parameters() if id(weight) not in own]
    assert new and all(name.startswith(f"model.layers.{EXIT}.") for name in new)
    assert len(network.model.layers) == network.config.num_hidden_layers > EXIT + 1
    assert drafter._engine._model.memory is engine._model.memory


def test_nothing_is_left_to_read_before_a_first_draft(about):
    """However long a prompt is: the planner must not think of a model that reads it first."""
    engine = fresh_engine()
    recorder = Recorder(beside(engine, about))
    text_along(engine, recorder, LONG)
    assert {(made.read, made.unread) for _, made in recorder.seen} == {(0, 0)}
    assert isinstance(recorder.inner, ServerModel)
    from hw_profiles.step_cost import ROOFLINE

    assert recorder.inner.first_cost(ROOFLINE).read_s == 0


def target(engine=None, text=None) -> ServedModel:
    return ServedModel("tiny", engine or fresh_engine(), text or Vocabulary())


def test_exits_that_do_not_belong_here_are_refused(about, tmp_path):
    config = ServeConfig(model="tiny", draft_model=str(about.folder))
    with pytest.raises(UsageError, match="--engine torch, or an ordinary draft model"):
        exit_attach.early_exit(config, target(FakeEngine()))
    with pytest.raises(VocabularyMismatch, match="another vocabulary"):
        exit_attach.early_exit(config, target(text=FakeText()))
    with pytest.raises(UsageError, match="behind layer 2, not 3"):
        exit_attach.early_exit("3", config, target())
    with pytest.raises(NotFound, match="holds no early exit"):
        exit_attach.early_exit(replace(config, draft_model=str(tmp_path)), target())
    with pytest.raises(UsageError, match="needs the folder of an exit"):
        exit_attach.early_exit(replace(config, draft_model=""), target())
    replace(about, folder=tmp_path, config="of a wider one").save()
    with pytest.raises(UnsupportedModel, match="a target of other sizes"):
        exit_attach.early_exit(replace(config, draft_model=str(tmp_path)), target())
    replace(about, folder=tmp_path, layers=1).save()
    (tmp_path / "model.safetensors").write_bytes((about.folder / "model.safetensors").read_bytes())
    exit_attach.early_exit(replace(config, draft_model=str(tmp_path)), target())


@pytest.mark.parametrize("layers", ["0", "-1", "40", "two", ""])
def test_layers_that_a_target_does_not_have_are_refused(layers):
    with pytest.raises(UsageError, match=f"exit:{layers}: this target has exits behind layers 1 to"):
        exit_attach.early_exit(layers, ServeConfig(model="tiny"), target())


@pytest.mark.parametrize("damage", ["[]", "{", '{"format": 2}', '{"format": 1, "layers": 0}'])
def test_damaged_cards_are_refused(tmp_path, damage):
    (tmp_path / exit_file.ABOUT).write_text(damage)
    with pytest.raises(UnsupportedModel):
        exit_file.load(tmp_path)


def test_a_folder_without_its_layer_is_refused(about, tmp_path):
    copied = replace(about, folder=tmp_path)
    with pytest.raises(NotFound, match="lacks its weights"):
        copied.weights()
    weights = (about.folder / exit_file.WEIGHTS).read_bytes()
    (tmp_path / exit_file.WEIGHTS).write_bytes(weights)
    with pytest.raises(UnsupportedModel, match="no layer 22"):
        replace(copied, layers=22).weights()
    (tmp_path / exit_file.WEIGHTS).write_bytes(weights[:1000])
    with pytest.raises(UnsupportedModel, match="cannot be read"):
        copied.weights()
