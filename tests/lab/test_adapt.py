"""`opensled adapt`: what it measures, its gate, its training, its files, and the command on the tiny family."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.kept.kept_store import KeptStore, KeptText
from lab.training.adapting import command, draft_folder, learner
from lab.training.adapting.acceptance import Accepted, accepted, walked, write_texts
from lab.training.adapting.config import AdaptConfig
from lab.training.adapting.gate import gain
from lab.training.adapting.learner import DraftLearner
from lab.training.adapting.material import texts_of
from lab.training.adapting.pair import Pair, load_pair, sha256
from lab.training.decoding import generate, greedy
from lab.training.distil.self_text import ANSWER, GIVEN, ends
from lab.training.distil.shard_batches import ShardText
from lab.training.distil.target_model import load_target
from opensled.core.errors import NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.models.llama import LlamaModel
from opensled.models.store import model_file
from tests.lab.micro_llama import micro_llama

VOCABULARY = 60


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_pair("tiny-draft", "tiny")
    torch.set_num_threads(threads)


# -- what is measured -------------------------------------------------------------------------------------


def test_a_walk_counts_rounds_and_what_stood_at_each_place():
    text = [1, 2, 3, 4, 5, 6, 7]
    # Round 1: 1, 2 stand, 3 does not, the target writes it; round 2: 4 fails at once; round 3: 5, 6, 7 stand.
    assert walked([1, 2, 9, 9, 5, 6, 7], text, 3) == (3, 7, [3, 2, 2], [2, 2, 1])
    assert walked([], [], 3) == (0, 0, [0, 0, 0], [0, 0, 0])


def test_a_target_that_drafts_for_itself_is_always_right_when_greedy(pair):
    network = pair.source.network
    asked = [list(pair.source.text.encode("def area(")), list(pair.source.text.encode("import os\n"))]
    texts = write_texts(network, asked, 12, ends(network))
    assert [each.temperature for each in texts] == [0.0, 0.8]
    itself = [accepted(network, each, 4) for each in texts]
    assert itself[0].by_position == [1.0] * 4
    assert itself[0].tokens_per_round >= 4
    # At a temperature a draft draws among its likeliest candidates only, with the same noise.
    assert itself[1].acceptance > 0.8
    own = accepted(pair.draft, texts[0], 4)
    assert own.tokens_per_round < itself[0].tokens_per_round
    assert own.tokens.sum() == sum(map(len, texts[0].written))


def test_texts_do_not_depend_on_which_others_are_written_beside_them(pair, monkeypatch):
    network, many = pair.source.network, [list(pair.source.text.encode(f"x = {n}")) for n in range(5)]
    whole = write_texts(network, many, 6, ends(network))
    monkeypatch.setattr("lab.training.adapting.acceptance.AT_ONCE", 2)
    assert [each.written for each in write_texts(network, many, 6, ends(network))] == [
        each.written for each in whole
    ]


def measured(tokens: list[float], rounds: list[float]) -> Accepted:
    none = np.zeros((len(tokens), 1))
    return Accepted(0.0, np.array(rounds), np.array(tokens), none, none)


def test_the_gate_wants_the_whole_interval():
    before = [measured([10.0] * 20, [10.0] * 20)]
    sure = [measured([10.0] * 20, [5.0] * 20)]
    found = gain(before, sure, 0.5)
    assert (found.tokens_per_round, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    assert found.passes
    # One text in ten gains very much: the mean is above what is wanted, the lower end is not.
    chance = [measured([10.0] * 20, [10.0] * 18 + [1.0, 1.0])]
    found = gain(before, chance, 0.05)
    assert found.tokens_per_round > 0.05 > found.low
    assert not found.passes


# -- training ---------------------------------------------------------------------------------------------


def counting_texts(count: int = 24) -> list[ShardText]:
    """After n the target says n + 1, with probability 0.9."""
    texts = []
    for number in range(count):
        ids = np.arange(number, number + 20) % VOCABULARY
        roles = np.array([GIVEN] * 4 + [ANSWER] * 16, np.uint8)
        top_ids = np.stack([ids[4:], (ids[4:] + 7) % VOCABULARY], axis=1)
        top = np.log(np.tile([0.9, 0.05], (16, 1))).astype(np.float16)
        texts.append(ShardText("count", ids, roles, top_ids, top, np.zeros((16, 0), np.float16)))
    return texts


def trained(folder: Path, epochs: int = 12, about: str = "a", rate: float = 5e-3) -> DraftLearner:
    draft = micro_llama(VOCABULARY, 0, hidden=32, layers=1, heads=2).requires_grad_(True)
    return DraftLearner(draft, counting_texts(), folder, {"about": about}, epochs, rate)


def test_a_draft_learns_the_probabilities(tmp_path):
    one = trained(tmp_path, 80, rate=2e-2)
    one.run()
    with torch.no_grad():
        probs = one.draft(torch.arange(3, 9)[None]).logits[0, -1].softmax(-1)
    # Not the likeliest token alone: the second one has its share.
    assert probs[9] == pytest.approx(0.9, abs=0.08)
    assert probs[16] == pytest.approx(0.05, abs=0.04)
    assert one.learned.tokens == 80 * 24 * 16


def test_it_goes_on_where_it_was_stopped_as_if_nothing_had_happened(tmp_path, monkeypatch):
    whole = trained(tmp_path / "whole")
    whole.run()
    monkeypatch.setattr(learner, "CHECKPOINT_S", -1.0)  # after every step
    stopped = trained(tmp_path / "parts")
    step, left = stopped._step, iter(range(5))

    def interrupted(group: list[ShardText]) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        step(group)

    monkeypatch.setattr(stopped, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    again = trained(tmp_path / "parts")
    assert again.learned.steps == 5
    again.run()
    assert again.learned.steps == whole.learned.steps
    for one, other in zip(whole.draft.parameters(), again.draft.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    trained(tmp_path, 1).run()
    with pytest.raises(UsageError, match="another about"):
        trained(tmp_path, 1, about="b")
    with pytest.raises(UsageError, match="another epochs"):
        trained(tmp_path, 2)


# -- files ------------------------------------------------------------------------------------------------


def test_the_files_hold_what_was_trained_and_the_manifest_names_them(pair, tmp_path):
    changed = copy.deepcopy(pair.draft)
    with torch.no_grad():
        changed.model.embed_tokens.weight.mul_(1.25)
    path = draft_folder.write_draft(changed, pair, tmp_path, onnx=False)
    draft_folder.write_manifest(tmp_path, {"parents": pair.fingerprints})
    assert path.name == "tiny-draft-adapted-q8_0.gguf"
    read = load_target(path)
    for (name, wanted), got in zip(changed.named_parameters(), read.parameters(), strict=True):
        assert torch.allclose(wanted, got, atol=float(wanted.detach().abs().max()) / 100), name
    manifest = json.loads((tmp_path / "adapted.json").read_text())
    assert manifest["files"].keys() == {each.name for each in tmp_path.iterdir()} - {"adapted.json"}
    assert all(sha256(tmp_path / name) == digest for name, digest in manifest["files"].items())
    assert manifest["parents"]["draft"]["sha256"] == sha256(model_file("tiny-draft", "*.gguf"))
    # llama.cpp, which devices draft with, reads it as well.
    model = LlamaModel(path)
    assert len(model.pieces()) == len(LlamaModel(model_file("tiny-draft", "*.gguf")).pieces())


# -- texts ------------------------------------------------------------------------------------------------


def test_what_is_held_out_is_never_learned_from(pair, tmp_path):
    lines = [f"What is {n} plus {n + 1}?" for n in range(150)]
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(lines))
    config = AdaptConfig(data=str(file), positions=150, heldout=4, work=str(tmp_path / "work"))
    texts, asked = texts_of(pair, config)
    assert len(asked) == 4
    for text in texts:
        given = int((text.roles == GIVEN).sum())
        assert list(text.ids[:given]) not in asked
        assert text.top_ids.shape[1] == 32
    again, same = texts_of(pair, config)
    assert [list(text.ids) for text in again] == [list(text.ids) for text in texts]
    assert same == asked


# -- the command ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(pair: Pair, tmp_path_factory) -> Path:
    """Texts as a server keeps them: what `tiny` answered, with its likeliest 32 tokens."""
    text, network = pair.source.text, pair.source.network
    asked = [list(text.encode(f"def f{n}(")) for n in range(64)]
    store = KeptStore(tmp_path_factory.mktemp("kept"))
    for prompt, new in zip(asked, generate(network, asked, 16, greedy, ends(network)), strict=True):
        with torch.inference_mode():
            logits = network(torch.tensor([prompt + new])).logits[0, len(prompt) - 1 : -1]
        top = logits.log_softmax(-1).topk(32)
        columns = top.indices.numpy().astype(np.uint32), top.values.half().numpy()
        store.write(KeptText("a", 0.0, (*prompt, *new), len(prompt), *columns), text.fingerprint)
    return store.folder_of("a")


@pytest.fixture(scope="module")
def forgetful(pair: Pair, tmp_path_factory) -> Path:
    """`tiny-draft` with noise in its weights."""
    folder = tmp_path_factory.mktemp("forgetful") / "forgetful"
    folder.mkdir()
    worse = copy.deepcopy(pair.draft)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in worse.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std() * 0.5)
    draft_folder.write_draft(worse, pair, folder, onnx=False)
    return folder


def config(tmp_path: Path, forgetful: Path, kept: Path, **more) -> AdaptConfig:
    places = {"out": str(tmp_path / "out"), "work": str(tmp_path / "work")}
    return AdaptConfig(
        str(forgetful), kept=str(kept), epochs=6, rate=3e-3, answer=16, threads=1, **places, **more
    )


def test_the_command_writes_a_draft_that_gains_and_no_other(tmp_path, forgetful, kept, capsys):
    assert command.adapt(config(tmp_path, forgetful, kept, min_gain=50.0, json=True)) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["gain"]["passes"]
    assert [each.name for each in tmp_path.iterdir()] == ["work"]
    # What is learned already is not learned again.
    assert command.adapt(config(tmp_path, forgetful, kept, min_gain=0.0)) == 0
    said = capsys.readouterr().out
    assert f"opensled edge --draft-model {tmp_path / 'out'}" in said
    manifest = json.loads((tmp_path / "out" / "adapted.json").read_text())
    assert manifest["gain"]["passes"]
    assert manifest["gain"]["low"] >= 0
    assert manifest["before"][0]["acceptance"] < manifest["after"][0]["acceptance"]
    assert manifest["learned"]["tokens"] == 6 * manifest["learned"]["written_tokens"]
    assert manifest["learned"] == report["learned"]
    assert load_target(model_file(str(tmp_path / "out"), "*.gguf"))
    with pytest.raises(UsageError, match="exists already"):
        command.adapt(config(tmp_path, forgetful, kept))


def test_pairs_that_do_not_fit_are_refused(tmp_path, kept):
    with pytest.raises(NotFound):
        load_pair("tiny-draft", str(tmp_path))
    with pytest.raises(NotFound, match="0 texts to learn from"):
        texts_of(load_pair("tiny-draft", "tiny"), AdaptConfig(kept=str(tmp_path)))


def test_texts_of_another_target_are_refused(tmp_path, pair):
    store = KeptStore(tmp_path)
    none = np.zeros((1, 32), np.uint32), np.zeros((1, 32), np.float16)
    store.write(KeptText("a", 0.0, (1, 2), 1, *none), "of another target")
    with pytest.raises(VocabularyMismatch, match="was not kept of a target with this vocabulary"):
        texts_of(pair, AdaptConfig(kept=str(store.folder_of("a"))))


def test_a_draft_of_another_vocabulary_is_refused(monkeypatch, pair):
    class Other:
        fingerprint = "other"

    monkeypatch.setattr("lab.training.adapting.pair.GgufText", lambda path: Other())
    with pytest.raises(VocabularyMismatch, match="other vocabularies"):
        load_pair("tiny-draft", "tiny")
    monkeypatch.setattr(
        "lab.training.adapting.pair.read_metadata", lambda path: {"general.architecture": "gemma3"}
    )
    with pytest.raises(UnsupportedModel, match="tiny-draft is a gemma3"):
        load_pair("tiny-draft", "tiny")
