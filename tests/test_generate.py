"""`opensled generate` where text meets the process: bytes that are no text, and a terminal that is not UTF-8."""

import io
import json
import os
import sys
from functools import partial

import pytest

from edge_client.device import command
from edge_client.terminal import tail
from lab.testbed.processes import Process
from opensled.cli import main as cli
from opensled.cli.colour import input_comes
from tests import vt
from tests.commands import opensled
from tests.fake_backend import WORDS, FakeBackend


@pytest.fixture(scope="module")
def server():
    arguments = ["serve", "--engine", "tests.fake_target:load", "--model", "fake", "--listen", "127.0.0.1:0"]
    with Process(arguments) as process:
        yield process.wait_ready()


def generate(server, *arguments, text=b""):
    words = ("generate", "--server", server, "--drafter", "none", *arguments)
    return opensled(*words, input=text, text=False)


@pytest.fixture
def asked(monkeypatch):
    """Prompts that reach a device which answers nothing else; standard input is empty at first."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    seen = []

    class Listener(LocalDevice):
        async def answer(self, task):
            seen.append(task.prompt)
            async for chunk in super().answer(task):
                yield chunk

    async def connect(config):
        return Listener(words=WORDS)

    monkeypatch.setattr(command, "connect", connect)
    return seen


@pytest.mark.parametrize(
    ("arguments", "piped", "sent"),
    [
        (["Sum this up."], "", "Sum this up."),
        ([], "Dear Ann,\n", "Dear Ann,\n"),
        (["-"], "Dear Ann,\n", "Dear Ann,\n"),
        (["Sum this up."], "Dear Ann,\nsee you.\n", "Dear Ann,\nsee you.\n\nSum this up."),
        (["Sum this up."], " \n", "Sum this up."),
        (["-5 + 3?"], "", "-5 + 3?"),
    ],
)
def test_the_text_is_standard_input_and_then_the_argument(asked, monkeypatch, arguments, piped, sent):
    monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
    assert cli.main(["generate", "--raw", *arguments, "--drafter", "none"]) == 0
    assert asked == [sent]


@pytest.mark.parametrize("arguments", [[], ["-"], [""], [" "]])
@pytest.mark.parametrize("piped", [io.StringIO(""), io.StringIO("\n"), None])
def test_no_text_is_an_error_that_says_where_it_may_be(asked, monkeypatch, capsys, arguments, piped):
    monkeypatch.setattr(sys, "stdin", piped)
    assert cli.main(["generate", *arguments]) == 2
    shown = capsys.readouterr().err
    assert "nothing to answer" in shown and 'opensled generate "TEXT"' in shown and "standard input" in shown
    assert not asked


def test_a_terminal_is_read_only_if_it_was_asked_for(asked, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", vt.Output("Dear Ann"))
    assert cli.main(["generate"]) == 2 and "nothing to answer" in capsys.readouterr().err
    assert cli.main(["generate", "--raw", "Hi"]) == 0
    assert cli.main(["generate", "--raw", "-"]) == 0
    assert asked == ["Hi", "Dear Ann"]


def test_an_open_and_silent_input_is_not_waited_for_beside_a_prompt(asked, monkeypatch, capsys):
    reader, writer = os.pipe()
    with os.fdopen(reader) as silent:
        monkeypatch.setattr(sys, "stdin", silent)
        monkeypatch.setattr(command, "input_comes", partial(input_comes, 0.01))
        assert cli.main(["generate", "--raw", "Hi"]) == 0 and "nothing comes" in capsys.readouterr().err
        os.write(writer, b"Dear Ann")
        os.close(writer)
        assert cli.main(["generate", "--raw", "Hi"]) == 0
    assert asked == ["Hi", "Dear Ann\n\nHi"]


def test_it_says_why_nothing_was_drafted(server):
    why = "not drafting: this device has nothing to draft with"
    assert why in generate(server, "hi", "--max-tokens", "4").stderr.decode()
    assert json.loads(generate(server, "hi", "--max-tokens", "4", "--json").stdout)["drafting"] == why


@pytest.mark.parametrize("prompt", [b"caf\xe9", "-"])
def test_bytes_that_are_no_text_are_not_sent(server, prompt):
    done = generate(server, prompt, text=b"caf\xe9")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"character 4 of the prompt is not valid UTF-8" in done.stderr and done.stderr.count(b"\n") == 1


def test_an_error_before_the_answer_leaves_standard_output_empty(server):
    done = generate(server, "x" * 500)
    assert (done.returncode, done.stdout) == (1, b"") and b"context" in done.stderr


class Terminal(io.TextIOWrapper):
    """A standard output whose locale knows ASCII only."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="ascii")


def test_words_are_not_split_at_the_end_of_a_line(asked, monkeypatch):
    async def connect(config):
        return LocalDevice(words=["The kit", "chen ", "light ", "is ", "o", "n."])

    monkeypatch.setattr(command, "connect", connect)
    monkeypatch.setattr(sys, "stdout", vt.Output())
    monkeypatch.setattr(tail, "size_of", lambda out: os.terminal_size((9, 24)))
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(["generate", "Hi"]) == 0
    screen = vt.Terminal(9, 24)
    screen.feed(sys.stdout.getvalue())
    assert screen.lines == ["The", "kitchen", "light is", "on."]


class LocalDevice(FakeBackend):
    async def close(self):
        pass


def test_an_answer_is_utf8_whatever_the_terminal_thinks(asked, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert cli.main(["generate", "Hi"]) == 0
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().decode() == "".join(WORDS) + "\n"
