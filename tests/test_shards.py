"""The processes of a target's shards: who dies, hangs or fails is named, and none stays behind. No model is loaded.

Run: pytest tests/test_shards.py
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opensled.errors import EngineLost, UsageError
from opensled.messages import DraftToken
from tests.fakes import FakeEngine
from tests.test_kv_pressure import PARAMS, Pressed
from verify_server import step
from verify_server.acceptance.base import AcceptanceResult, DraftCheck
from verify_server.engine import shard_links
from verify_server.engine.shard import Shard
from verify_server.engine.shard_links import ShardLinks

PATIENCE = 20.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never comes true"
        time.sleep(0.02)


def gone(process: int) -> bool:
    """Whether it has ended; who is nobody's child any more is read by the system."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def lost() -> threading.Event:
    return threading.Event()


@pytest.fixture
def links(lost: threading.Event) -> Iterator[ShardLinks]:
    made = ShardLinks(3, silent=PATIENCE, on_loss=lost.set)
    yield made
    made.close()
    assert all(map(gone, made.processes)) and not made.meeting.parent.exists()


def test_a_shard_that_dies_is_named_and_ends_all(links: ShardLinks, lost: threading.Event) -> None:
    os.kill(links.processes[1], signal.SIGKILL)
    with pytest.raises(
        EngineLost, match=rf"shard 2 of 3 \(process {links.processes[1]}\) was ended by signal 9"
    ):
        links.await_ready()
    assert lost.is_set()
    until(lambda: all(map(gone, links.processes)))
    with pytest.raises(EngineLost, match="shard 2 of 3"), links.call("forward"):
        pytest.fail("no call begins without all shards")


def test_an_unknown_call_is_an_error_of_that_shard(links: ShardLinks) -> None:
    with (
        pytest.raises(EngineLost, match=r"shard [12] of 3 .* failed: AttributeError"),
        links.call("forward", ()),
    ):
        raise ConnectionError("a sum fails, for the other shard is gone")


def test_a_first_shard_that_fails_ends_the_others(links: ShardLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_links, "NOTICE", 0.1)
    with pytest.raises(EngineLost, match="shard 0 of 3 failed: RuntimeError"), links.call("__repr__"):
        raise RuntimeError("no memory")
    until(lambda: all(map(gone, links.processes)))


def test_a_shard_that_hangs_is_named() -> None:
    links = ShardLinks(2, silent=1.5)
    try:
        os.kill(links.processes[0], signal.SIGSTOP)
        with pytest.raises(EngineLost, match=r"shard 1 of 2 .* does not answer any more"):
            links.await_ready()
        until(lambda: all(map(gone, links.processes)))
    finally:
        links.close()


def test_a_call_that_never_ends_is_ended() -> None:
    links = ShardLinks(2, silent=PATIENCE, longest_call=0.3)
    try:
        with pytest.raises(EngineLost, match="did not end a call in 0 s"), links.call("__repr__"):
            until(lambda: all(map(gone, links.processes)))
    finally:
        links.close()


def test_shards_end_with_the_process_that_started_them() -> None:
    program = (
        "import time; from verify_server.engine.shard_links import ShardLinks; links = ShardLinks(3); "
        "print(links.meeting.parent, *links.processes, flush=True); time.sleep(60)"
    )
    first = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    folder, *words = first.stdout.readline().split()
    processes = [int(word) for word in words]
    assert len(processes) == 2 and not any(map(gone, processes))
    first.kill()
    first.wait()
    first.stdout.close()
    until(lambda: all(map(gone, processes)) and not Path(folder).exists())


def test_more_than_two_shards_add_in_an_order_that_depends_on_the_batch() -> None:
    assert [Shard(0, 2).numerics(level) for level in ("auto", "exact", "fast")] == ["auto", "exact", "fast"]
    assert [Shard(0, 3).numerics(level) for level in ("auto", "fast")] == ["fast", "fast"]
    with pytest.raises(UsageError, match="--shards 2, or --numerics fast"):
        Shard(0, 3).numerics("exact")


class Lost(FakeEngine):
    """An engine that loses a shard, in a step or when it puts the KV of a tree in order."""

    error = EngineLost("shard 1 of 2 (process 7) was ended by signal 9")

    def forward(self, segments):
        raise self.error

    def compact(self, blocks, moves):
        raise self.error


def test_a_lost_engine_ends_the_loop_and_no_text() -> None:
    """Readers lose their streams, and continue elsewhere; an error would end their texts."""
    pressed = Pressed(0.0)
    pressed.loop.machine.target.engine = Lost(num_blocks=10, block_size=4)
    with pytest.raises(EngineLost, match="shard 1 of 2"):
        asyncio.run(asyncio.wait_for(pressed.loop.run(), PATIENCE))
    pressed.loop.close()
    assert len(pressed.loop.machine.sessions) == 2 and not pressed.loop.machine.stats.failures


def test_a_shard_lost_between_step_and_compaction_is_no_error_of_one_session() -> None:
    pressed = Pressed(0.0)
    machine = pressed.loop.machine
    [item, *_] = machine.fit(machine.plan(0.0).slices, 0.0)
    twins = DraftCheck((DraftToken(5), DraftToken(6)), 30, PARAMS, b"", parents=(-1, -1))
    with pytest.raises(EngineLost):
        step._compact(
            Lost(num_blocks=10, block_size=4), item._replace(check=twins), AcceptanceResult(1, 7, path=(1,))
        )
