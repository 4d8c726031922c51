"""Threads of a step, chosen by what steps take."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from opensled.models.step_threads import LIMIT_S, LOST, ROWS, StepThreads, candidates, timed


class Machine:
    """Steps that take what `law` says, more or less, by a clock of their own."""

    def __init__(self, law) -> None:
        self.law, self.now, self.steps, self.chance = law, 0.0, [], random.Random(0)

    def step(self, rows: int, threads: int) -> None:
        self.steps.append((rows, threads))
        self.now += self.law(rows, threads) * self.chance.uniform(0.95, 1.05)

    def clock(self) -> float:
        return self.now

    def measured(self, most: int = 4) -> StepThreads:
        threads = StepThreads(candidates(most), self.clock)
        threads.measure(self.step)
        return threads

    def serve(self, threads: StepThreads, steps: int, rows: int = 1) -> tuple[float, Counter[int]]:
        """Seconds, and how many steps had each number of threads."""
        began, done = self.now, len(self.steps)
        for _ in range(steps):
            threads.run(rows, lambda count: self.step(rows, count))
        return self.now - began, Counter(count for _, count in self.steps[done:])


def crowded(rows: int, threads: int) -> float:
    """A row waits for memory, and each thread costs a meeting."""
    return max(2e-3, rows * 1e-3 / threads) + threads * 2e-4


def quiet(rows: int, threads: int) -> float:
    """Two cores, as measured with SmolLM2."""
    return {1: 12.6e-3, 2: 9.1e-3}[threads]


def busy(rows: int, threads: int) -> float:
    """The same beside two busy threads."""
    return {1: 25e-3, 2: 75e-3}[threads]


@pytest.mark.parametrize(
    "most, counts",
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 5, 6]), (8, [1, 2, 4, 7, 8])],
)
def test_candidates_double_up_to_all_cores(most, counts):
    assert candidates(most) == counts


def test_few_rows_take_few_threads_and_many_take_many():
    found = Machine(crowded).measured()
    assert [found.of(rows) for rows in (1, 2, 8, 64, 512)] == [1, 1, 4, 4, 4]
    assert str(found) == "1 thread, 4 for a prompt"


def test_one_number_where_it_is_the_best_for_all():
    assert str(Machine(lambda rows, threads: 1e-3 + threads * 1e-4).measured()) == "1 thread"
    assert str(Machine(lambda rows, threads: 1e-3 * rows / threads).measured()) == "4 threads"


def test_the_last_core_is_not_taken_for_a_few_per_cent():
    def law(rows: int, threads: int) -> float:
        return 1e-2 / min(threads, 3 + 0.2 * (threads == 4))

    assert Machine(law).measured().of(1) == 3


def test_the_time_is_bounded_and_what_was_not_timed_takes_all_cores():
    """A large target: a step of a prompt would take a minute."""
    machine = Machine(lambda rows, threads: 0.05 * rows)
    found = machine.measured()
    assert machine.now < LIMIT_S + 2 * 0.05 * 8 and ROWS[-1] not in {rows for rows, _ in machine.steps}
    assert found.of(1) == 1 and found.of(64) == 4


def test_beside_other_work_steps_have_fewer_threads_and_more_again_once_it_is_quiet():
    machine = Machine(quiet)
    threads = machine.measured(2)
    assert threads.of(1) == 2
    machine.law = busy
    assert machine.serve(threads, 1000)[1][2] < 20 and threads.of(1) == 1
    machine.law = quiet
    machine.serve(threads, 1500)
    assert threads.of(1) == 2 and machine.serve(threads, 1000)[1][1] < 30


def test_a_server_that_starts_beside_other_work_finds_more_threads_later():
    machine = Machine(busy)
    threads = machine.measured(2)
    assert threads.of(1) == 1
    machine.law = quiet
    machine.serve(threads, 1500)
    assert threads.of(1) == 2


@pytest.mark.parametrize("law", [quiet, busy])
def test_tries_lose_at_most_a_few_steps_in_a_hundred(law):
    machine = Machine(law)
    threads = machine.measured(2)
    seconds, counts = machine.serve(threads, 3000)
    best = min(law(1, 1), law(1, 2))
    assert len(counts) == 2 and 3000 * best < seconds < (1 + 2 * LOST) * 3000 * best


def test_many_cores_beside_one_busy_thread_keep_all_but_one():
    machine = Machine(lambda rows, threads: 8e-3 / threads)
    threads = machine.measured(8)
    assert threads.of(1) == 8
    machine.law = lambda rows, threads: 8e-3 / threads if threads < 8 else 4e-3
    machine.serve(threads, 300)
    assert threads.of(1) == 7


def test_steps_of_other_rows_begin_like_those_most_like_them():
    threads = StepThreads([1, 2])
    threads.begin({1: 1, 64: 2})
    assert [threads.of(rows) for rows in (2, 3, 50, 500)] == [1, 1, 2, 2]
    assert [threads.copy().of(rows) for rows in (1, 64)] == [1, 2]
    threads.keep([1])
    assert threads.of(64) == 1


def test_a_number_that_is_given_is_kept_and_nothing_timed():
    assert StepThreads([3], clock=lambda: pytest.fail("timed")).run(1, lambda threads: threads) == 3


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0, 0))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def steps_of_a_start(weights: Path) -> list[tuple[int, int]]:
    """What it times."""
    machine = Machine(quiet)
    assert timed(machine.step, weights, ["engine"], 2, machine.clock).of(1) == 2
    return machine.steps


def test_the_next_start_times_nothing(weights):
    assert steps_of_a_start(weights) and not steps_of_a_start(weights)


def test_other_weights_are_timed_anew(weights):
    steps_of_a_start(weights)
    weights.write_bytes(b"GGUF of another size")
    assert steps_of_a_start(weights)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"few": 2, "turn": 0, "many": 0}', '{"threads": [1, 2, 99]}', "\x00"]
)
def test_what_is_damaged_or_older_is_timed_anew(weights, text):
    steps_of_a_start(weights)
    [kept] = (weights.parent / "cache" / "self-tests").iterdir()
    kept.write_text(text)
    assert steps_of_a_start(weights)


def test_what_a_busy_machine_shows_is_not_remembered(weights, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0, 0))
    assert steps_of_a_start(weights) and not (weights.parent / "cache").exists()


def test_one_core_is_not_timed(weights):
    machine = Machine(crowded)
    assert str(timed(machine.step, weights, ["engine"], 1, machine.clock)) == "1 thread" and not machine.steps
