"""What the logs look like, and what never stands in them."""

import json
import logging
import math
import os
import re
import sys
import warnings

import httpx
import pytest

from lab.testbed.processes import Process
from opensled.cli import main as cli
from opensled.core.errors import EngineError, NotFound
from opensled.models import models_command
from opensled.process import logs
from tests.commands import opensled

CHAT = "/v1/chat/completions"
SECRET = "the kitchen password is swordfish"


@pytest.fixture(autouse=True)
def _logging_as_before(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logs.configure()
    root.handlers[:] = handlers
    root.setLevel(level)


def documents(text):
    return [json.loads(line) for line in text.splitlines()]


def test_long_work_is_told_again_and_again(capsys):
    with logs.tell_long("still reading", every=0.01) as reading:
        while capsys.readouterr().err.count("still reading (0 s)\n") < 1:
            assert reading.seconds < 30
    took = reading.seconds
    capsys.readouterr()
    with logs.tell_long("short work", every=60):
        pass
    assert capsys.readouterr().err == ""
    assert reading.seconds == took > 0


def test_a_plain_line(capsys):
    logs.configure("info")
    logging.getLogger("edge_client.device.device").info("an answer of %d tokens", 7, extra={"seconds": 0.5})
    assert capsys.readouterr().err == "INFO edge_client.device.device: an answer of 7 tokens seconds=0.5\n"


def test_a_json_line(capsys):
    logs.configure("info", as_json=True)
    log = logging.getLogger("verify_server.loop")
    log.info("ä line\nbreak", extra={"code": "engine", "time": "never", "odd": {1}})
    heard = capsys.readouterr().err
    (document,) = documents(heard)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document.pop("time"))
    assert document == {
        "level": "info",
        "logger": "verify_server.loop",
        "message": "ä line\nbreak",
        "code": "engine",
        "odd": "{1}",
    }
    assert heard.isascii()


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("level", ["debug", "info"])
def test_what_an_exception_says_is_told_at_level_debug_only(capsys, level, as_json):
    """A library's words may quote what it stumbled over: a prompt. Ours do not."""
    logs.configure(level, as_json)
    words = "swordfish"
    try:
        try:
            raise KeyError(words)
        except KeyError as error:
            raise EngineError("status -3") from error
    except EngineError:
        logging.getLogger("opensled").exception("something failed")
    heard = capsys.readouterr().err
    assert (words in heard) is (level == "debug")
    assert heard.index("KeyError") < heard.index("EngineError: status -3") and "test_logs.py" in heard


def test_a_crash_and_a_warning_are_documents_too(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure(as_json=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    sys.excepthook(ValueError, ValueError("bug"), None)
    warned, crashed = documents(capsys.readouterr().err)
    assert warned["logger"] == "py.warnings" and "old" in warned["message"]
    assert crashed["level"] == "critical" and "ValueError" in crashed["exception"]


@pytest.mark.parametrize("as_json", [True, False])
def test_what_strangers_can_make_a_process_write_is_bounded(capsys, monkeypatch, as_json):
    """Warnings of one place are left out beyond a rate, and the next line says how many; no line is long."""
    logs.configure("info", as_json)
    log, long = logging.getLogger("http_api.exchange"), "a" * 60_000
    monkeypatch.setattr(logs._Stderr, "period", math.inf)
    for _ in range(1000):
        log.warning("a stranger's %s", long, extra={"method": long}, exc_info=ValueError(long))
    for _ in range(2):
        log.info("asked for", extra={"path": long})
    heard = capsys.readouterr().err
    assert heard.count("stranger's") == 20 and heard.count("left_out") == 1 and "980" in heard
    assert heard.count("asked for") == 2 and max(map(len, heard.splitlines())) < 4_000
    monkeypatch.setattr(logs._Stderr, "period", 0.0)
    for _ in range(30):
        log.warning("a time later")
    assert capsys.readouterr().err.count("a time later") == 30


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("debug", ["debug", "info", "warning", "error", "theirs"]),
        ("info", ["info", "warning", "error", "theirs"]),
        ("warning", ["warning", "error", "theirs"]),
        ("error", ["error"]),
    ],
)
def test_levels_are_ours_and_libraries_stay_at_warnings(capsys, level, seen):
    logs.configure(level, as_json=True)
    for name in logs.LEVELS:
        getattr(logging.getLogger("verify_server.anything"), name)(name)
    logging.getLogger("httpx").info("their chatter")
    logging.getLogger("httpx").warning("theirs")
    assert [document["message"] for document in documents(capsys.readouterr().err)] == seen


def test_transformers_speaks_through_our_handler(capsys):
    from transformers.utils.logging import get_logger

    from verify_server.engine.torch import loading  # noqa: F401  sets it so

    logs.configure(as_json=True)
    get_logger("transformers.anything").warning("theirs")
    (document,) = documents(capsys.readouterr().err)
    assert (document["logger"], document["message"]) == ("transformers.anything", "theirs")


def test_configuring_twice_does_not_log_twice(capsys):
    logs.configure()
    logs.configure()
    logging.getLogger("opensled").warning("once")
    assert capsys.readouterr().err.count("once") == 1


def test_the_last_word_has_the_form_of_the_logs(capsys, monkeypatch):
    def missing(config):
        if as_json:
            logs.configure(as_json=True)
        raise NotFound("no such\nthing")

    monkeypatch.setattr(models_command, "list_models", missing)
    as_json = False
    assert cli.main(["models", "list"]) == 3 and capsys.readouterr().err == "error: no such thing\n"
    as_json = True
    assert cli.main(["models", "list"]) == 3
    (document,) = documents(capsys.readouterr().err)
    assert (document["level"], document["message"]) == ("error", "no such thing")


def ask(address, prompt):
    body = {"model": "fake", "messages": [{"role": "user", "content": prompt}], "max_tokens": 8}
    return httpx.post(f"http://{address}/v1/chat/completions", json=body, timeout=60)


def test_real_processes_log_documents_without_prompts(capfd, monkeypatch):
    monkeypatch.undo()  # the processes start where `tests` is a package
    logging_flags = ["--log-json", "--log-level", "debug"]
    serve = ["serve", "--engine", "tests.fake_target:load", "--listen", "127.0.0.1:0", *logging_flags]
    with Process(serve) as server:
        arguments = ["--server", server.wait_ready(), "--drafter", "lookup", "--http", "127.0.0.1:0"]
        with Process(["edge", *arguments, *logging_flags]) as edge:
            address = edge.wait_ready()
            good, bad = ask(address, SECRET), ask(address, SECRET * 1000)
            assert (good.status_code, bad.status_code) == (200, 400)
            assert edge.stop() == 0
        assert server.stop() == 0
    heard = capfd.readouterr().err
    found = documents(heard)  # every line of both is one JSON object
    messages = {document["message"] for document in found}
    assert {"an answer is complete", "an answer ends by an error", "a stream ends by an error"} <= messages
    requests = [document for document in found if document["logger"] == "http_api.exchange"]
    assert [(line["path"], line["status"]) for line in requests] == [(CHAT, 200), (CHAT, 400)]
    answer = next(document for document in found if document["message"] == "an answer is complete")
    assert answer["finish_reason"] == "length" and answer["tokens"] == 8 and answer["seconds"] > 0
    assert "swordfish" not in heard and good.json()["choices"][0]["message"]["content"] not in heard
    for process in (server, edge):
        shown = documents("\n".join(process.lines))  # standard output, too
        assert shown[-1]["message"] == f"listening on {process.address}"


NOISE = """
import ctypes, os, subprocess, sys, warnings
def load(config):
    print("of a library", file=sys.stderr)
    warnings.warn("of Python")
    os.write(2, b"of native code\\nin two lines\\n")
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('of a child')"])
    from tests import fake_target
    return fake_target.load(config)
"""


def test_what_libraries_native_code_and_children_write_is_json_too(capfd, monkeypatch, tmp_path):
    monkeypatch.undo()
    (tmp_path / "noisy_target.py").write_text(NOISE)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    serve = ["serve", "--engine", "noisy_target:load", "--listen", "127.0.0.1:0"]
    for flags in ([], ["--log-json"]):
        with Process([*serve, *flags], environment={"PYTHONPATH": path}) as server:
            server.wait_ready()
            assert server.stop() == 0
        heard = capfd.readouterr().err
        for words in ("of a library", "of Python", "of native code", "in two lines", "of a child"):
            assert words in heard, flags
        assert heard.startswith("{") is bool(flags)
    told = {document["message"] for document in documents(heard) if document["logger"] == "stderr"}
    assert told >= {"of a library", "of native code", "in two lines", "of a child"}
    assert any(document["logger"] == "py.warnings" for document in documents(heard))


def test_an_error_of_the_command_line_is_json_and_the_last_line(capfd, monkeypatch):
    monkeypatch.undo()
    run = opensled("serve", "--log-json", "--engine", "tests.absent:load")
    assert run.returncode != 0 and documents(run.stderr)[-1]["level"] == "error"


def test_a_ready_line_is_known_in_either_form(capsys):
    logs.show_ready("127.0.0.1:1")
    logs.configure(as_json=True)
    logs.show_ready("[::1]:2")
    plain, as_json = capsys.readouterr().out.splitlines()
    assert plain == "listening on 127.0.0.1:1" and json.loads(as_json)["message"] == "listening on [::1]:2"
    assert [logs.ready_address(line) for line in (plain, as_json)] == ["127.0.0.1:1", "[::1]:2"]
    for line in ("metrics on http://127.0.0.1:1/metrics", "{", "{}", '{"message": "x"}', "", "[1]"):
        assert logs.ready_address(line) == ""
