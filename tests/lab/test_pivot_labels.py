"""Labels of pivots: walks over a task whose pivots are known, and what a target writes behind a token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.training.decoding import generate, greedy
from lab.training.heads.capture import load_source
from lab.training.pivots.drafts import GgufDrafts
from lab.training.pivots.questions import Question, Questioner, tasks_of
from lab.training.pivots.rollouts import TEMPERATURE, Continuations, TargetWriter, TokenFacts
from lab.training.pivots.walk import Labeller
from opensled.core.errors import UsageError, VocabularyMismatch

END, WORD, DIGIT, SIZE = 0, 20, 10, 8
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


def test_labels_are_the_truth_where_it_is_known() -> None:
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


def test_a_walk_takes_words_of_the_draft_and_no_digits() -> None:
    draft, target = Draft([0, 1, 3]), Target(slips=0)
    walked = Labeller(target, draft, 20).walk(QUESTION, 1)
    assert [each.pivot for each in walked.mismatches] == [False, True, False]
    assert [(each.drafted_solved, each.own_solved) for each in walked.mismatches] == [(1, 1), (0, 1), (1, 1)]
    expected = [right(place) + (place in (0, 3)) for place in range(LENGTH)]
    assert draft.text == [*expected, END]
    # Each is judged behind what was walked, so behind the words that stand.
    assert target.asked == [(1,), *[(*PROMPT, *expected[:place]) for place in (0, 1, 3)]]


def test_a_walk_may_follow_the_target_alone() -> None:
    draft = Draft([0, 1, 3])
    walked = Labeller(Target(slips=0), draft, 20, loose=False).walk(QUESTION, 1)
    assert [each.pivot for each in walked.mismatches] == [False, True, False]
    assert draft.text == [*map(right, range(LENGTH)), END]


def test_a_share_of_the_mismatches_is_labelled() -> None:
    counts = []
    for seed in range(60):
        draft = Draft([0, 2, 3, 5])
        walked = Labeller(Target(slips=0), draft, 20, share=0.25).walk(QUESTION, seed)
        counts.append(len(walked.mismatches))
        changed = [place for place in range(LENGTH) if draft.text[place] != right(place)]
        assert changed == [each.place for each in walked.mismatches]
    assert 40 <= sum(counts) <= 80 and len(set(counts)) > 2


def test_a_task_that_the_target_does_not_solve_is_left_out() -> None:
    walked = Labeller(Target(slips=0.6), Draft([0, 1]), 20).walk(QUESTION, 1)
    assert walked.solved <= 0.3 and not walked.mismatches
    assert Labeller(Target(slips=0.1), Draft([0]), 20).walk(QUESTION, 1).mismatches


def test_what_the_rule_never_asks_about_is_not_labelled() -> None:
    """Ends on either side, and tokens below the floor; the target's token is taken."""
    for draft in (Draft([2], instead=END), Draft([LENGTH])):
        assert not Labeller(Target(), draft, 20).walk(QUESTION, 1).mismatches
    improbable = Draft([0, 1])
    assert not Labeller(Target(prob=9e-5), improbable, 20).walk(QUESTION, 1).mismatches
    assert improbable.text == [*map(right, range(LENGTH)), END]


def test_a_lost_answer_and_a_draft_at_its_end_stop_a_walk() -> None:
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


def test_facts_are_those_of_a_plain_pass(source, prompt) -> None:
    """Also behind other texts that were read in between."""
    writer = TargetWriter(source.network, 2, 3)
    for text in (prompt, (*prompt, 40, 41), (*prompt, 40), prompt):
        output = source.network(torch.tensor([[*text, 50]]), output_hidden_states=True)
        probs = output.logits[0, -2].softmax(-1)
        state, entropy, prob = writer.facts(text, 50)
        assert np.allclose(state, output.hidden_states[2][0, -1].detach().numpy(), atol=1e-4)
        assert entropy == pytest.approx(float(-(probs * probs.log()).sum()), abs=1e-4)
        assert prob == pytest.approx(float(probs[50]), rel=1e-3)


def test_greedy_answers_are_those_of_plain_decoding(source, prompt) -> None:
    writer = TargetWriter(source.network, 2, 4)
    starts = (prompt[-1], 40, 41)
    found = writer.continuations(prompt[:-1], starts, 30, 1)
    prompts = [[*prompt[:-1], start] for start in starts]
    assert [each.greedy for each in found] == generate(source.network, prompts, 30, greedy)


def test_rollouts_of_two_starts_share_their_noise(source, prompt) -> None:
    writer = TargetWriter(source.network, 2, 6)
    before, last = prompt[:-1], prompt[-1]
    one, same = writer.continuations(before, (last, last), 12, 7)
    assert one == same
    [alone], [other] = (writer.continuations(before, (last,), 12, seed) for seed in (7, 8))
    assert alone == one and other.sampled != one.sampled
    assert len({tuple(each) for each in one.sampled}) > 1


def test_rollouts_are_drawn_at_their_temperature(source, prompt) -> None:
    writer = TargetWriter(source.network, 2, 4000)
    [found] = writer.continuations(prompt[:-1], (prompt[-1],), 1, 3)
    logits = source.network(torch.tensor([list(prompt)])).logits[0, -1]
    wanted = (logits / TEMPERATURE).softmax(-1).detach().numpy()
    counted = np.bincount([token for [token] in found.sampled], minlength=len(wanted)) / 4000
    assert np.abs(counted - wanted).sum() / 2 < 0.03


def test_a_draft_goes_on_greedily(source, prompt) -> None:
    draft = GgufDrafts("tiny-draft", "tiny", source.text, 1)
    for text in (prompt, prompt[:5]):
        draft.begin(text)
        first = draft.next()
        assert first == draft.next()
        draft.take(40)
        second = draft.next()
        again = GgufDrafts("tiny-draft", "tiny", source.text, 1)
        again.begin([*text, 40])
        assert again.next() == second


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(VocabularyMismatch, match="tiny-draft"):
        GgufDrafts("tiny-draft", "other", SimpleNamespace(vocab_size=2048, fingerprint="other"), 1)


def test_questions_are_of_the_training_split_and_repeat(source) -> None:
    tasks = tasks_of("tiny", "")
    assert {task.name for task in tasks} == {"smart_home", "arithmetic", "units"}
    one, two = (Questioner(tasks, source.text, 4) for _ in range(2))
    assert [one.question(n).prompt for n in (5, 0, 5)] == [two.question(n).prompt for n in (5, 0, 5)]
    assert one.question(0).prompt != Questioner(tasks, source.text, 5).question(0).prompt
    with pytest.raises(UsageError, match="no task 'stories'"):
        tasks_of("tiny", "arithmetic,stories")
    assert [task.name for task in tasks_of("tiny", "units")] == ["units"]
