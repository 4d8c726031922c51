"""`opensled run`: one command serves a model and chats with it, and leaves no process, however it ends."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.device.known_drafts import choose_drafter, draft_here
from edge_client.terminal import run_command
from edge_client.terminal.chat import Runner
from edge_client.terminal.run_config import RunConfig
from lab.training.export_gguf import write_gguf
from opensled.cli import main as cli
from opensled.cli.child_server import ChildServer
from opensled.core.errors import ModelError
from opensled.models import store
from tests.ended import require_end
from tests.loops import block_until
from tests.terminal import Screen

CTRL_C, CTRL_D = "\x03", "\x04"
TINY = ("run", "tiny", "--engine", "llamacpp", "--context", "256", "--max-tokens", "8", "--no-history")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[1]) == pid:
            found.append(int(folder.name))
    return found


def server_of(screen: Screen) -> int:
    """The process of the server, as soon as it is started."""
    return block_until(lambda: children(screen._pid), 60, "no server was started")[0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENSLED_LISTEN", "192.0.2.1:1")  # no setting of `serve` counts
    monkeypatch.setenv("OPENSLED_TOKENS", "/nowhere")


def test_a_conversation_from_one_command(cache):
    with Screen(*TINY, columns=200) as screen:
        screen.expect("starting tiny on this machine, and tiny-draft to draft for it\r\n")
        server = server_of(screen)
        screen.expect("tiny at 127.0.0.1:")
        for word in ("tiny-draft.table,", "tiny-draft-q8_0.gguf"):  # a line may end between words
            screen.expect(word)
        screen.expect("> ")
        screen.type("Turn on the kitchen light.\r")
        screen.expect("> ")
        screen.type(CTRL_D)
        assert screen.finish() == 0
        require_end(server)
    assert "error" not in screen.text and "server:" not in screen.text and "has ended" not in screen.text


def test_ctrl_c_while_it_loads_ends_all(cache):
    with Screen(*TINY) as screen:
        screen.expect("starting tiny")
        server = server_of(screen)
        screen.type(CTRL_C)
        # A shell says 130 of both. Where the interrupt meets an exec() of an import, such as that of a named tuple,
        # `python -m` ends by the signal, although it was caught (`unhandled_keyboard_interrupt` in pythonrun.c).
        assert screen.finish() in (cli.INTERRUPTED, -signal.SIGINT)
        require_end(server)


def test_the_server_notices_that_its_owner_was_killed(cache):
    with Screen(*TINY) as screen:
        screen.expect("tiny at 127.0.0.1:")
        server = server_of(screen)
        os.kill(screen._pid, signal.SIGKILL)
        require_end(server)


def test_a_server_that_dies_says_so(cache):
    with Screen(*TINY) as screen:
        screen.expect("tiny at 127.0.0.1:")
        os.kill(server_of(screen), signal.SIGKILL)
        screen.expect("the server has ended (exit code -9); Ctrl-D leaves")


def test_a_server_that_cannot_start_gives_its_reason(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    reason = r"^.*/a\.gguf is not a readable GGUF file"
    path = str(tmp_path / "a.gguf")
    with (
        pytest.raises(ModelError, match=reason),
        ChildServer("--model", path, "--engine", "llamacpp") as server,
    ):
        server.wait_ready("a.gguf")


@pytest.mark.parametrize(
    ("name", "said"),
    [("tine", "no model 'tine'; did you mean tiny? (see: "), ("./gone.gguf", "./gone.gguf is missing")],
)
def test_a_model_that_nobody_has_starts_nothing(name, said, cache, capsys, monkeypatch):
    monkeypatch.setattr(run_command, "ChildServer", None)
    assert cli.main(["run", name]) == 3
    assert said in capsys.readouterr().err


def test_what_is_missing_is_fetched_first(cache, monkeypatch):
    fetched = []
    monkeypatch.setattr(run_command, "ready", lambda name: fetched.append(name))
    monkeypatch.setattr(run_command, "ChildServer", None)
    for name in ("smollm2", "qwen2.5", "org/small-GGUF:Q4_K_M"):
        with pytest.raises(TypeError):  # there is no server to start
            run_command.run(RunConfig(name))
    assert fetched == ["smollm2", "qwen2.5", "org/small-GGUF:Q4_K_M"]


def test_a_small_draft_that_was_made_for_the_target_drafts(cache, monkeypatch):
    """For a device as for `run`; the target's own file costs as much as the target, but answers better alone."""
    for name, size in (("smollm2", 100), ("smollm2-draft", 40)):
        folder = store.fetched_folder(name)
        folder.mkdir(parents=True)
        (folder / f"{name}.gguf").write_bytes(b"GGUF" * size)
    assert draft_here("smollm2") == "smollm2-draft"
    for offline, model in (
        ("stall", "smollm2-draft"),
        ("provisional", "smollm2-draft"),
        ("local-only", "smollm2"),
    ):
        assert choose_drafter(DoctorConfig(offline=offline), "smollm2").draft_model == model
    store.fetched_folder("smollm2-draft").rename(store.fetched_folder("smollm2-away"))
    assert draft_here("smollm2") == choose_drafter(DoctorConfig(), "smollm2").draft_model == ""


def test_what_to_expect_of_a_fetched_model_is_said_once(cache, capsys, monkeypatch):
    monkeypatch.setattr(run_command, "ready", lambda name: None)
    monkeypatch.setattr(run_command, "ChildServer", None)
    with pytest.raises(TypeError):  # there is no server to start
        run_command.run(RunConfig("smollm2"))
    assert capsys.readouterr().err.count("135 million parameters") == 1


def test_notes_of_the_server_are_seen_while_it_loads(cache, tmp_path):
    write_gguf(store.model_path("tiny"), tmp_path / "small-q8_0.gguf", "Q8_0")
    with Screen("run", str(tmp_path / "small-q8_0.gguf"), *TINY[2:], columns=300) as screen:
        screen.expect("note: small-q8_0.gguf runs in 16 bits a weight")
        screen.expect("> ")
        screen.type(CTRL_D)
        assert screen.finish() == 0
    assert "server:" not in screen.text


async def _deaf() -> str:
    """Ends although it was cancelled."""
    with contextlib.suppress(asyncio.CancelledError):
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(10)
    return "an answer"


def test_ctrl_c_that_comes_as_work_ends_is_heard():
    with Runner() as runner, pytest.raises(KeyboardInterrupt):
        runner.run(_deaf())


async def _sudden() -> str:
    """Is interrupted in its last step, which no wait follows."""
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGINT)
    return "an answer"


def test_ctrl_c_in_the_last_step_is_heard():
    before = signal.getsignal(signal.SIGINT)
    with Runner() as runner, pytest.raises(KeyboardInterrupt):
        runner.run(_sudden())
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_an_import_swallows_is_heard():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), run_command.interrupts_kept():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        heard_of_it = True
    assert heard_of_it and signal.getsignal(signal.SIGINT) is before
    with run_command.interrupts_kept():
        pass
