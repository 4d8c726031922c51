"""Ten answers of 128 tokens from a cold start against the best fixed length, on simulated devices, and what a device
remembers of them.

The texts are real: tests/golden/right_drafts.json says of each token of an answer whether SmolLM2 drafts it right.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client.config import DeviceConfig
from edge_client.length_memory import EVERY_S, HALF_LIFE_S, MOST_BYTES, MOST_FILES, LengthMemory
from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.learned import COUNTS, Learned
from hw_profiles.sysfs import BoardState
from tests.draft_world import Fixed, Site, World
from tests.tiny_drafts import tiny_info

ANSWERS, TOKENS = 10, 128
KINDS = {
    kind: "".join(texts)
    for kind, texts in json.loads(Path("tests/golden/right_drafts.json").read_text()).items()
    if kind != "about"
}
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
# A server on a core or on a graphics card, near and far; devices with fast and slow draft models.
SITES = [
    Site(token_s, rtt_s, step_s, 0.9, jitter_s=rtt_s / 8, slope_s=slope * step_s, look_ahead=ahead, limit=60)
    for token_s, rtt_s, step_s, slope in (
        (0.012, 0.001, 0.13, 0.003),
        (0.012, 0.02, 0.03, 0.02),
        (0.03, 0.02, 0.05, 0.01),
    )
    for ahead in (True, False)
]


class Texts(World):
    """A device whose drafts are right where a real draft model's were."""

    def __init__(self, site: Site, right: str) -> None:
        super().__init__(site)
        self.texts = right

    def right(self, length: int) -> int:
        found = (
            index
            for index in range(length + 1)
            if self.texts[(self.committed + index) % len(self.texts)] == "0"
        )
        return next(found, length + 1)


def answers(world: World, rule, count: int = ANSWERS) -> list[float]:
    """Seconds of each."""
    return [world.answer(rule, TOKENS) for _ in range(count)]


def adaptive(world: World) -> Adaptive:
    return Adaptive(look_ahead=world.site.look_ahead, clock=world.clock, board=BoardState)


def share_of_best(site: Site, right: str) -> float:
    world = Texts(site, right)
    best = min(sum(answers(Texts(site, right), Fixed(length))) for length in LENGTHS)
    return best / sum(answers(world, adaptive(world)))


@pytest.mark.parametrize("kind", KINDS)
def test_ten_answers_from_cold_are_within_five_percent_of_the_best_fixed_length(kind):
    shares = [share_of_best(site, KINDS[kind]) for site in SITES]
    assert statistics.mean(shares) > 0.95
    assert min(shares) > 0.9


SLOW_SERVER = SITES[0]


def learned_of(site: Site) -> Learned:
    world = Texts(site, KINDS["chat"])
    rule = adaptive(world)
    answers(world, rule)
    learned = rule.learned()
    assert learned is not None
    return learned


def test_a_cold_device_does_not_wait_for_a_server_that_is_far_behind():
    """It listened to five tokens of the server after its first block: a fifth of the first answer."""
    world = Texts(SLOW_SERVER, KINDS["chat"])
    answers(world, adaptive(world), 1)
    asked = [length for _, length in world.modes[1:-1]]
    assert 0 not in asked


def test_the_end_of_an_answer_says_nothing_of_drafting(caplog):
    """The last block has room for a token; that made the server look faster, answer by answer."""
    caplog.set_level(logging.INFO, logger="edge_client.lengths.adaptive")
    world = World(Site(0.01, 0.05, 0.03, 0.95, look_ahead=False))
    answers(world, adaptive(world), 5)
    assert not caplog.records


def test_what_is_remembered_makes_the_first_answer_as_fast_as_later_ones():
    cold = warm = 0.0
    for right in KINDS.values():
        worlds = Texts(SITES[1], right), Texts(SITES[1], right)
        first, later = map(adaptive, worlds)
        later.recall(learned_of(SITES[1]))
        cold, warm = cold + worlds[0].answer(first, TOKENS), warm + worlds[1].answer(later, TOKENS)
    assert warm < 0.95 * cold


def test_a_device_that_remembers_a_faster_server_leaves_it_the_writing_at_once():
    site = replace(SLOW_SERVER, token_s=0.5)
    world = World(site)
    rule = adaptive(world)
    rule.recall(learned_of(site))
    assert rule.most(16) == 0
    assert rule.status.words.startswith("not drafting: the server alone is faster")


def test_a_machine_that_has_changed_is_followed():
    """Draft tokens take ten times as long as remembered, and the server is fifty times as fast."""
    world = World(Site(0.12, 0.001, 0.0026, 0.7))
    rule = adaptive(world)
    rule.recall(learned_of(SLOW_SERVER))
    world.run(rule, 70)
    best = 1 / world.site.step_s
    assert world.run(rule, 30) > 0.9 * best


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path))
    return tmp_path / "draft-lengths"


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def experienced() -> Adaptive:
    rule = Adaptive(board=BoardState)
    rule.recall(learned_of(SLOW_SERVER))
    return rule


def remembering(clock=None, **options) -> tuple[LengthMemory, Adaptive]:
    """A device that has just started."""
    memory, rule = LengthMemory(DeviceConfig(**options), clock or Clock()), Adaptive(board=BoardState)
    memory.recall(rule, tiny_info(), "llamacpp")
    return memory, rule


def kept_by(rule: Adaptive, clock=None, **options) -> None:
    remembering(clock, **options)[0].keep(rule, ends=True)


def test_a_device_goes_on_where_it_ended(cache):
    rule = experienced()
    kept_by(rule)
    (file,) = cache.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size < MOST_BYTES
    again = remembering()[1].learned().as_json()
    for name, numbers in rule.learned().as_json().items():
        if name != "server":  # the first to change
            assert again[name] == pytest.approx(numbers, rel=1e-3)
    other, cold = remembering(server="127.0.0.1:7412")[1], Adaptive(board=BoardState)
    assert other.learned() is cold.learned() is None
    assert remembering(rule="ratio")[1].learned() is remembering(draft_model="x.gguf")[1].learned() is None


def test_the_file_has_numbers_only(cache):
    kept_by(experienced(), server="secret.example:7411", draft_model="/home/anna/model.gguf")
    (file,) = cache.iterdir()
    document = json.loads(file.read_text())
    assert document.pop("version") == 1
    assert document.pop("seconds") == 1e9
    assert document.keys() == {"learned"}
    assert document["learned"].keys() == COUNTS.keys()
    assert all(isinstance(number, float) for each in document["learned"].values() for number in each)
    assert "anna" not in file.name and "secret" not in file.name


def test_what_was_learned_long_ago_counts_less(cache):
    clock = Clock()
    kept_by(experienced(), clock)
    first = remembering(clock)[1].learned()
    clock.now += HALF_LIFE_S
    later = remembering(clock)[1].learned()
    assert sum(later.tries) == pytest.approx(sum(first.tries) / 2)
    assert later.times[1] == pytest.approx(first.times[1] / 2)
    assert later.token_s == first.token_s
    clock.now -= 10 * HALF_LIFE_S  # a clock that was set back
    assert sum(remembering(clock)[1].learned().tries) == pytest.approx(sum(first.tries))


GOOD = json.dumps({"version": 1, "seconds": 1e9, "learned": learned_of(SLOW_SERVER).as_json()})


def changed(**fields) -> str:
    document = json.loads(GOOD)
    document["learned"] |= fields
    return json.dumps(document)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 5000,
        "1" * 5000,
        '"text"',
        GOOD[:-20],
        GOOD.replace('"version": 1', '"version": 2'),
        GOOD.replace('"seconds": 1000000000.0', '"seconds": "x"'),
        GOOD.replace('"seconds": 1000000000.0', '"seconds": NaN'),
        json.dumps({"version": 1, "seconds": 1e9}),
        json.dumps({"version": 1, "seconds": 1e9, "learned": {}}),
        changed(more=[1.0]),
        changed(tries=[]),
        changed(tries=[1.0] * 31),
        changed(tries=["1"] * 32),
        changed(hits=[1e6] * 32),
        changed(times=[-1.0] * 11),
        changed(times=[0.0] * 11),
        changed(times=[1e9] * 11),
        changed(times=[math.nan] * 11),
        changed(server=[1.0]),
        changed(token_s=1.0),
        '{"more": "' + MOST_BYTES * "a" + '"}',
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_with_a_line_and_written_anew(cache, caplog, content):
    kept_by(experienced())
    (file,) = cache.iterdir()
    file.write_text(content)
    memory, rule = remembering()
    rule.most(8)
    assert rule.learned() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(file) in caplog.text and "learned anew" in caplog.text
    memory.keep(experienced(), ends=True)
    assert remembering()[1].learned() is not None


def test_bytes_that_are_no_text_are_ignored(cache):
    kept_by(experienced())
    (file,) = cache.iterdir()
    file.write_bytes(b"\xff\xfe\x00")
    assert remembering()[1].learned() is None


def test_it_is_written_now_and_then_and_only_when_something_was_learned(cache):
    clock = Clock()
    memory, _ = remembering(clock)
    memory.keep(Adaptive(board=BoardState), ends=True)
    memory.keep(FixedLength(4), ends=True)
    assert not cache.exists()
    rule = experienced()
    memory, _ = remembering(clock)
    memory.keep(rule)
    assert not cache.exists()
    clock.now += EVERY_S
    memory.keep(rule)
    (file,) = cache.iterdir()
    file.unlink()
    clock.now += EVERY_S
    memory.keep(rule)
    assert not file.exists()  # nothing new


def test_two_devices_at_once_leave_a_whole_file(cache):
    rules, failures = [experienced(), experienced()], []

    def work(rule):
        try:
            for _ in range(50):
                kept_by(rule)
                if remembering()[1].learned() is None:
                    failures.append("half a file")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rule,)) for rule in rules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(list(cache.iterdir())) == 1


def test_the_oldest_of_many_files_are_forgotten(cache):
    rule = experienced()
    for port in range(MOST_FILES + 3):
        kept_by(rule, server=f"127.0.0.1:{port + 1}")
    assert len(list(cache.iterdir())) == MOST_FILES


def test_a_folder_that_cannot_be_written_costs_a_line(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "file" / "below"))
    kept_by(experienced())
    assert "cannot be kept in" in caplog.text
