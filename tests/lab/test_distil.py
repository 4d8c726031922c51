"""The draft of smollm2 in small: the target writes text, a pruned copy learns from it, files are shipped and joined."""

import copy
import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div
from transformers import LlamaForCausalLM

from lab.training.distil import workplace
from lab.training.distil.agreement import agreement, noisy_agreement, of_model
from lab.training.distil.distiller import Distiller, Pace
from lab.training.distil.documentation import HELD_OUT_MODULES, passages
from lab.training.distil.layer_choice import SEED, divergences_without, kept_layers, sample_of
from lab.training.distil.middle import KEPT, REPORT, MiddlePlan, make_middle, middle_of
from lab.training.distil.objective import Aims, losses
from lab.training.distil.pruned import pruned
from lab.training.distil.row_decoder import RowDecoder
from lab.training.distil.self_prompts import SOURCES, Frame, Given, Script, Written, drawn
from lab.training.distil.self_text import ANSWER, GIVEN, QUESTION, TOP, SelfTextWriter, save_shard
from lab.training.distil.shard_batches import batch_of, batches_of, read_shard, rounds_of_shards
from lab.training.distil.target_model import load_target
from lab.training.distil.workplace import Workplace
from opensled.models.store import model_file
from tests.lab.micro_llama import micro_llama
from verify_server.engine.torch.torch_engine import load
from verify_server.text.gguf_text import GgufText

VOCABULARY, END = 300, 7


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return micro_llama(VOCABULARY, END, hidden=48, layers=4, heads=6)


def scripts(count: int) -> list[Script]:
    draw = random.Random(1)
    return [
        Script(
            f"kind {number % 2}",
            (
                Given(tuple(draw.randrange(10, VOCABULARY) for _ in range(2 + number))),
                Written(5, 1.0, answer=False),
                Given((END, 11, 12)),
                Written(9, 0.0, answer=True),
            ),
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def texts(target, tmp_path_factory):
    """Of seven scripts over three rows, and the shard that they are in."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lab.training.distil.self_text.SORT_STEPS", 5)
        written = list(SelfTextWriter(target, iter(scripts(7)), 3, 40, seed=1).texts())
    path = tmp_path_factory.mktemp("texts") / "short-00000.npz"
    save_shard(written, path)
    return written, path


def test_many_rows_are_decoded_as_one_would_be(target, monkeypatch):
    monkeypatch.setattr("lab.training.distil.row_decoder.GROUP", 1)
    ids = torch.randint(10, VOCABULARY, (2, 9))
    decoder = RowDecoder(target, 2, 12)
    # The second row lags by three tokens.
    for step in range(12):
        places = torch.tensor([min(step, 8), max(0, step - 3)])
        likely, found = decoder.likeliest(decoder.advance(ids[torch.arange(2), places], places), TOP)
        thought = target(ids).logits[torch.arange(2), places].log_softmax(-1)
        assert torch.allclose(found, thought.topk(TOP).values, atol=1e-4)
        assert torch.allclose(found, thought.gather(1, likely), atol=1e-4)


def test_in_bfloat16_the_order_of_the_likeliest_is_that_of_float32(target):
    ids = torch.randint(10, VOCABULARY, (2,))
    decoder, rounded = (RowDecoder(target, 2, 2, dtype) for dtype in (torch.float32, torch.bfloat16))
    hidden = decoder.advance(ids, torch.zeros(2, dtype=torch.long))
    for one, other in zip(decoder.likeliest(hidden, 20), rounded.likeliest(hidden, 20)):
        assert torch.allclose(one.float(), other.float(), atol=0.01)
    assert torch.allclose(rounded.advance(ids, torch.zeros(2, dtype=torch.long)), hidden, atol=0.1)


def test_the_target_writes_what_it_thinks(target, texts):
    written, _ = texts
    assert len(written) == 7
    for text in written:
        logits, embedding = target(torch.tensor([text.ids])).logits[0], target.model.embed_tokens.weight
        places = [place for place, role in enumerate(text.roles) if role != GIVEN]
        for place, ids, log_probs, features in zip(places, text.top_ids, text.top_log_probs, text.features):
            thought = logits[place - 1].log_softmax(-1)
            assert np.allclose(thought[ids.astype(int)], log_probs, atol=0.01)
            assert np.allclose(thought.topk(TOP).values, log_probs, atol=0.01)
            from_features = embedding[ids.astype(int)] @ torch.from_numpy(features).float()
            assert torch.allclose(from_features, logits[place - 1][ids.astype(int)], atol=0.02)
            if text.roles[place] == ANSWER:
                assert text.ids[place] == logits[place - 1].argmax()
            else:
                assert text.ids[place] in ids


def test_a_turn_that_was_cut_gets_its_end(texts):
    for text in texts[0]:
        turns = [(role, len(list(each))) for role, each in itertools.groupby(text.roles)]
        assert [role for role, _ in turns] == [GIVEN, QUESTION, GIVEN, ANSWER]
        asked, given = turns[0][1], turns[2][1]
        ended = text.ids[asked + turns[1][1] - 1] == END
        assert text.ids[asked + turns[1][1] :][:given] == ([11, 12] if ended else [END, 11, 12])


def test_a_shard_holds_the_texts(texts):
    written, path = texts
    for text, read in zip(written, read_shard(path), strict=True):
        assert read.kind == text.kind and read.ids.tolist() == text.ids and read.roles.tolist() == text.roles
        assert np.array_equal(read.top_ids, text.top_ids) and np.array_equal(read.features, text.features)


def test_batches_ask_where_the_target_wrote(texts):
    batch = batch_of(read_shard(texts[1]))
    following = batch.ids.roll(-1, dims=1)[batch.asked]
    assert len(following) == len(batch.aims.ids)
    assert bool((batch.aims.ids == following[:, None]).any(1).all())
    assert bool((batch.aims.ids[batch.answers, 0] == following[batch.answers]).all())


@pytest.mark.parametrize("most", [40, 80, 1000])
def test_a_batch_is_padded_to_so_many_tokens_at_most(texts, most):
    read = read_shard(texts[1])
    groups = batches_of(read, random.Random(1), most)
    assert sum(map(len, groups)) == len(read) and (len(groups) == 1) == (most == 1000)
    assert all(batch_of(group).ids.numel() <= most or len(group) == 1 for group in groups)


def test_shards_are_read_in_turns_and_new_ones_first(texts, tmp_path):
    for number in range(8):
        (tmp_path / f"short-{number:05}.npz").write_bytes(texts[1].read_bytes())
    reads: Counter[str] = Counter()
    rounds = rounds_of_shards(tmp_path, reads, random.Random(1))
    for _ in range(4):
        assert sum(len(group) for group in next(rounds)) == 6 * 7
    assert set(reads.values()) == {2, 3}
    (tmp_path / "long-00000.npz").write_bytes(texts[1].read_bytes())
    next(rounds), next(rounds)
    assert reads["long-00000.npz"] == 1


def test_the_losses_are_those_of_whole_distributions():
    """Where the likely tokens hold all of the mass and every token is a candidate."""
    torch.manual_seed(1)
    embedding, hidden = torch.randn(TOP, 16), torch.randn(5, 16)
    wanted = torch.randn(5, TOP).log_softmax(-1).sort(descending=True)
    aims = Aims(wanted.indices, wanted.values, hidden * 1.1)
    found = losses(hidden, embedding, aims, torch.Generator())
    own = (hidden @ embedding.T).log_softmax(-1)
    whole = torch.zeros(5, TOP).scatter(1, wanted.indices, wanted.values)
    divergence = float(kl_div(own, whole, reduction="batchmean", log_target=True))
    assert float(found.divergence) == pytest.approx(divergence, rel=1e-2)
    variation = float((own.exp() - whole.exp()).abs().sum(-1).mean() / 2)
    assert float(found.variation) == pytest.approx(variation, abs=2e-3)
    assert float(found.distance) == pytest.approx(0.1**2 / 1.1**2, rel=1e-3)


def test_drawn_tokens_stand_for_all_others(monkeypatch):
    """The divergence hardly depends on which tokens are drawn, and on average it is that of the whole vocabulary."""
    monkeypatch.setattr("lab.training.distil.objective.NEGATIVES", 500)
    torch.manual_seed(1)
    embedding, hidden = torch.randn(4000, 8) * 0.3, torch.randn(4, 8)
    wanted = torch.randn(4, 4000).log_softmax(-1).topk(TOP)
    aims = Aims(wanted.indices, wanted.values, hidden)

    def variation(seed: int) -> float:
        return float(losses(hidden, embedding, aims, torch.Generator().manual_seed(seed)).variation)

    sampled = [variation(seed) for seed in range(20)]
    monkeypatch.setattr("lab.training.distil.objective.NEGATIVES", 4000)
    assert np.mean(sampled) == pytest.approx(variation(0), rel=0.01)


def test_a_pruned_model_is_the_target_without_some_layers(target):
    ids = torch.randint(10, VOCABULARY, (1, 6))
    assert torch.allclose(pruned(target, range(4))(ids).logits, target(ids).logits, atol=1e-5)
    draft = pruned(target, (0, 3))
    assert draft.config.num_hidden_layers == 2 and target.config.num_hidden_layers == 4
    assert torch.equal(draft.model.layers[1].mlp.up_proj.weight, target.model.layers[3].mlp.up_proj.weight)
    assert not draft.model.embed_tokens.weight.requires_grad


@pytest.fixture
def shop(texts, tmp_path):
    """Folders of a training run, with the same texts to learn from and to be measured with."""
    for name in ("greedy", "sampled"):
        (tmp_path / f"{name}.npz").write_bytes(texts[1].read_bytes())
    return tmp_path


def distiller(target, texts, shop) -> Distiller:
    return Distiller(pruned(target, (0, 3)), texts[1].parent, shop, shop, pace=Pace(warming=5))


def test_training_brings_the_draft_nearer(target, texts, shop):
    before = agreement(of_model(pruned(target, (0, 3))), texts[1])
    trainer = distiller(target, texts, shop)
    trainer.run(sum(text.written for text in texts[0]) * 60)
    after = agreement(of_model(trainer.mean_draft()), texts[1])
    assert after.mean > before.mean + 0.3 and after.overlap > before.overlap + 0.1
    assert agreement(of_model(target), texts[1]).mean == 1.0


def test_a_run_that_was_stopped_goes_on(target, texts, shop):
    first = distiller(target, texts, shop)
    first.run(200)
    second = distiller(target, texts, shop)
    assert second.progress == first.progress and second.progress.tokens >= 200
    for mine, theirs in zip(first.mean_draft().parameters(), second.mean_draft().parameters()):
        assert torch.equal(mine, theirs)
    steps = second.progress.steps
    second.run(400)
    assert second.progress.steps > steps


@pytest.mark.long
def test_no_passage_of_a_held_out_module_is_read():
    assert len(passages()) > 500
    told = "\n".join(passages())
    assert "optparse" in HELD_OUT_MODULES and "Turtle" not in told and "OptionParser" not in told


@pytest.mark.long
def test_scripts_are_chats_of_the_targets_own_template():
    text = GgufText(model_file("tiny", "*.gguf"))
    frame = Frame(text)
    for long in (False, True):
        for script in itertools.islice(drawn(frame, 1, long), 40):
            *_, last = script.parts
            assert isinstance(last, Written) and last.answer
            assert isinstance(script.parts[0], Given) and script.parts[0].ids[: len(frame.user)] == frame.user
    again = [list(itertools.islice(drawn(frame, 2, True), 9)) for _ in range(2)]
    assert again[0] == again[1]


def test_two_models_draw_alike_as_often_as_they_agree(target, texts):
    alike = noisy_agreement(of_model(target), of_model(target), texts[1], 0.8)
    assert set(alike.values()) == {1.0} and set(alike) == {"kind 0", "kind 1"}
    other = noisy_agreement(of_model(target), of_model(pruned(target, (0, 3))), texts[1], 0.8)
    assert all(0 <= share < 0.8 for share in other.values())


def test_the_layers_that_go_are_those_that_are_missed_least(target, texts, monkeypatch):
    """Layer 2 adds nothing here; without it the model is the target."""
    idle = copy.deepcopy(target)
    for part in (idle.model.layers[2].self_attn.o_proj, idle.model.layers[2].mlp.down_proj):
        torch.nn.init.zeros_(part.weight)
    batch = sample_of(texts[1].parent)
    missed = divergences_without(idle, range(4), batch)
    shorter = divergences_without(idle, (0, 1, 3), batch)
    assert min(missed, key=missed.__getitem__) == 2
    for gone, other in shorter.items():
        assert other == pytest.approx(missed[gone], rel=1e-4)
    fewest = sorted(missed, key=missed.__getitem__)
    assert kept_layers(idle, 1, batch) == (fewest[3],) and kept_layers(idle, 4, batch) == (0, 1, 2, 3)
    monkeypatch.setattr("lab.training.distil.layer_choice.AT_ONCE", 1)
    kept = kept_layers(idle, 2, batch)
    assert kept == tuple(number for number in (0, 1, 3) if number != min(shorter, key=shorter.__getitem__))
    with pytest.raises(ValueError, match="4 layers cannot keep 5"):
        kept_layers(idle, 5, batch)


@torch.inference_mode()
def test_a_layer_is_missed_as_much_as_the_pruned_model_is_off(target, texts):
    batch = sample_of(texts[1].parent)
    for gone, found in divergences_without(target, range(4), batch).items():
        without = pruned(target, [number for number in range(4) if number != gone])
        hidden = without.model(batch.ids, use_cache=False).last_hidden_state[batch.asked]
        drawn = torch.Generator().manual_seed(SEED)
        embedding = without.model.embed_tokens.weight
        assert found == pytest.approx(
            float(losses(hidden, embedding, batch.aims, drawn).divergence), rel=1e-4
        )


# -- a model in the middle ----------------------------------------------------------------------------------------


TARGET = model_file("tiny", "*.gguf")
PACE = Pace(rate=1e-3, warming=5, measured=10_000)


def chats(count: int, temperature: float) -> list[Script]:
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
        asked = chats(6, temperature)
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
    assert load(str(made), device="cpu", dtype="float32", kv_tokens=256).info.vocab_size == 2048
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
