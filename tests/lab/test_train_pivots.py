"""The training of a pivot classifier, its sigma, and `opensled train-pivots` on the tiny target."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.training.decoding import generate, greedy
from lab.training.heads.capture import load_source
from lab.training.pivots import command, labels, network, trainer
from lab.training.pivots.config import TrainPivotsConfig
from lab.training.pivots.drafts import GgufDrafts
from lab.training.pivots.labels import FOLDS, Labels, read_labels, save_shard
from lab.training.pivots.network import PivotNetwork, batch_of, fit
from lab.training.pivots.questions import Question, Questioner, tasks_of
from lab.training.pivots.rollouts import TEMPERATURE, Continuations, TargetWriter, TokenFacts
from lab.training.pivots.sigma import choose, measure, sweep, wilson
from lab.training.pivots.trainer import train
from lab.training.pivots.walk import Labeller, Mismatch, Walked
from opensled.core.errors import NotFound, UsageError, VocabularyMismatch
from verify_server.rules.pivots import PivotClassifier, load

SIZE = 8


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 10, 0, 0.2775), (10, 10, 0.7225, 1), (50, 100, 0.4038, 0.5962), (0, 0, 0, 1), (1, 1, 0.2065, 1)],
)
def test_wilson_by_the_book(hits, of, low, high):
    assert wilson(hits, of) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("count", "by"), [(20, "point estimate"), (150, "point estimate"), (900, "lower end")]
)
def test_sigma_is_the_largest_that_finds_enough(count, by):
    chance = np.random.default_rng(count)
    pivots = np.arange(2 * count) < count
    chances = np.where(pivots, chance.beta(5, 2, 2 * count), chance.beta(2, 5, 2 * count))
    chosen = choose(chances, pivots)

    def enough(sigma: float) -> bool:
        recall = measure(chances, pivots, sigma)["recall"]
        return bool((recall["low"] if by == "lower end" else recall["share"]) >= 0.99)

    assert chosen.by == by and enough(chosen.sigma)
    larger = min(each for each in chances[pivots] if each > chosen.sigma)
    assert not enough(float(larger)) and larger - chosen.sigma <= 2e-6


def test_sigma_without_pivots_and_with_a_certain_one():
    none = np.zeros(4, bool)
    assert choose(np.array([0.1, 0.2, 0.3, 1.0]), none).sigma == pytest.approx(1, abs=2e-6)
    assert choose(np.array([0.0, 1.0]), np.array([True, True])).sigma == 0


def test_a_sweep_counts():
    chances, pivots = np.array([0.05, 0.4, 0.6, 0.95]), np.array([False, True, False, True])
    points = {point["sigma"]: point for point in sweep(chances, pivots, 0.45)}
    assert sorted(points) == list(points) and points[1.0]["others_standing"]["share"] == 1
    found = {name: (each["hits"], each["of"]) for name, each in points[0.45].items() if name != "sigma"}
    assert found == {"recall": (1, 2), "precision": (1, 2), "others_standing": (1, 2)}
    assert points[1.0]["precision"]["share"] is None and points[0.0]["recall"]["share"] == 1


def made_labels(count: int = 400, clear: bool = True) -> Labels:
    """Pivots show in one direction of the state, or nowhere."""
    chance = np.random.default_rng(1)
    pivots = chance.random(count) < 0.7
    states = chance.normal(size=(count, SIZE)).astype(np.float32)
    states[:, 2] += 4.0 * (2 * pivots - 1) * clear
    facts = chance.uniform(0, 2, count).astype(np.float32), chance.uniform(0, 1, count).astype(np.float32)
    folds, tasks = chance.integers(FOLDS, size=count), chance.choice(["one", "two"], count)
    return Labels(states, *facts, pivots, folds, tasks, count)


def test_what_can_be_told_apart_is_learned(monkeypatch):
    monkeypatch.setattr(network, "MAX_STEPS", 120)
    trained = train(made_labels(), 3)
    held = trained.report["held_out"]
    assert held["recall"]["share"] >= 0.99 and held["others_standing"]["share"] > 0.9
    assert held["sigma"] == trained.sigma and 0 < trained.sigma < 1
    assert trained.report["other_tasks_chose"]["recall"]["share"] > 0.95
    assert set(trained.report["kinds"]) == {"one", "two"}
    json.dumps(trained.report)


@pytest.mark.long
def test_training_again_gives_the_same(monkeypatch):
    monkeypatch.setattr(network, "MAX_STEPS", 120)
    trained, again = (train(made_labels(), 3) for _ in range(2))
    assert all(np.array_equal(again.weights[name], weight) for name, weight in trained.weights.items())


def test_what_cannot_be_told_apart_is_not_said_to_be():
    """Chances come from classifiers that never saw the task: otherwise they would be learned by heart."""
    assert train(made_labels(clear=False), 3).report["held_out"]["others_standing"]["share"] < 0.15


def test_pivots_and_others_weigh_alike():
    """With nothing to tell them apart, the chance of either is a half, however rare the others are."""
    mine = made_labels(clear=False)
    mine = replace(
        mine, states=np.zeros_like(mine.states), entropies=mine.entropies * 0, probs=mine.probs * 0 + 1
    )
    batch = batch_of(mine, np.arange(len(mine)))
    assert fit(batch, batch, 1).chances(batch) == pytest.approx(0.5, abs=0.02)


def test_torch_and_numpy_compute_the_same():
    mine = made_labels()
    torch.manual_seed(5)
    trained = PivotNetwork(SIZE)
    served = PivotClassifier(3, trained.weights()).chances(mine.states, mine.entropies, mine.probs)
    assert np.abs(served - trained.chances(batch_of(mine, np.arange(len(mine))))).max() < 1e-5


def test_too_few_labels_are_refused():
    with pytest.raises(UsageError, match="too few"):
        train(made_labels(30), 1)


def walk_of(key: str, shares: Sequence[tuple[float, float]]) -> tuple[Question, Walked]:
    facts = TokenFacts(np.arange(SIZE, dtype=np.float32), 1.5, 0.25)
    mismatches = [Mismatch(place, (5, 6), facts, *pair) for place, pair in enumerate(shares)]
    return Question("made up", key, (1, 2), any), Walked(0.9, mismatches)


def test_shards_bring_back_the_labels(tmp_path):
    save_shard([walk_of("a", [(0.1, 0.9), (0.9, 0.9)]), walk_of("b", [])], tmp_path / "0.npz")
    save_shard([walk_of("none", [])], tmp_path / "1.npz")
    save_shard([walk_of("a", [(0.8, 1.0)]), walk_of("c", [(0.95, 1.0)])], tmp_path / "2.npz")
    assert (labels.asked(tmp_path), labels.counts(tmp_path)) == (5, (4, 2))
    found = read_labels(tmp_path)
    assert found.pivots.tolist() == [True, False, True, False] and found.asked == 5
    assert found.states.shape == (4, SIZE) and found.states.dtype == np.float32
    assert found.entropies.tolist() == [1.5] * 4 and found.probs.tolist() == [0.25] * 4
    assert found.folds[0] == found.folds[1] == found.folds[2] and set(found.tasks) == {"made up"}


def test_a_folder_without_a_mismatch_is_refused(tmp_path):
    save_shard([walk_of("none", [])], tmp_path / "0.npz")
    with pytest.raises(NotFound, match="no mismatch"):
        read_labels(tmp_path)


def config(folder: Path, **changes) -> TrainPivotsConfig:
    options = {"items": 6, "rollouts": 4, "tasks": "arithmetic", "answer_tokens": 20, "threads": 1}
    return TrainPivotsConfig("tiny", work=str(folder), **{**options, **changes})


@pytest.fixture
def small(monkeypatch) -> None:
    """Trains on very little."""
    monkeypatch.setattr(command, "SHARD_S", -1.0)  # a shard for each task
    monkeypatch.setattr(trainer, "LEAST", 0)


def require_classifier_of_six(folder: Path, said: str) -> None:
    mine, found = read_labels(folder / "work/tiny"), load(folder / "out")
    assert (found.target, found.layer, found.size) == ("tiny", 3, 256)
    assert found.training["mismatches"] == len(mine) and found.training["rollouts"] == 4
    assert "6 tasks of 6 asked" in said


def test_tiny_is_labelled(tmp_path, small, capsys):
    assert command.train_pivots(config(tmp_path / "work", out=str(tmp_path / "out"))) == 0
    require_classifier_of_six(tmp_path, capsys.readouterr().out)


@pytest.mark.long
def test_tiny_is_labelled_and_a_stopped_run_goes_on(tmp_path, small, monkeypatch, capsys):
    """A run that was stopped labels what an unbroken one does."""
    walk, walks = Labeller.walk, []

    def stopping(self, question, seed):
        walks.append(seed)
        if len(walks) == 4:
            raise KeyboardInterrupt
        return walk(self, question, seed)

    monkeypatch.setattr(Labeller, "walk", stopping)
    with pytest.raises(KeyboardInterrupt):
        command.train_pivots(config(tmp_path / "one"))
    assert labels.asked(tmp_path / "one/tiny") == 3
    assert command.train_pivots(config(tmp_path / "one")) == 0
    assert len(walks) == 4 + 3
    assert command.train_pivots(config(tmp_path / "work", out=str(tmp_path / "out"))) == 0
    one, two = (read_labels(tmp_path / name / "tiny") for name in ("one", "work"))
    assert np.array_equal(one.states, two.states) and np.array_equal(one.pivots, two.pivots)
    require_classifier_of_six(tmp_path, capsys.readouterr().out)


def test_labels_of_other_options_are_not_added_to(tmp_path, monkeypatch):
    labels.claim(tmp_path / "tiny", {**config(tmp_path).labelling, "layer": 3})
    labels.claim(tmp_path / "tiny", {**config(tmp_path, items=9).labelling, "layer": 3})
    with pytest.raises(UsageError, match="another rollouts; remove it"):
        command.train_pivots(config(tmp_path, rollouts=5))
    with pytest.raises(UsageError, match="another seed and layer"):
        command.train_pivots(config(tmp_path, seed=2, layer=2))
    with pytest.raises(UsageError, match="--layer 6: tiny has 5 layers"):
        command.train_pivots(config(tmp_path, layer=6))


# -- labels -------------------------------------------------------------------------------------------------------


END, WORD, DIGIT = 0, 20, 10
LENGTH = 8  # tokens of a whole answer: words, and a digit at every third place
PROMPT = (1, 2)


def is_digit(place: int) -> bool:
    return place % 3 == 1


def right(place: int) -> int:
    """The target's token at a place of the answer."""
    if place == LENGTH:
        return END
    return DIGIT + place % 7 if is_digit(place) else WORD + place % 5


def solved(answer: Sequence[int]) -> bool:
    """By its digits alone."""
    return all(answer[place : place + 1] == [right(place)] for place in range(LENGTH) if is_digit(place))


QUESTION = Question("made up", "key", PROMPT, solved)


class Target:
    """Writes the right digits in most of its answers, and one lucky answer behind any mistake."""

    ends = frozenset({END})

    def __init__(self, rollouts: int = 20, slips: float = 0.02, prob: float = 0.3) -> None:
        self._rollouts, self._slips, self._prob = rollouts, slips, prob
        self.asked: list[tuple[int, ...]] = []

    def facts(self, before: Sequence[int], token: int) -> TokenFacts:
        """A state that knows digits from words."""
        state = np.random.default_rng((len(before), token)).normal(size=SIZE)
        state[0] = 6.0 if token < WORD else -6.0
        return TokenFacts(state.astype(np.float32), 1.0, self._prob)

    def continuations(self, before, starts, most, seed) -> list[Continuations]:
        self.asked.append(tuple(before))
        return [self._behind([*before, start][len(PROMPT) :], most, seed) for start in starts]

    def _behind(self, answer: list[int], most: int, seed: int) -> Continuations:
        rng, places = random.Random(seed), range(len(answer), min(LENGTH + 1, len(answer) + most))
        sampled = [
            [right(place) + (is_digit(place) and rng.random() < self._slips) for place in places]
            for _ in range(self._rollouts)
        ]
        return Continuations([right(place) for place in places], sampled)


class Draft:
    """Wrong at the places of `wrong`."""

    def __init__(self, wrong: Sequence[int], instead: int | None = None) -> None:
        self._wrong, self._instead = wrong, instead
        self.text: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        assert tuple(prompt) == PROMPT
        self.text = []

    def next(self) -> int | None:
        place = len(self.text)
        if place not in self._wrong:
            return right(place)
        return self._instead if self._instead is not None else right(place) + 1

    def take(self, token: int) -> None:
        self.text.append(token)


def test_labels_are_the_truth_where_it_is_known():
    """A digit that is not the target's is a pivot, another word is none."""
    found, truth = [], []
    for seed in range(40):
        wrong = random.Random(seed).sample(range(LENGTH), 4)
        walked = Labeller(Target(), Draft(wrong), 20).walk(QUESTION, 1000 * seed)
        assert [each.place for each in walked.mismatches] == sorted(wrong)
        found += [each.pivot for each in walked.mismatches]
        truth += [is_digit(each.place) for each in walked.mismatches]
    hits = sum(one and other for one, other in zip(found, truth))
    assert hits >= 0.98 * sum(truth) > 30 and hits >= 0.9 * sum(found)


def test_a_walk_takes_words_of_the_draft_and_no_digits():
    draft, target = Draft([0, 1, 3]), Target(slips=0)
    walked = Labeller(target, draft, 20).walk(QUESTION, 1)
    assert [each.pivot for each in walked.mismatches] == [False, True, False]
    assert [(each.drafted_solved, each.own_solved) for each in walked.mismatches] == [(1, 1), (0, 1), (1, 1)]
    expected = [right(place) + (place in (0, 3)) for place in range(LENGTH)]
    assert draft.text == [*expected, END]
    # Each is judged behind what was walked, so behind the words that stand.
    assert target.asked == [(1,), *[(*PROMPT, *expected[:place]) for place in (0, 1, 3)]]


def test_a_walk_may_follow_the_target_alone():
    draft = Draft([0, 1, 3])
    walked = Labeller(Target(slips=0), draft, 20, loose=False).walk(QUESTION, 1)
    assert [each.pivot for each in walked.mismatches] == [False, True, False]
    assert draft.text == [*map(right, range(LENGTH)), END]


def test_a_share_of_the_mismatches_is_labelled():
    counts = []
    for seed in range(60):
        draft = Draft([0, 2, 3, 5])
        walked = Labeller(Target(slips=0), draft, 20, share=0.25).walk(QUESTION, seed)
        counts.append(len(walked.mismatches))
        changed = [place for place in range(LENGTH) if draft.text[place] != right(place)]
        assert changed == [each.place for each in walked.mismatches]
    assert 40 <= sum(counts) <= 80 and len(set(counts)) > 2


def test_a_task_that_the_target_does_not_solve_is_left_out():
    walked = Labeller(Target(slips=0.6), Draft([0, 1]), 20).walk(QUESTION, 1)
    assert walked.solved <= 0.3 and not walked.mismatches
    assert Labeller(Target(slips=0.1), Draft([0]), 20).walk(QUESTION, 1).mismatches


def test_what_the_rule_never_asks_about_is_not_labelled():
    """Ends on either side, and tokens below the floor; the target's token is taken."""
    for draft in (Draft([2], instead=END), Draft([LENGTH])):
        assert not Labeller(Target(), draft, 20).walk(QUESTION, 1).mismatches
    improbable = Draft([0, 1])
    assert not Labeller(Target(prob=9e-5), improbable, 20).walk(QUESTION, 1).mismatches
    assert improbable.text == [*map(right, range(LENGTH)), END]


def test_a_lost_answer_and_a_draft_at_its_end_stop_a_walk():
    class Forgetful(Target):
        def _behind(self, answer, most, seed):
            found = super()._behind(answer, most, seed)
            return found if len(answer) < 3 else Continuations(found.greedy, [[]] * len(found.sampled))

    walked = Labeller(Forgetful(slips=0), Draft([0, 3, 5]), 20).walk(QUESTION, 1)
    assert [each.place for each in walked.mismatches] == [0]

    class Short(Draft):
        def next(self) -> int | None:
            return super().next() if len(self.text) < 2 else None

    assert len(Labeller(Target(), Short([0, 3]), 20).walk(QUESTION, 1).mismatches) == 1


@pytest.fixture(scope="module")
def source():
    return load_source("tiny")


@pytest.fixture(scope="module")
def prompt(source) -> tuple[int, ...]:
    return Questioner(tasks_of("tiny", "arithmetic"), source.text, 1).question(0).prompt


def test_facts_are_those_of_a_plain_pass(source, prompt):
    """Also behind other texts that were read in between."""
    writer = TargetWriter(source.network, 2, 3)
    for text in (prompt, (*prompt, 40, 41), (*prompt, 40), prompt):
        output = source.network(torch.tensor([[*text, 50]]), output_hidden_states=True)
        probs = output.logits[0, -2].softmax(-1)
        state, entropy, prob = writer.facts(text, 50)
        assert np.allclose(state, output.hidden_states[2][0, -1].detach().numpy(), atol=1e-4)
        assert entropy == pytest.approx(float(-(probs * probs.log()).sum()), abs=1e-4)
        assert prob == pytest.approx(float(probs[50]), rel=1e-3)


def test_greedy_answers_are_those_of_plain_decoding(source, prompt):
    writer = TargetWriter(source.network, 2, 4)
    starts = (prompt[-1], 40, 41)
    found = writer.continuations(prompt[:-1], starts, 30, 1)
    prompts = [[*prompt[:-1], start] for start in starts]
    assert [each.greedy for each in found] == generate(source.network, prompts, 30, greedy)


def test_rollouts_of_two_starts_share_their_noise(source, prompt):
    writer = TargetWriter(source.network, 2, 6)
    before, last = prompt[:-1], prompt[-1]
    one, same = writer.continuations(before, (last, last), 12, 7)
    assert one == same
    [alone], [other] = (writer.continuations(before, (last,), 12, seed) for seed in (7, 8))
    assert alone == one and other.sampled != one.sampled
    assert len({tuple(each) for each in one.sampled}) > 1


def test_rollouts_are_drawn_at_their_temperature(source, prompt):
    writer = TargetWriter(source.network, 2, 4000)
    [found] = writer.continuations(prompt[:-1], (prompt[-1],), 1, 3)
    logits = source.network(torch.tensor([list(prompt)])).logits[0, -1]
    wanted = (logits / TEMPERATURE).softmax(-1).detach().numpy()
    counted = np.bincount([token for [token] in found.sampled], minlength=len(wanted)) / 4000
    assert np.abs(counted - wanted).sum() / 2 < 0.03


def test_a_draft_goes_on_greedily(source, prompt):
    draft = GgufDrafts("tiny-draft", "tiny", source.text, 1)
    for text in (prompt, prompt[:5]):
        draft.begin(text)
        assert draft.next() == draft.next()
        draft.take(40)
        second = draft.next()
        again = GgufDrafts("tiny-draft", "tiny", source.text, 1)
        again.begin([*text, 40])
        assert again.next() == second


def test_a_draft_of_another_vocabulary_is_refused():
    with pytest.raises(VocabularyMismatch, match="tiny-draft"):
        GgufDrafts("tiny-draft", "other", SimpleNamespace(vocab_size=2048, fingerprint="other"), 1)


def test_questions_are_of_the_training_split_and_repeat(source):
    tasks = tasks_of("tiny", "")
    assert {task.name for task in tasks} == {"smart_home", "arithmetic", "units"}
    one, two = (Questioner(tasks, source.text, 4) for _ in range(2))
    assert [one.question(n).prompt for n in (5, 0, 5)] == [two.question(n).prompt for n in (5, 0, 5)]
    assert one.question(0).prompt != Questioner(tasks, source.text, 5).question(0).prompt
    with pytest.raises(UsageError, match="no task 'stories'"):
        tasks_of("tiny", "arithmetic,stories")
    assert [task.name for task in tasks_of("tiny", "units")] == ["units"]
