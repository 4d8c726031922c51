"""The attack program: what attackers send, what a victim notes, what is written."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from lab.benchmarks.attacks import frames
from lab.benchmarks.attacks.__main__ import QUICK, main
from lab.benchmarks.attacks.connection import Connection, Peer
from lab.benchmarks.attacks.document import document, table
from lab.benchmarks.attacks.kinds import ATTACKS
from lab.benchmarks.attacks.measured import Outcome, Windows
from lab.benchmarks.attacks.victim import Arrival, Record
from lab.benchmarks.program import SPAWN
from opensled.core.errors import UsageError
from tests.loops import in_loop
from tests.serving import TENANTS, again, finish, linked, serving
from verify_server.admission.session_manager import SessionLimits

ENOUGH = 1  # units that an attack does before it is stopped


@in_loop
async def attacked(name: str) -> Counter[str]:
    """One connection's tally of this attack on a fake target; the server still answers another tenant afterwards."""
    limits = SessionLimits(max_sessions=64, max_draft=8, linger=0.05)
    async with serving(tenants=TENANTS, limits=limits) as (_, address):
        tally: Counter[str] = Counter()
        attack, peer = ATTACKS[name], Peer(address, "a good token", "127.0.0.2")
        running = lambda: tally[attack.unit] < ENOUGH  # noqa: E731
        await asyncio.to_thread(again, attack.work, peer, running, tally)
        async with linked(address, token="another token") as link:
            assert len((await finish(link))[1]) == 20
        return tally


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_reaches_a_server(name):
    assert attacked(name)[ATTACKS[name].unit] >= ENOUGH


async def test_a_connection_sends_more_than_one_window_and_hears_the_answer():
    async with serving(tenants=TENANTS) as (manager, address):
        heard = await asyncio.to_thread(_long_message, Peer(address, "a good token"))
        assert heard and manager.stats.refused["invalid_request"] == 1


def _long_message(peer: Peer) -> bool:
    with Connection(peer, lambda: True) as connection:
        stream = connection.call()
        assert connection.send(stream, b"\x0a" * (4 * frames.FIRST_WINDOW))
        return connection.wait_for_answer(stream)


async def test_a_wrong_token_ends_a_stream_and_nothing_more():
    async with serving(tenants=TENANTS) as (manager, address):
        peer = Peer(address, "a good token")

        def refused():
            with Connection(peer, lambda: True) as connection:
                stream = connection.call(peer.block("a bad token"))
                return connection.wait_for_end(stream)

        assert await asyncio.to_thread(refused)
        assert manager.stats.refused == {"unauthorized": 1}


# -- what the victim notes ----------------------------------------------------------------------------------------


def test_rates_stalls_and_waits_are_of_their_window():
    record = Record([Arrival(1.0, 2, 0), Arrival(1.5, 2, 0), Arrival(4.0, 4, 0), Arrival(9.0, 100, 0)])
    record.opened += [(1.0, 0.5), (3.0, 0.1), (8.0, 9.0)]
    assert record.rate(1.0, 5.0) == 2.0 and record.tokens(1.0, 5.0) == 8
    assert record.longest_stall(1.0, 5.0) == 2.5
    assert record.longest_stall(5.0, 8.0) == 3.0
    assert record.wait(0.0, 5.0) == 0.3
    assert record.wait(4.0, 5.0) is None


def test_a_reader_stalls_although_another_one_reads_on():
    record = Record([Arrival(at / 10, 1, 0) for at in range(50)] + [Arrival(1.0, 1, 1), Arrival(4.5, 1, 1)])
    assert record.longest_stall(0.0, 5.0) == 3.5


# -- what is written ----------------------------------------------------------------------------------------------


def outcome(**changed) -> Outcome:
    record = Record(right=[1.0, 2.0], wrong=[(3.0, 4)], refused=[5.0])
    figures = {
        "attack_rate": 1234.5, "before": 100.0, "during": 80.0, "work_before": 200.0, "work_during": 150.0,
        "stall_before": 0.05, "stall": 0.5, "wait_before": 0.004, "wait": None,
        "memory_before": 400.0, "memory_peak": 500.0, "memory_after": 410.0,
    }  # fmt: skip
    tally = Counter({"streams": 5, "ms": 1000})
    return Outcome("wrong token", tally, **(figures | changed), record=record)


def test_an_outcome_is_a_row_and_an_entry():
    assert table([outcome()])[-1] == (
        "| wrong token | 1,234 streams/s | 100 to 80 | 0.80 | 0.75 | 0.50 (0.05) | 4 to none | 400, +100, +10 "
        "| 4 | 1 | 0 |"
    )
    written = document("attacks", [outcome(), outcome(during=60.0)], Windows(), Path("/"), 1, {})
    assert written["figure"] == "attacks" and "front" in written["title"]
    assert written["samples"] == {"wrong token: before": [100.0, 100.0], "wrong token: during": [80.0, 60.0]}
    assert written["ratios"][0] == {
        "name": "wrong token", "ours": "wrong token: during", "against": "wrong token: before",
        "ratio": 0.7, "lowest": 0.6, "highest": 0.8, "required": 0.8,
    }  # fmt: skip
    entry = json.loads(json.dumps(written))["facts"]["attacks"][0]
    assert entry["wrong tokens"] == 4 and entry["attacker"] == {"streams": 5}
    assert entry["memory, most more during, MiB"] == 100.0


def test_an_unknown_attack_is_refused_by_name(capsys):
    assert main(["--only", "nothing"]) == UsageError.exit_code
    assert "unknown attack 'nothing'; choose from empty turns" in capsys.readouterr().err


@pytest.mark.long
def test_a_quick_run_measures_and_writes(tmp_path):
    """In a process of its own: attackers and victim pin themselves to cores."""
    process = SPAWN.Process(target=main, args=(["--quick", "--out", str(tmp_path)],))
    process.start()
    process.join()
    written = json.loads((tmp_path / "attacks.json").read_text())
    assert [each["name"] for each in written["facts"]["attacks"]] == list(QUICK)
    assert all(each["wrong tokens"] == 0 for each in written["facts"]["attacks"])
