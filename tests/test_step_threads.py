"""Threads of a step, chosen by what steps take."""

from pathlib import Path

import pytest

from opensled.models import step_threads
from opensled.models.step_threads import (
    LIMIT_S,
    ROWS,
    StepThreads,
    candidates,
    find,
    measure,
    pick,
    pick_for_all,
)


class Machine:
    """Steps that take what `law` says, by a clock of their own."""

    def __init__(self, law) -> None:
        self.law, self.now, self.steps = law, 0.0, []

    def step(self, rows: int, threads: int) -> None:
        self.steps.append((rows, threads))
        self.now += self.law(rows, threads)

    def clock(self) -> float:
        return self.now


def crowded(rows: int, threads: int) -> float:
    """A row waits for memory, and each thread costs a meeting."""
    return max(2e-3, rows * 1e-3 / threads) + threads * 1e-4


def on(law, most: int = 4) -> StepThreads:
    machine = Machine(law)
    return pick(measure(machine.step, most, machine.clock).seconds, most)


@pytest.mark.parametrize("most, counts", [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_candidates_double_up_to_all_cores(most, counts):
    assert candidates(most) == counts


def test_few_rows_take_few_threads_and_many_take_many():
    found = on(crowded)
    assert [found.of(rows) for rows in (1, 2, 3, 8, 64, 512)] == [1, 1, 4, 4, 4, 4]
    assert str(found) == "1 thread, 4 from 3 rows on"


def test_one_number_where_it_is_the_best_for_all():
    found = on(lambda rows, threads: 1e-3 + threads * 1e-4)
    assert found == StepThreads(1) and str(found) == "1 thread"
    assert on(lambda rows, threads: 1e-2 * rows / threads) == StepThreads(4)


def test_a_thread_that_brings_next_to_nothing_is_left_to_others():
    assert on(lambda rows, threads: 1e-3 * (1 - threads / 100)).few == 1


def test_the_time_is_bounded_and_what_was_not_timed_takes_all_cores():
    """A large target: a step of a prompt would take a minute."""
    machine = Machine(lambda rows, threads: 0.05 * rows)
    found = measure(machine.step, 4, machine.clock).seconds
    assert machine.now < LIMIT_S + 4 * 0.05 * 8 and ROWS[-1] not in found
    assert pick(found, 4).of(64) == 4


def test_one_core_is_not_timed():
    machine = Machine(crowded)
    assert pick(measure(machine.step, 1, machine.clock).seconds, 1) == StepThreads(1) and not machine.steps


def test_one_number_for_all_steps_where_bits_may_depend_on_it():
    machine = Machine(crowded)
    assert pick_for_all(measure(machine.step, 4, machine.clock).seconds, 4) == StepThreads(4)
    assert pick_for_all({}, 4) == StepThreads(4)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(step_threads, "UNSTEADY", float("inf"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_the_next_start_times_nothing(weights):
    steps: list[tuple[int, int]] = []
    first = find(lambda *step: steps.append(step), weights, ["engine"], 2)
    assert steps
    steps.clear()
    assert find(lambda *step: steps.append(step), weights, ["engine"], 2) == first and not steps


def test_other_weights_are_timed_anew(weights):
    steps: list[tuple[int, int]] = []
    find(lambda *step: steps.append(step), weights, ["engine"], 2)
    weights.write_bytes(b"GGUF of another size")
    steps.clear()
    find(lambda *step: steps.append(step), weights, ["engine"], 2)
    assert steps


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"few": 99, "turn": 0, "many": 0}', '{"few": "1"}', "\x00"]
)
def test_what_is_damaged_is_timed_anew(weights, text):
    find(lambda *step: None, weights, ["engine"], 2)
    [kept] = (weights.parent / "cache" / "self-tests").iterdir()
    kept.write_text(text)
    steps: list[tuple[int, int]] = []
    assert find(lambda *step: steps.append(step), weights, ["engine"], 2).few in (1, 2) and steps


def test_what_a_busy_machine_shows_is_not_remembered(weights, monkeypatch):
    monkeypatch.setattr(step_threads, "UNSTEADY", 0.5)
    assert find(lambda *step: None, weights, ["engine"], 4) == StepThreads(3)
    assert not (weights.parent / "cache").exists()
