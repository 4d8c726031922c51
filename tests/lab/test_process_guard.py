"""Whatever ends a program, its processes end with it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lab.testbed import process_guard, processes
from lab.testbed.process_guard import below, cpu_s
from tests.ended import ENDS_S, left_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# A program with a process that never ends and has one below it; it says when both are there.
CHILD = "import signal, subprocess; subprocess.Popen(['sleep', '1000']); print('there', flush=True); signal.pause()"
PROGRAM = f"""
import subprocess, sys, time
from lab.testbed import processes
from lab.testbed.process_guard import guard
processes.END_S = 0.5
processes.exit_on_signals()
child = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdout=subprocess.PIPE)
guard(child.pid)
child.stdout.readline()
print('ready', flush=True)
while True:
    try:
        time.sleep(1000)
    except BaseException:
        if 'stubborn' not in sys.argv:
            raise
"""


def started(*words: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The program, and everything below it."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    _, *others = below(program.pid)
    assert len(others) == 3  # its guard, its process, and one below that
    return program, others


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, ()), (signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGTERM, ("stubborn",))],
)
def test_nothing_outlives_a_program(number, words):
    program, others = started(*words)
    program.send_signal(number)
    assert left_of(others) == []
    assert abs(program.wait(ENDS_S)) in (number, 128 + number)


def test_a_stopped_process_ends_too():
    program, others = started()
    child = next(pid for pid in others if len(below(pid)) == 2)
    os.kill(child, signal.SIGSTOP)
    program.kill()
    assert left_of(others) == []
    program.wait(ENDS_S)


def test_another_process_under_the_same_number_is_left_alone(monkeypatch):
    with subprocess.Popen(["sleep", "1000"]) as other:
        times = iter((7, 8))
        monkeypatch.setattr(process_guard, "_began", lambda pid: next(times))
        monkeypatch.setattr(sys, "stdin", [f"{other.pid}\n"])
        process_guard.main()
        assert other.poll() is None
        times = iter((7, 7))
        process_guard.main()
        assert other.wait(ENDS_S) == -signal.SIGKILL


def test_an_ignored_signal_stays_ignored():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
        processes.exit_on_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is processes._exit
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_processor_time_is_that_of_a_process_and_all_below_it():
    before, child = cpu_s(os.getpid()), "while True: pass"
    with subprocess.Popen([sys.executable, "-c", child]) as busy:
        deadline = time.monotonic() + ENDS_S
        while cpu_s(busy.pid) < 0.05 and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = cpu_s(os.getpid())
        busy.kill()
    assert seen >= before + 0.05


def test_a_process_heeds_hangups_under_nohup(tmp_path):
    (tmp_path / "told.py").write_text("import signal; print(signal.getsignal(signal.SIGHUP).name)")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.Process([], module="told", environment={"PYTHONPATH": str(tmp_path)}) as told:
            told.process.wait()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told.lines == ["SIG_DFL"]
