"""Questions for SmolLM2: their own answers pass the checks, wrong ones do not, and there are thousands of them."""

import json
import random
import re
from itertools import pairwise

import pytest

from lab.testbed.quality.items import tasks_for
from lab.training.questions import QUESTIONS, notes
from lab.training.questions.replies import last_number, said

ITEMS = 200
KINDS = {task.name: task for task in QUESTIONS}


def drawn(task, count=ITEMS, seed=0):
    rng = random.Random(seed)
    return [task.draw(rng) for _ in range(count)]


@pytest.mark.parametrize("task", QUESTIONS, ids=lambda task: task.name)
def test_the_reply_is_right_and_no_other_answers_is(task):
    items = drawn(task)
    assert all(item.task == task.name and task.check(item.reply, item.answer) for item in items)
    for item, other in pairwise(items):
        assert task.check(other.reply, item.answer) == (item.answer == other.answer)
        assert not task.check("", item.answer)
        assert not task.check("I do not know.", item.answer)


@pytest.mark.parametrize("task", QUESTIONS, ids=lambda task: task.name)
def test_examples_of_the_prompt_give_few_answers_away(task):
    """None is the answer but by chance, where there are few numbers."""
    items = drawn(task)
    given = sum(any(task.check(words, item.answer) for _, words in item.history) for item in items)
    assert given <= 0.1 * len(items) and all(len(item.history) >= 2 for item in items)


@pytest.mark.parametrize("task", QUESTIONS, ids=lambda task: task.name)
def test_there_are_thousands_and_a_seed_draws_them_again(task):
    texts = [item.text for item in drawn(task, 4000)]
    assert len(set(texts)) > 3000
    assert texts[:100] == [item.text for item in drawn(task, 100)]
    assert texts[:100] != [item.text for item in drawn(task, 100, seed=1)]


@pytest.mark.parametrize("task", QUESTIONS, ids=lambda task: task.name)
def test_held_out_items_are_no_training_items(task):
    rng = random.Random(0)
    held = {task.draw_from(rng, "heldout").text for _ in range(100)}
    assert not held & {task.draw_from(rng, "train").text for _ in range(2000)}


@pytest.mark.parametrize("task", QUESTIONS, ids=lambda task: task.name)
def test_answers_leave_room_to_a_window(task):
    """Digits are tokens of their own in SmolLM2's vocabulary, and so are signs."""
    lengths = [len(re.findall(r"\d|[a-zA-Z]+|[^\w\s]", item.reply)) for item in drawn(task)]
    assert min(lengths) >= 12 and max(lengths) <= 60


SHOP = json.dumps({"name": "Ben", "count": 9})
PARTY = json.dumps([["Sam", "Ida"], ["party"], ["Rome"], ["Monday"], ["4"]])


@pytest.mark.parametrize(
    ("kind", "reply", "answer", "is_right"),
    [
        ("sums", "Ben now has 19 coins.", "19", True),
        ("sums", "15 + 4 = 19, so Ben has 18 coins.", "19", False),
        ("sums", "19 coins, for 15 + 4 is that.", "19", False),
        ("sums", "15 + 3 = 19. So Ben has 19 coins.", "19", False),
        ("products", "3 x 4 = 12, so 12 eggs.", "12", True),
        ("products", "3 x 5 = 12, so 12 eggs.", "12", False),
        ("products", "That makes 1,200 eggs", "1200", True),
        ("products", "So Ben has 112 eggs.", "12", False),
        ("comparisons", "Ben has 31 and Ida has 40. 40 is more than 31, so the answer is: Ida.", "Ida", True),
        ("comparisons", "Ida sold more.", "Ida", True),
        ("comparisons", "So it is Ida or Ben", "Ida", False),
        ("comparisons", "Ida has more, so the answer is: Ben.", "Ida", False),
        ("notes", "Ida is a nurse in Rome.", '["nurse", "Rome"]', True),
        ("notes", "Ida lives in Rome and works as a Nurse.", '["nurse", "Rome"]', True),
        ("notes", "Ida is a nurse in Rome, Ben in Oslo.", '["nurse", "Rome"]', False),
        ("notes", "Ida is a nurse.", '["nurse", "Rome"]', False),
        ("records", ' {"count": 9,"name":"Ben"}', SHOP, True),
        ("records", '{"name": "Ben", "count": "9"}', SHOP, False),
        ("records", '{"name": "Ben", "count": 9', SHOP, False),
        ("letters", "Hi Sam, come to the party in Rome on Monday at 4. Love, Ida", PARTY, True),
        ("letters", "Hi Ida, come to the party in Rome on Monday at 4. Love, Sam", PARTY, False),
        ("letters", "Hi Sam, come to the party in Rome on Monday at 14. Love, Ida", PARTY, False),
        ("letters", "Hi Sam, come to the party in Rome on Monday or Friday at 4. Love, Ida", PARTY, False),
    ],
)
def test_checks_ask_for_facts_and_not_for_words(kind, reply, answer, is_right):
    assert KINDS[kind].check(reply, answer) is is_right


def test_an_answer_about_the_other_person_is_wrong():
    for item in drawn(KINDS["notes"], 50):
        facts = re.findall(r"(\w+) is a (\w+) and lives in (\w+)", item.text)
        assert len(facts) == 2
        told = [notes.check(f"A {job} from {city}.", item.answer) for _, job, city in facts]
        assert sorted(told) == [False, True]


def test_what_checks_read():
    assert [last_number(text) for text in ("", "a 3 and 45.", "1,250 or 3,4")] == ["", "45", "4"]
    assert said("Berlin, oslo and Berlin; romeo", ("Oslo", "Rome", "Berlin")) == ["Berlin", "Oslo"]


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("66 - 46 = 20", True),
        ("68 - 46 = 20", False),
        ("68 - 46 is 20.", False),
        ("The answer is 20.", True),
        ("20", True),
        ("66 - 46 = 21", False),
    ],
)
def test_a_wrong_sum_before_a_right_number_is_wrong(reply, right):
    [arithmetic] = tasks_for("tiny", "arithmetic")
    assert arithmetic.check(reply, "20") is right
