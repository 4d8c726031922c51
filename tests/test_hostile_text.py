"""Texts that a hostile server chooses, on a terminal: they show, and they control nothing."""

import io
import json
import logging
import sys
from dataclasses import replace

import pytest

from edge_client.device import command
from edge_client.device.prompt_config import GenerateConfig
from edge_client.terminal.chat_view import View
from opensled.cli import main as cli
from opensled.cli.colour import Palette
from opensled.cli.top_figures import figures
from opensled.cli.top_view import frame
from opensled.core.errors import InvalidRequest
from opensled.core.printable import visible, visible_line
from opensled.metrics.scrape import Between
from opensled.process import logs
from tests.fake_backend import FakeBackend, call, chat
from tests.scraping import AFTER, BEFORE, GATEWAY
from tests.vt import Output

EVIL = "a\x1b]0;evil\x07b\x9b2J\rc\x08\u202egnp.exe\u2066"
SHOWN = "a\\x1b]0;evil\\x07b\\x9b2J\\x0dc\\x08\\u202egnp.exe\\u2066"


class HostileDevice(FakeBackend):
    """Its server chose these words, or this error."""

    def __init__(self, *words, error=None):
        super().__init__(error, 0 if error else 10**6, words=words or ("a",))

    async def close(self):
        pass


@pytest.fixture
def connected(monkeypatch):
    """Sets the device that `opensled generate` and `opensled edge` connect."""

    def use(device):
        async def connect(config, parallel=1):
            return device

        monkeypatch.setattr(command, "connect", connect)
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        monkeypatch.setattr(sys, "stdout", Output())

    return use


def test_what_controls_a_terminal_becomes_an_escape():
    assert visible(EVIL) == SHOWN and visible("tab\tline\né\u200d\u200f") == "tab\tline\né\u200d\u200f"
    assert visible_line("a\nerror: b") == "a error: b"


def test_an_answer_on_a_terminal(connected):
    connected(HostileDevice(EVIL, "\r\n", "end"))
    assert command.generate(GenerateConfig(prompt="Hi")) == 0
    assert sys.stdout.getvalue() == SHOWN + "\nend\n"


def test_a_pipe_and_the_api_get_the_text_as_it_is(connected, monkeypatch):
    connected(HostileDevice(EVIL))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert command.generate(GenerateConfig(prompt="Hi")) == 0
    assert sys.stdout.getvalue() == EVIL + "\n"
    assert call(HostileDevice(EVIL), body=chat()).json()["choices"][0]["message"]["content"] == EVIL


def test_an_error_of_a_server(connected, capsys):
    connected(HostileDevice(error=InvalidRequest(EVIL + "\nerror: not ours", "prompt")))
    assert cli.main(["generate", "Hi"]) == 1
    assert capsys.readouterr().err == f"error: {SHOWN} error: not ours\n"


def test_the_name_of_a_target():
    device = HostileDevice()
    device.drafter_name, device.info = "none", replace(device.info, model_id=EVIL)
    assert command._introduction(device, "hub:1") == f"drafting with none for {SHOWN} at hub:1"


def test_log_lines(capsys):
    logs.configure()
    logging.getLogger("edge_client.device.device").warning("it serves %s", EVIL + "\nERROR forged: line")
    expected = f"WARNING edge_client.device.device: it serves {SHOWN} ERROR forged: line\n"
    assert capsys.readouterr().err == expected
    logs.configure(as_json=True)
    logging.getLogger("edge_client.device.device").warning(EVIL)
    assert json.loads(capsys.readouterr().err)["message"] == EVIL
    logs.configure()


def test_a_warning_beside_a_pipe(capsys):
    View(Palette(False), chatty=False).warn(EVIL)
    assert capsys.readouterr().err == SHOWN + "\n"


def test_the_figures_of_a_server():
    server = figures("hub:1", Between(BEFORE, AFTER)) | {
        "hints": {EVIL: 0.5, "4": 0.5},
        "refused": {EVIL: 1.0},
    }
    gateway = figures("hub:1", Between(GATEWAY, GATEWAY))
    gateway["replicas"] = {EVIL: gateway["replicas"]["a"]}
    for found in (server, gateway, {"server": "hub:1", "error": EVIL}):
        text = "".join(frame([found], {}, 200))
        assert SHOWN in text and not any(character in text for character in "\x1b\x9b\r\u202e")
