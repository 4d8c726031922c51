"""The file in which a device keeps what it learned of draft lengths until its next start."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from dataclasses import replace

import pytest

from edge_client.config import DeviceConfig
from edge_client.device import connect
from edge_client.length_memory import EVERY_S, HALF_LIFE_S, MOST_BYTES, MOST_FILES, LengthMemory
from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.learned_sums import COUNTS
from edge_client.prompt_config import GenerateConfig
from hw_profiles.sysfs import BoardState
from opensled.answer import Task
from tests.devices import OracleFactory, read
from tests.fake_target import _Text as TinyText
from tests.gated_target import SlowEngine
from tests.real_drafts import SLOW_SERVER, learned_of
from tests.serving import GREEDY, PROMPT, serving
from tests.tiny_drafts import tiny_info


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


@pytest.mark.parametrize(
    ("options", "remembers"), [({}, True), ({"remember": False}, False), ({"background": True}, False)]
)
def test_a_device_remembers_unless_it_is_told_not_to(cache, options, remembers):
    async def scenario():
        engine = SlowEngine(num_blocks=100)  # slow enough for drafts to come in time
        async with serving(engine=engine, text=TinyText()) as (_, address):
            config = GenerateConfig(
                server=address, drafter="llamacpp", draft_model="tiny-draft", threads=1, **options
            )
            before = await connect(config)
            before._factory = OracleFactory()
            await read(before, Task(PROMPT, replace(GREEDY, max_tokens=32)))
            await before.close()
            after = await connect(config)
            assert (after._lengths.learned() is not None) == cache.exists() == remembers
            await after.close()

    asyncio.run(scenario())


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
