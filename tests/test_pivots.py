"""The pivot classifier of a target: its files, what it computes, and what rule `pad` shows it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.training.pivots.pivot_writer import save
from opensled.core.errors import InvalidRequest, NotFound, UnsupportedModel, VocabularyMismatch
from opensled.core.messages import DraftToken, SamplingParams
from opensled.models.store import bundled_folder
from tests.rule_contract import KEY, POSITION, VOCABULARY, decide_alone
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.rules.base import AcceptanceResult, DraftCheck
from verify_server.rules.match import Match
from verify_server.rules.pad import Pad
from verify_server.rules.pivots import (
    ABOUT,
    WEIGHT_NAMES,
    WEIGHTS,
    PivotClassifier,
    features,
    load,
    require_target,
)

SIZE, STATE, FACTS, INNER = 6, 4, 3, 5
SHAPES = {
    "state": (SIZE, STATE),
    "facts": (2, FACTS),
    "inner": (STATE + FACTS, INNER),
    "inner_bias": (INNER,),
    "outer": (INNER,),
    "outer_bias": (1,),
}
ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted(path.parent for path in (bundled_folder() / "_pivots").glob("*/" + ABOUT))


def classifier(seed: int = 0) -> PivotClassifier:
    chance = np.random.default_rng(seed)
    weights = {name: chance.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    return PivotClassifier(3, weights, "someone", "abc", 0.25, {"items": 7})


def told(about: dict[str, object], folder: Path) -> None:
    """Change what `pivots.json` says; None leaves a key out."""
    path = folder / ABOUT
    new = json.loads(path.read_text()) | about
    path.write_text(json.dumps({name: value for name, value in new.items() if value is not None}))


def test_the_files_bring_back_what_was_saved(tmp_path):
    mine = classifier()
    save(mine, tmp_path / "new")
    found = load(tmp_path / "new")
    assert replace(found, weights={}) == replace(mine, weights={}) and found.size == SIZE
    assert all(np.array_equal(found.weights[name], mine.weights[name]) for name in WEIGHT_NAMES)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [ABOUT, WEIGHTS]


def test_a_folder_without_a_classifier_says_how_to_train_one(tmp_path):
    with pytest.raises(NotFound, match="train-pivots"):
        load(tmp_path)


@pytest.mark.parametrize(
    "about",
    [
        {"format": 2},
        {"layer": None},
        {"layer": "deep"},
        {"sigma": 1.5},
        {"sigma": -0.1},
        {"sigma": float("nan")},
        {"sigma": None},
        {"training": None},
        {"training": 5},
        {"vocabulary": None},
    ],
    ids=str,
)
def test_a_damaged_description_is_refused(tmp_path, about):
    save(classifier(), tmp_path)
    told(about, tmp_path)
    with pytest.raises(UnsupportedModel, match=f"{tmp_path} cannot be used"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "\x00"])
def test_what_is_no_description_is_refused(tmp_path, text):
    save(classifier(), tmp_path)
    (tmp_path / ABOUT).write_text(text)
    with pytest.raises(UnsupportedModel, match="cannot be used"):
        load(tmp_path)


@pytest.mark.parametrize("name", WEIGHT_NAMES)
@pytest.mark.parametrize("damage", ["missing", "infinite", "longer", "flat"])
def test_damaged_weights_are_refused(tmp_path, name, damage):
    save(mine := classifier(), tmp_path)
    weights = dict(mine.weights)
    weight = weights.pop(name)
    if damage == "infinite":
        weights[name] = np.full_like(weight, np.inf)
    elif damage == "longer":
        # One more row; of "state" one more column, for its rows are the target's to say.
        weights[name] = (
            np.concatenate([weight, weight[:, :1]], axis=1)
            if name == "state"
            else np.resize(weight, (len(weight) + 1, *weight.shape[1:]))
        )
    elif damage == "flat":
        weights[name] = weight[None]
    np.savez(tmp_path / WEIGHTS, **weights)
    with pytest.raises(UnsupportedModel, match="cannot be used"):
        load(tmp_path)


def test_a_file_cut_short_is_refused(tmp_path):
    save(classifier(), tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    for cut in (b"", whole[: len(whole) // 2], b"nothing"):
        (tmp_path / WEIGHTS).write_bytes(cut)
        with pytest.raises(UnsupportedModel, match="cannot be used"):
            load(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(UnsupportedModel, match="cannot be used"):
        load(tmp_path)


def test_the_classifier_of_another_vocabulary_is_refused(tmp_path):
    require_target(classifier(), tmp_path, "abc")
    with pytest.raises(VocabularyMismatch, match="someone"):
        require_target(classifier(), tmp_path, "abd")


def seen(seed: int, rows: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, entropies and probabilities."""
    chance = np.random.default_rng(seed)
    parts = chance.normal(size=(rows, SIZE)), chance.uniform(0, 5, rows), chance.uniform(0, 1, rows)
    return tuple(part.astype(np.float32) for part in parts)


def test_the_chances_are_those_of_the_formula():
    mine, (states, entropies, probs) = classifier(2), seen(3)
    own = mine.weights
    for state, entropy, prob, chance in zip(states, entropies, probs, mine.chances(states, entropies, probs)):
        unit = state / np.sqrt((state * state).mean())
        read = [*(own["state"].T @ unit), *(own["facts"].T @ [entropy, np.log(prob)])]
        hidden = np.maximum(0, own["inner"].T @ read + own["inner_bias"])
        assert chance == pytest.approx(
            1 / (1 + np.exp(-(own["outer"] @ hidden + own["outer_bias"][0]))), abs=1e-5
        )


def test_features_know_directions_and_survive_zeros():
    mine, (states, entropies, probs) = classifier(4), seen(5)
    found = features(states, entropies, probs, mine.weights)
    assert found.shape == (8, STATE + FACTS)
    assert np.allclose(features(states * 100, entropies, probs, mine.weights), found, atol=1e-4)
    zeros = np.zeros(8, np.float32)
    assert np.isfinite(mine.chances(np.zeros_like(states), zeros, zeros)).all()


def torn() -> PivotClassifier:
    """One that calls every second token a pivot, by states and facts alike."""
    mine = classifier(11)
    weights = {**mine.weights, "facts": mine.weights["facts"] * 0.4}
    middle = np.median(replace(mine, weights=weights).chances(*seen(1, 1000)))
    bias = weights["outer_bias"] - np.log(middle / (1 - middle))
    return replace(mine, weights={**weights, "outer_bias": bias.astype(np.float32)})


class Rows(NumpyScores):
    """Scores with a state for each row."""

    def __init__(self, logits: np.ndarray, states: np.ndarray) -> None:
        super().__init__(logits)
        self.states = states

    def hidden_states(self, rows: Sequence[int]) -> np.ndarray:
        return self.states[list(rows)]


class AnyRow(Pad):
    """Rule `pad`, reading other rows than it should."""

    state, before, shaped = 1, 0, False

    def _stands(self, index, ids, own, scores) -> bool:
        [prob] = scores.probs_of(range(index + self.before, index + self.before + 1), [ids[index]])
        if not self.shaped:
            [((_, nats), *_)] = scores.logprobs([index + self.before], [ids[index]], 0)
            prob = float(np.exp(nats))
        entropy = np.array(scores.entropy([index + self.before]), np.float32)
        states = scores.hidden_states([index + self.state])
        chance = self._classifier.chances(states, entropy, np.array([prob], np.float32))[0]
        return bool(prob >= self.floor and chance <= self.sigma)


class StateBefore(AnyRow):
    state = 0


class EntropyBehind(AnyRow):
    before = 1


class ShapedProb(AnyRow):
    shaped = True


COOL = SamplingParams(temperature=0.6)
FIRST = 2  # row of the draft among those of a step


def crafted(seed: int, drafted: int = 3) -> tuple[Rows, DraftCheck]:
    """Rows of two sequences, of which the second is checked."""
    chance, count = np.random.default_rng(seed), FIRST + drafted + 1
    scores = Rows(
        chance.normal(size=(count, VOCABULARY)) * 2, chance.normal(size=(count, SIZE)).astype(np.float32)
    )
    draft = tuple(DraftToken(int(id)) for id in chance.integers(VOCABULARY, size=drafted))
    return scores, DraftCheck(draft, POSITION, COOL, KEY)


def by_hand(scores: Rows, check: DraftCheck, mine: PivotClassifier, sigma: float) -> AcceptanceResult:
    """From the definition: the raw distribution before each token, the state after it."""
    rows = range(FIRST, FIRST + len(check.draft) + 1)
    own = scores.sample_one(SampleRequest(rows, check.params, check.key, check.position))
    loose = []
    for index, id in enumerate(check.ids):
        if id == own[index]:
            continue
        logits = scores.logits[FIRST + index]
        probs = np.exp(logits) / np.exp(logits).sum()
        entropy, state = -(probs * np.log(probs)).sum(), scores.states[FIRST + index + 1]
        shown = (state[None], np.array([entropy], np.float32), np.array([probs[id]], np.float32))
        if probs[id] < 1e-4 or mine.chances(*shown)[0] > sigma:
            return AcceptanceResult(index, own[index], loose=tuple(loose))
        loose.append(index)
    return AcceptanceResult(len(check.draft), own[-1], loose=tuple(loose))


def disagrees(rule: type[Pad], seeds: int = 200) -> int:
    """Of so many drafts, those decided otherwise than by hand."""
    mine, other = torn(), 0
    for seed in range(seeds):
        scores, check = crafted(seed)
        found = decide_alone(rule("sigma=0.5", mine), check, scores, FIRST)
        other += found != by_hand(scores, check, mine, 0.5)
    return other


def test_pad_reads_the_state_after_a_token_and_the_distribution_before_it():
    assert disagrees(Pad) == 0 == disagrees(AnyRow)


@pytest.mark.parametrize("mutant", [StateBefore, EntropyBehind, ShapedProb])
def test_a_rule_that_reads_another_row_is_caught(mutant):
    assert disagrees(mutant) > 5


def test_a_floor_and_a_sigma_below_0_let_nothing_stand():
    mine, loosened = torn(), 0
    for seed in range(40):
        scores, check = crafted(seed)
        plain = decide_alone(Match(), check, scores, FIRST)
        for options in ("sigma=-1", "sigma=1,floor=1"):
            assert decide_alone(Pad(options, mine), check, scores, FIRST) == plain
        assert decide_alone(Pad(), check, scores, FIRST) == plain  # there is no classifier
        everything = decide_alone(Pad("sigma=1,floor=0", mine), check, scores, FIRST)
        assert everything.num_accepted == len(check.draft)
        loosened += len(everything.loose)
    assert loosened > 80


def test_a_larger_sigma_accepts_no_less():
    mine = torn()
    for seed in range(40):
        scores, check = crafted(seed)
        accepted = [
            decide_alone(Pad(f"sigma={sigma}", mine), check, scores, FIRST).num_accepted
            for sigma in (0, 0.2, 0.4, 0.6, 0.8, 1)
        ]
        assert accepted == sorted(accepted)


def test_the_classifier_says_which_sigma_is_usual():
    assert Pad("", classifier()).settings == "sigma=0.25,floor=0.0001"
    assert Pad("sigma=0.5,guided", classifier()).settings == "sigma=0.5,floor=0.0001,guided=yes"
    for options in ("sigma=2", "sigma=x", "floor=-1", "theta=1"):
        with pytest.raises(InvalidRequest):
            Pad(options, classifier())


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_classifier_is_whole_small_and_its_targets(folder):
    found = load(folder)
    assert found.target == folder.name
    assert (folder / WEIGHTS).stat().st_size < 1e6
    training = found.training
    assert training["pivots"] >= 25 and training["held_out"]["sigma"] == found.sigma
    assert training["held_out"]["recall"]["share"] >= 0.99
    assert found.sigma in [point["sigma"] for point in training["sweep"]]


def test_servers_get_the_classifiers_and_devices_do_not():
    assert "tiny" in [folder.name for folder in SHIPPED]
    assert '"models/_pivots"' in (ROOT / "pyproject.toml").read_text()
    assert "!models/_pivots" in (ROOT / ".dockerignore").read_text().splitlines()
    assert "_pivots" not in (ROOT / "deploy/edge/pyproject.toml").read_text()
