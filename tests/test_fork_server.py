"""Work in a process of its own: limits that hold, cancelling that ends it, and nothing that stays behind."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opensled.core.errors import EngineError, Overloaded
from opensled.process import fork_server
from opensled.process.fork_frames import ForkLimits
from opensled.process.fork_server import STOP, Cancelled, ForkServer, OverLimit, Stop
from tests.ended import require_end
from tests.loops import block_until

LIMITS = ForkLimits(seconds=0.3, memory=64 << 20)
WAIT = b"__import__('time').sleep(600)"


@pytest.fixture
def server():
    made = ForkServer("tests.forked:python", b"held = 'setup'", LIMITS)
    yield made
    made.close()


def test_every_question_has_a_fork_of_its_own_over_one_setup(server):
    assert server.ask(b"held") == b"setup"
    first, second = (int(server.ask(b"os.getpid()")) for _ in range(2))
    assert first != second and server.ask(b"parent") == server.ask(b"os.getppid()")
    assert server.ask(b"globals().update(held=1) or held") == b"1" and server.ask(b"held") == b"setup"


@pytest.fixture
def patient():
    """Its forks answer three questions each."""
    made = ForkServer("tests.forked:python", b"", ForkLimits(LIMITS.seconds, LIMITS.memory, questions=3))
    yield made
    made.close()


def test_a_fork_answers_as_many_questions_as_it_may(patient):
    forks = [patient.ask(b"os.getpid()") for _ in range(7)]
    assert [forks.count(each) for each in dict.fromkeys(forks)] == [3, 3, 1]


def test_the_limit_of_time_is_of_each_question(patient):
    # It keeps no memory: a fork that does is replaced
    burn = b"(lambda ends: all(iter(lambda: __import__('time').process_time() < ends, False)))"
    burn += b"(__import__('time').process_time() + 0.2) and os.getpid()"
    forks = [patient.ask(burn) for _ in range(3)]
    assert len({*forks}) == 1
    with pytest.raises(OverLimit):
        patient.ask(b"sum(iter(lambda: 1, 2))")
    assert patient.ask(b"3") == b"3"


def test_a_fork_that_keeps_memory_is_replaced(patient):
    first = patient.ask(b"os.getpid()")
    patient.ask(b"globals().update(kept='a' * 40_000_000) or 1")
    assert patient.ask(b"'kept' in globals()") == b"False" and patient.ask(b"os.getpid()") != first


def test_a_fork_that_fails_or_dies_while_it_waits_is_replaced(patient):
    with pytest.raises(EngineError):
        patient.ask(b"1 / 0")
    pid = int(patient.ask(b"os.getpid()"))
    os.kill(pid, signal.SIGKILL)
    require_end(pid)
    assert int(patient.ask(b"os.getpid()")) != pid


def test_long_questions_and_answers_pass_whole(server):
    text = os.urandom(700_000).hex().encode()
    assert server.ask(b"'" + text + b"'") == text


@pytest.mark.parametrize(
    ("question", "limit"),
    [
        (b"sum(iter(lambda: 1, 2))", "0.3 s of processor time"),
        (WAIT, "0.3 s of processor time"),  # of which it used none
        (b"(0.5).hex() * 10**9", "64 MB of memory"),
        (b"bytes(10**12)", "64 MB of memory"),
        (b"os.abort()", "64 MB of memory"),  # as native code ends when an allocation fails
    ],
)
def test_a_question_beyond_its_limit_ends_alone(server, question, limit):
    parent = server.ask(b"parent")
    with pytest.raises(OverLimit, match=limit):
        server.ask(question)
    assert server.ask(b"parent") == parent, "the process behind it goes on"


def test_a_failure_is_an_error_and_not_an_answer(server):
    with pytest.raises(EngineError):
        server.ask(b"1 / 0")
    assert server.ask(b"2 + 2") == b"4"


def test_questions_of_several_threads_do_not_wait_for_each_other(server):
    server.start()
    with ThreadPoolExecutor(3) as pool:
        burning = [pool.submit(server.ask, b"sum(iter(lambda: 1, 2))") for _ in range(2)]
        assert pool.submit(server.ask, b"3").result() == b"3"
        assert not any(future.done() for future in burning)
        assert all(isinstance(future.exception(), OverLimit) for future in burning)


def test_cancelling_frees_the_thread_and_ends_the_fork(server, tmp_path):
    file, stop = tmp_path / "pid", Stop()
    question = b"open(%r, 'w').write(str(os.getpid())) and %s" % (str(file), WAIT)
    caught: list[BaseException] = []

    def ask() -> None:
        STOP.set(stop)
        try:
            server.ask(question)
        except Cancelled as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    block_until(lambda: file.exists() and file.read_text())
    stop.set()
    thread.join(30)
    assert caught and not thread.is_alive()
    require_end(int(file.read_text()))
    assert server.ask(b"held") == b"setup"


def test_a_fork_that_had_answered_when_it_was_ended_is_asked_nothing_more(patient, monkeypatch):
    """The next question would be told what ended it: that another client left."""
    stop, receive = Stop(), fork_server.receive

    def answered(pipe):
        content = receive(pipe)
        stop.set()
        return content

    first = patient.ask(b"os.getpid()")
    token = STOP.set(stop)
    with monkeypatch.context() as patched, pytest.raises(Cancelled):
        patched.setattr(fork_server, "receive", answered)
        patient.ask(b"1")
    STOP.reset(token)
    assert patient.ask(b"os.getpid()") != first


def test_a_client_that_leaves_later_ends_no_fork_that_answers_another_one(patient):
    token = STOP.set(stop := Stop())
    first = patient.ask(b"os.getpid()")
    STOP.reset(token)
    stop.set()
    assert patient.ask(b"os.getpid()") == first


def test_what_is_stopped_before_it_is_asked_is_not_waited_for(server):
    stop = Stop()
    stop.set()
    token = STOP.set(stop)
    try:
        with pytest.raises(Cancelled):
            server.ask(WAIT)
    finally:
        STOP.reset(token)


def test_a_process_that_is_killed_is_replaced(server):
    first = int(server.ask(b"parent"))
    os.kill(first, signal.SIGKILL)
    require_end(first)
    assert int(server.ask(b"parent")) != first


def test_an_answer_arrives_though_the_process_behind_the_fork_is_killed(patient):
    behind = int(patient.ask(b"parent"))
    fork = int(patient.ask(b"os.kill(parent, 9) or os.getpid()"))
    require_end(behind)
    assert int(patient.ask(b"parent")) != behind
    require_end(fork)


# By hand, or by the system where memory ends: the fork that answers, also with the process behind it.
KILLED = [b"os.kill(os.getpid(), 9)", b"[os.kill(parent, 9), os.kill(os.getpid(), 9)]"]


def _once(kill: bytes, place: Path) -> bytes:
    """Notes in a file that it was asked, and is killed; where that is there, it is true."""
    return b"os.path.exists(%r) or [open(%r, 'w').close(), %s]" % (str(place), str(place), kill)


@pytest.mark.parametrize("kill", KILLED)
def test_what_is_killed_once_is_asked_again(server, tmp_path, kill):
    assert server.ask(_once(kill, tmp_path / "asked")) == b"True"


@pytest.mark.parametrize("kill", KILLED)
def test_what_is_killed_twice_says_so_and_when_to_ask_again(server, kill):
    with pytest.raises(Overloaded, match="ended twice from outside") as refusal:
        server.ask(kill)
    assert refusal.value.retry_after > 0
    assert server.ask(b"3") == b"3"


@pytest.mark.parametrize("limits_setup", [True, False])
def test_one_that_is_killed_while_it_starts_is_no_question_beyond_its_limit(limits_setup):
    limits = ForkLimits(LIMITS.seconds, LIMITS.memory, limits_setup=limits_setup)
    server = ForkServer("tests.forked:python", b"os.kill(os.getpid(), 9)", limits)
    for ask in (server.start, lambda: server.ask(b"1")):
        with pytest.raises(Overloaded, match="ended twice from outside"):
            ask()


def test_one_that_does_not_start_in_time_says_so(monkeypatch):
    monkeypatch.setattr(fork_server, "SETUP_SECONDS", 0.5)
    with pytest.raises(EngineError, match="did not start within"):
        ForkServer("tests.forked:python", b"__import__('time').sleep(600)", LIMITS).start()


def test_the_signals_of_its_server_do_not_end_it(server):
    """A terminal and systemd send them to all processes of a service."""
    first = int(server.ask(b"parent"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(first, number)
    assert int(server.ask(b"parent")) == first


def test_nothing_stays_behind_a_server_that_is_dropped():
    server = ForkServer("tests.forked:python", b"", LIMITS)
    pid = int(server.ask(b"parent"))
    del server
    require_end(pid)


def test_a_setup_that_fails_says_why():
    with pytest.raises(EngineError, match="no such thing"):
        ForkServer("tests.forked:python", b"raise ValueError('no such thing')", LIMITS).ask(b"1")


@pytest.mark.parametrize("setup", [b"sum(iter(lambda: 1, 2))", b"x = 'a' * 10**9"])
def test_the_setup_of_a_stranger_has_the_same_limits(setup):
    limits = ForkLimits(LIMITS.seconds, LIMITS.memory, limits_setup=True)
    with pytest.raises(OverLimit):
        ForkServer("tests.forked:python", setup, limits).ask(b"1")
