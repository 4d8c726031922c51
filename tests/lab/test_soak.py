"""The soak: its checker notices every kind of damage, its faults bite, its schedule holds; and a short run."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adapt.kept.kept_store import KeptStore, KeptText
from hw_profiles import catalog
from lab.testbed.link_relay import Relay
from lab.testbed.process_guard import below
from lab.testbed.soak.__main__ import main
from lab.testbed.soak.account import Account, Suspect, TextSuspect
from lab.testbed.soak.check import Damage, damage
from lab.testbed.soak.clocks import StepClock
from lab.testbed.soak.edge_reader import EdgeLost, _error, _Reply
from lab.testbed.soak.faults import FAULTS, Ground, _victim, faults_of
from lab.testbed.soak.judge import BOUNDS, Judge
from lab.testbed.soak.kept_text import check_kept
from lab.testbed.soak.kinds import KINDS
from lab.testbed.soak.nemesis import ROUNDS, Nemesis, Schedule
from lab.testbed.soak.picture_questions import picture_questions
from lab.testbed.soak.questions import Course, Question, Truth, questions
from lab.testbed.soak.readers import LONGEST_READING_S, Reader
from lab.testbed.soak.report import IN_ALL, PER_TARGET, Report
from lab.testbed.soak.run import Soak
from lab.testbed.soak.target import FLEET, Place, private_file
from lab.testbed.soak.targets import target_of
from lab.testbed.soak.victims import paused, without_disk, without_memory
from opensled.core.errors import OpenSledError, Overloaded
from opensled.core.messages import Limits, ModelInfo
from tests.emulated import Clock
from tests.ended import left_of

TRUTH = (5, 6, 7, 8, 9, 10)


@pytest.mark.parametrize(
    ("told", "complete", "found"),
    [
        (TRUTH, True, Damage()),
        (TRUTH[:3], False, Damage()),
        ((), False, Damage()),
        (TRUTH[:3], True, Damage(lost=3)),
        ((5, 6, 9, 10), True, Damage(lost=2)),
        ((5, 6, 9), False, Damage(lost=2)),
        ((5, 6, 7, 6, 7, 8, 9, 10), True, Damage(duplicated=2)),
        ((5, 5), False, Damage(duplicated=1)),
        ((5, 7, 6, 8, 9, 10), True, Damage(reordered=1)),
        ((5, 6, 99, 8, 9, 10), True, Damage(wrong=1)),
        ((*TRUTH, 99), True, Damage(wrong=1)),
        ((*TRUTH, 99), False, Damage(wrong=1)),
    ],
)
def test_damage_is_noticed_and_named(told, complete, found):
    assert damage(told, TRUTH, complete) == found


def test_a_reply_over_the_api_is_held_against_its_text():
    reply = _Reply("one two")
    reply.absorb({"choices": [{"delta": {"content": "one"}, "finish_reason": None}]})
    assert reply.right
    reply.done = True
    assert not reply.right and reply.damage.wrong
    reply.absorb({"choices": [{"delta": {"content": " two"}, "finish_reason": "stop"}]})
    assert reply.right
    with pytest.raises(Overloaded):
        reply.absorb({"error": {"code": "overloaded", "message": "full"}})
    assert type(_error({"code": None, "message": "odd"})) is OpenSledError


def test_errors_and_stalls_count_by_what_was_broken_then():
    clock = Clock()
    account = Account(clock)
    clock.now = 1.0
    account.waited(since=0.5)
    window = account.fault("kill", answers=2)
    clock.now = 9.0
    account.waited(since=2.0)
    account.failed("unreachable", "away", True, since=2.0)
    account.failed("loading", "back, but not ready", False, since=8.0)
    window.end = 10.0
    assert account.longest_stall == 0.5 and account.stalls() == {"kill": 7.0}
    assert account.wrongs == [] and account.broken == {"unreachable": 1}
    account.failed("internal", "a bug", True, since=2.0)
    account.failed(EdgeLost.code, "nobody struck it", False, since=2.0)
    clock.now = 20.0
    account.failed("unreachable", "nothing is broken", False, since=15.0)
    assert len(account.wrongs) == 3


def test_a_reader_of_an_answer_that_stood_still_asks_again_before_long():
    clock = Clock()

    class Waiting(Reader):
        async def _ask(self, number: int) -> None:
            clock.now += number

        async def close(self) -> None: ...

    reader = Waiting(None, None, Account(clock), 0)
    assert [asyncio.run(reader._ask_safely(seconds)) for seconds in (2, 60)] == [2, LONGEST_READING_S]


def test_a_report_is_right_only_if_all_answers_were():
    account = Account(Clock())
    assert not Report({"one": account}, [], 1.0).right  # nobody answered
    account.answers = 1
    assert Report({"one": account}, [], 1.0).right
    account.damages.append(Damage(lost=1))
    report = Report({"one": account}, ["kill"], 1.0)
    assert not report.right and report.as_json()["lost"] == 1 and "kill" in report.table()


def test_only_a_target_that_keeps_text_is_told_to_delete_it():
    keeps = [kind for kind in KINDS if "deletion" in faults_of(kind, FAULTS)]
    assert keeps == [kind for kind in KINDS if kind.keeps] != []


@pytest.mark.parametrize(
    ("ids", "keeps", "said"),
    [
        ((1, 2, 3, 4), FLEET, ""),
        ((1, 2, 3, 9), FLEET, "is no truth"),
        ((1, 2, 3), "guest", "which did not agree"),
    ],
)
def test_kept_text_is_held_against_the_truth(tmp_path, ids, keeps, said):
    target = SimpleNamespace(kept=tmp_path)
    course = SimpleNamespace(truths=[SimpleNamespace(prompt_ids=(1, 2), ids=(3, 4, 5))])
    rows = np.zeros((len(ids) - 2, 32), np.uint32), np.zeros((len(ids) - 2, 32), np.float16)
    KeptStore(tmp_path).write(KeptText(keeps, 1.0, ids, 2, *rows), "words")
    account = Account(Clock())
    check_kept(target, course, account)
    assert account.wrongs == [] if not said else said in account.wrongs[0]
    assert account.notes["texts kept in the end"] == 1


@pytest.mark.parametrize("at_once", [2, len(KINDS)])  # on two cores, and on enough
def test_an_hour_injects_every_kind_often_enough(at_once):
    groups = Soak(60, 0, KINDS, at_once=at_once).groups
    schedule = Schedule(3600 / len(groups), len(FAULTS))
    strikes = sum(not schedule.over(number, number * schedule.slot) for number in range(1000))
    assert strikes == ROUNDS * len(FAULTS)
    assert ROUNDS >= PER_TARGET and ROUNDS * len(KINDS) >= IN_ALL


def test_every_target_is_in_one_group():
    for at_once in range(1, len(KINDS) + 2):
        groups = Soak(60, 0, KINDS, at_once=at_once).groups
        assert [kind for group in groups for kind in group] == list(KINDS)
        assert max(map(len, groups)) == min(at_once, len(KINDS))


def test_a_short_run_ends_in_time():
    schedule = Schedule(60, len(FAULTS))
    assert not schedule.full and not schedule.over(5, 59.0) and schedule.over(5, 61.0)


def test_every_kind_comes_once_in_a_round():
    order = Nemesis.order(list(FAULTS), random.Random(1))
    for _ in range(3):
        assert {next(order) for _ in FAULTS} == set(FAULTS)


def test_the_page_names_every_fault():
    page = (Path(__file__).parents[2] / "docs/testbed.md").read_text()
    rows = page.partition("| fault |")[2].partition("\n\n")[0].splitlines()[2:]
    floods = {name for name in FAULTS if name.startswith("flood ")}
    named = {name for row in rows for name in row.split(" | ")[0].strip("| ").split(", ")}
    assert named == {*FAULTS} - floods | {"five floods"} and len(floods) == 5


def child(code: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code], env={**os.environ, **(environment or {})}, **pipes
    )


def say(process: subprocess.Popen[str]) -> str:
    """Have it do its work once more; what it says to that."""
    print(file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def test_a_clock_steps_and_monotonic_time_does_not(tmp_path):
    clock = StepClock(tmp_path / "clock")
    code = "import time\nwhile True: input(); print(time.time(), time.time_ns() / 1e9, time.monotonic())"
    with child(code, clock.environment) as process:
        seen = []
        for step in (0, 86_400, -120, 0):
            clock.step(step)
            seen.append([float(word) for word in say(process).split()])
        process.kill()
    wall, nanoseconds, monotonic = zip(*seen)
    assert [round(each - mono - wall[0] + monotonic[0], -1) for each, mono in zip(wall, monotonic)] == [
        *(0, 86_400, -120, 0)
    ]
    assert all(abs(a - b) < 1 for a, b in zip(wall, nanoseconds)) and list(monotonic) == sorted(monotonic)


def test_a_full_disk_and_no_memory_are_felt_and_end(tmp_path):
    code = f"""
while True:
    kind = input()
    try:
        with open({str(tmp_path / "log")!r}, "ab") as log:
            log.write(b"x")
        room = bytearray(200_000_000)
        print("fine")
    except (OSError, MemoryError) as error:
        print(type(error).__name__)
"""
    with child(code) as process:
        assert say(process) == "fine"
        with without_disk([process.pid]):
            assert say(process) == "OSError"
        with without_memory([process.pid]):
            assert say(process) == "MemoryError"
        assert say(process) == "fine"
        process.kill()


def test_a_paused_process_goes_on_afterwards():
    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]

    with child("input(); input()") as process:
        with paused([process.pid]):
            assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT) and state(process.pid) == "T"
        assert os.waitid(os.P_PID, process.pid, os.WCONTINUED).si_status == signal.SIGCONT
        process.kill()


async def test_a_link_changes_and_goes_dark_under_a_connection():
    async def echo(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def round_trip(reader, writer) -> float:
        clock = asyncio.get_running_loop().time
        begun = clock()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        return clock() - begun

    peers = []

    async def greet(reader, writer):
        peers.append(writer.get_extra_info("peername")[0])
        await echo(reader, writer)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    to = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Relay(catalog.link("ethernet"), to, source="127.1.2.3") as relay:
        host, _, port = relay.address.rpartition(":")
        ends = await asyncio.open_connection(host, int(port))
        await round_trip(*ends)
        relay.black_out(0.3)
        assert await round_trip(*ends) >= 0.28
        relay.become(catalog.link("wan-110"))
        assert await round_trip(*ends) >= 0.08
        ends[1].close()
    assert peers == ["127.1.2.3"]


def soak(tmp_path: Path, *flags: str) -> dict:
    """The figures of a soak that finds everything right."""
    out = tmp_path / "soak.json"
    assert main(["--out", str(out), *flags]) == 0
    return json.loads(out.read_text())


def test_seconds_of_it_on_a_gguf_target(tmp_path):
    flags = ("--minutes", "0.05", "--targets", "llamacpp-goodput", "--faults", "reset", "--questions", "2")
    found = soak(tmp_path, *flags)
    assert found["right"] and found["answers"] >= 4 and found["faults"]["reset"] >= 1
    assert found["lost"] == found["duplicated"] == found["reordered"] == found["wrong"] == 0


@pytest.mark.long
def test_minutes_of_it_on_both_engines_with_all_faults(tmp_path, cold_start):
    found = soak(tmp_path, "--minutes", "2", "--targets", "torch-goodput,llamacpp-goodput")
    assert found["right"] and found["tokens"] >= 500
    assert len(found["faults"]) >= len(FAULTS) // 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "faults", "questions"),
    [("relay", "kill,pause,flood of sure drafts", "4"), ("pictures", "kill,pause,reset", "6")],
)
def test_a_minute_of_it_elsewhere(target, faults, questions, tmp_path, cold_start):
    words = ("--targets", target, "--faults", faults, "--questions", questions)
    found = soak(tmp_path, "--minutes", "1", *words)
    assert found["right"] and found["tokens"] >= 200 and found["faults"]


def test_pictures_come_twice_and_greedy_and_sampled():
    asked = picture_questions(6, seed=1)
    images = [question.opening().images for question in asked]
    assert all(len(each) == 1 for each in images) and images[1] == images[2] != images[3]
    assert [question.params.temperature for question in asked] == [0, 0.8] * 3
    assert picture_questions(6, seed=1) == asked


def test_around_a_relay_everything_can_be_struck(tmp_path):
    [kind] = [kind for kind in KINDS if kind.relay]
    tokens = private_file(tmp_path / "tokens", "a fleet\n")
    target = target_of(kind, Place(tmp_path, StepClock(tmp_path / "clock"), tokens))
    ground = Ground(target, (), Account(Clock()), "", random.Random(0))
    struck = set()
    for ground.turn in range(ROUNDS):
        struck.add(_victim(ground, ground.account.fault("kill", 1), ()))
    assert struck == set(target.parts) and target.main == "relay"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_a_soak_that_is_ended(tmp_path, number):
    """It is ended while its server is loading."""
    words = ["--targets", "llamacpp-goodput", "--questions", "2", "--logs", str(tmp_path)]
    command = [sys.executable, "-m", "lab.testbed.soak", *words]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        while not (log := list(tmp_path.glob("*/*/server.log"))) or not log[0].stat().st_size:
            assert running.poll() is None
            time.sleep(0.05)
        others = below(running.pid)[1:]
        running.send_signal(number)
        assert len(others) >= 2 and left_of(others) == []


def test_words_of_no_use_are_an_error(capsys):
    assert main(["--targets", "relay", "--at-once", "0"]) == 1
    assert "--at-once 0: at least one" in capsys.readouterr().err
    assert main(["--targets", "abacus"]) == 1
    assert "unknown name 'abacus'; choose from torch-goodput" in capsys.readouterr().err


# -- the judge ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged():
    """A judge, and questions whose truths the reference itself has written."""
    judge = Judge(KINDS[0])
    reference = judge.reference
    asked = [Question({**question.body, "max_tokens": 12}) for question in questions(4, seed=0)]
    truths = []
    for question in asked:
        prompt, params = reference.render_chat(question.body["messages"]), question.params
        sampling = {"temperature": params.temperature, "seed": params.seed, "max_tokens": params.max_tokens}
        ids, reason = reference.generate(prompt, **sampling)
        truths.append(Truth(tuple(prompt), tuple(ids), reason, reference.decode(ids)))
    limits = Limits(max_draft=8, context_length=1024)
    info = ModelInfo("tiny", 2048, "", tuple(reference.eos_ids), limits, (), "exact", "", "", True)
    return judge, Course(asked, truths, info)


@pytest.mark.parametrize("engine", ["torch", "llamacpp"])
def test_the_judge_finds_what_the_target_would_not_have_written(judged, engine):
    judge, course = judged
    assert judge.truths(course, engine) == []
    account = Account(Clock())
    for number, truth in enumerate(course.truths):
        told = (*truth.ids[:3], truth.ids[3] + 1, *truth.ids[4:])
        account.suspects.append(Suspect(number, told, True, damage(told, truth.ids, True)))
    judge.settle(account, course, engine)
    assert len(account.wrongs) == len(account.damages) == 4 and account.flips == 0


def runner_up(judge, question, length):
    """A text that takes the second choice first, and by how much the first one led."""
    reference, prompt = judge.reference, judge.reference.render_chat(question.body["messages"])
    row = reference.logits(prompt)[0]
    first, second = np.argsort(row)[::-1][:2]
    ids, _ = reference.generate([*prompt, int(second)], temperature=0, max_tokens=length - 1)
    return reference.decode([int(second), *ids]), float(row[first] - row[second])


def test_the_judge_follows_answers_of_which_it_has_the_text_alone(judged, monkeypatch):
    """At level `fast` a near tie may fall otherwise: what the reference could have written is no damage, and what
    broke off must begin like it."""
    judge, course = judged
    number = next(n for n, question in enumerate(course.questions) if not question.params.temperature)
    text, lead = runner_up(judge, course.questions[number], 12)
    assert text != course.truths[number].text

    def settled(engine, *suspects):
        account = Account(Clock())
        account.text_suspects += [
            TextSuspect(number, told, complete, Damage(wrong=1)) for told, complete in suspects
        ]
        judge.settle(account, course, engine)
        return len(account.wrongs), len(account.damages), account.flips

    monkeypatch.setitem(BOUNDS, "llamacpp", lead * 1.001)
    assert settled("llamacpp", (text[:5], False), (text, True), (text, True)) == (0, 0, 1)
    assert settled("llamacpp", (text[:5], False)) == (1, 1, 0)  # of what, nobody knows
    assert settled("llamacpp", (text + "!", True), (text[:-1] + "\0", True)) == (2, 2, 0)
    assert settled("torch", (text, True)) == (1, 1, 0)
    monkeypatch.setitem(BOUNDS, "llamacpp", lead * 0.999)
    assert settled("llamacpp", (text, True)) == (1, 1, 0)
