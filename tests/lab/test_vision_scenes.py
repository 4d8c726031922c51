"""Drawn scenes: one seed gives one picture, and the answers are what the pixels show."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("PIL")

from lab.training.vision.canvas import FIGURES, PALETTE, PATCHES, SIDE
from lab.training.vision.questions import COLORS, KINDS, Question, is_right
from lab.training.vision.scenes import draw, pixels

DRAWN = 150


@pytest.fixture(scope="module")
def scenes():
    rng = random.Random(5)
    return [draw(rng, "train") for _ in range(DRAWN)]


def of_kind(scenes, kind):
    return [scene for scene in scenes if scene.kind == kind]


def asked(scene, kind):
    return [question for question in scene.questions if question.kind == kind]


def seen_colors(scene):
    """Of each pixel the nearest color of the palette, by its number from 1 on; 0 = no color is near."""
    values = np.asarray(scene.image, dtype=int)
    distances = np.stack([np.abs(values - np.array(PALETTE[color])).max(axis=-1) for color in COLORS])
    return np.where(distances.min(axis=0) <= 12, distances.argmin(axis=0) + 1, 0)


def areas(mask):
    """Connected areas of a mask, by flooding."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask))}
    count = 0
    while left:
        count += 1
        front = [left.pop()]
        while front:
            y, x = front.pop()
            for step in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if step in left:
                    left.remove(step)
                    front.append(step)
    return count


def test_one_seed_gives_one_scene():
    one, other = random.Random(3), random.Random(3)
    for _ in range(30):
        first, second = draw(one, "train"), draw(other, "train")
        assert first.image.tobytes() == second.image.tobytes()
        assert first.questions == second.questions
        assert np.array_equal(first.marks, second.marks)


def test_held_out_scenes_are_not_those_of_training(scenes):
    rng = random.Random(6)
    held_out = {(scene.kind, scene.key) for scene in (draw(rng, "heldout") for _ in range(100))}
    assert not held_out & {(scene.kind, scene.key) for scene in scenes}


def test_all_kinds_of_questions_are_asked(scenes):
    assert {question.kind for scene in scenes for question in scene.questions} == set(KINDS)


def test_the_reply_to_a_question_is_right_and_another_is_not(scenes):
    questions = [question for scene in scenes for question in scene.questions]
    assert all(is_right(question, question.reply) for question in questions)
    by_kind = sorted(questions, key=lambda question: question.kind)
    for _, group in itertools.groupby(by_kind, key=lambda question: question.kind):
        one, *others = group
        assert not is_right(one, next(q for q in others if sorted(q.facts) != sorted(one.facts)).reply)


def test_a_description_must_name_each_thing_once():
    question = Question("description", "Describe the picture.", "", ("red circle", "blue square"))
    assert is_right(question, "I see a blue square at the top and a red circle.")
    assert not is_right(question, "I see a red square and a blue circle.")
    assert not is_right(question, "I see a red circle.")
    assert not is_right(question, "I see a red circle, a blue square and a red circle.")


def test_counts_are_those_of_the_pixels(scenes):
    for scene in of_kind(scenes, "shapes"):
        colors = seen_colors(scene)
        total = sum(areas(colors == number + 1) for number in range(len(COLORS)))
        for question in asked(scene, "count"):
            named = next((color for color in COLORS if color in question.text), None)
            count = areas(colors == COLORS.index(named) + 1) if named else total
            if named or "shapes" in question.text:
                assert question.facts == (str(count) if count else "no",)


def test_bars_are_counted_and_compared_by_their_pixels(scenes):
    for scene in of_kind(scenes, "bars"):
        colors = seen_colors(scene)
        heights = {
            color: int((colors == number + 1).any(axis=1).sum()) for number, color in enumerate(COLORS)
        }
        drawn = {color: height for color, height in heights.items() if height}
        (count,) = asked(scene, "bar count")
        assert count.facts == (str(len(drawn)),)
        for question in asked(scene, "bar color"):
            if "highest" in question.text:
                assert question.facts == (max(drawn, key=drawn.__getitem__),)
            if "lowest" in question.text:
                assert question.facts == (min(drawn, key=drawn.__getitem__),)


def test_places_are_where_the_pixels_are(scenes):
    for scene in of_kind(scenes, "shapes"):
        colors = seen_colors(scene)
        for question in asked(scene, "place"):
            color = next(color for color in COLORS if color in question.text)
            ys, xs = np.nonzero(colors == COLORS.index(color) + 1)
            assert question.facts[0] in {
                place for y, x in zip(ys * 3 // SIDE, xs * 3 // SIDE) for place in (_name(y, x),)
            }


def _name(row, column):
    words = [("top", "", "bottom")[row], ("left", "", "right")[column]]
    return " ".join(word for word in words if word) or "middle"


def test_the_digits_of_a_meter_are_marked_from_left_to_right(scenes):
    for scene in of_kind(scenes, "meter"):
        (reading,) = asked(scene, "reading")
        figures = scene.marks[:, 1].reshape(SIDE // 8, SIDE // 8)
        columns = [set(column[column > 0]) for column in figures.T]
        seen = [FIGURES[label - 1] for column in columns for label in column]
        assert set(seen) == set(reading.facts[0])
        assert seen[0] == reading.facts[0][0]


def test_marks_show_one_middle_for_each_thing(scenes):
    for scene in scenes:
        assert scene.marks.shape == (PATCHES, 5)
        (description,) = asked(scene, "description") or (None,)
        if description and scene.kind != "meter":
            assert scene.marks[:, 2].sum() == len(description.facts)


def test_pixels_are_what_the_tower_reads(scenes):
    values = pixels(scenes[0].image)
    assert values.shape == (3, SIDE, SIDE)
    assert values.dtype == np.float32
    assert values.max() < 0.2 < 1 < -values.min(), "paper is about zero, and ink is not"


def test_facts_decide_and_not_the_wording(scenes):
    question = next(q for scene in scenes for q in asked(scene, "reading"))
    assert is_right(question, f"It says {question.facts[0]}, I think.")
    assert not is_right(replace(question, facts=("0",)), question.reply)
