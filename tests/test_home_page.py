"""docs/home.md without the machines of `make home-check`: its length, commands, flags, and what the check knows."""

import re
import shlex

import pytest

import opensled
from home.service.config import known_service
from home.service.service_flags import check_flags
from opensled.cli.main import VERBS, parse_flags
from tests.home_check import NOT_HERE, PLACES, Walk
from tests.home_page import MAX_WORDS, PAGE, PageCommand, commands, inline

TEXT = PAGE.read_text()
COMMANDS = list(commands(TEXT))
OURS = [each.opensled for each in COMMANDS if each.opensled] + [
    words for words in inline(TEXT) if len(words) > 1
]


def test_the_page_is_short():
    assert len(TEXT.split()) < MAX_WORDS


def verb_of(words):
    name = " ".join(words[:2])
    return (name, words[2:]) if name in VERBS else (words[0], words[1:])


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_every_command_of_ours_parses(words, tmp_path, monkeypatch):
    verb, flags = verb_of(words)
    given = parse_flags(verb, flags)
    if verb.startswith("service ") and "service" in given:
        known_service(given["service"])
        check_flags(given["service"], given.get("flags", ()))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.text.splitlines()[0])
def test_the_check_knows_every_command(command):
    assert command.language == "python" or Walk.rule_of(command) is not None


def test_what_the_check_does_not_type_has_a_reason():
    assert all(reason and any(part in each.text for each in COMMANDS) for part, reason in NOT_HERE.items())


@pytest.mark.parametrize("text", ["rm -rf ~", "~/opensled/bin/opensled demo", "pip install opensled"])
def test_a_command_that_the_check_does_not_know_is_found(text):
    assert Walk.rule_of(PageCommand(text, "pc")) is None


@pytest.mark.parametrize("block", ["```sh\nls\n```\n", "```\nls\n```\n", "```sh phone\nls\n```\n"])
def test_a_block_must_say_where_it_is_typed(block):
    with pytest.raises(ValueError, match="which is not"):
        list(commands(block))


def test_the_python_programs_compile():
    programs = [each.text for each in COMMANDS if each.language == "python"]
    assert len(programs) == 2 and all(compile(each, "docs/home.md", "exec") for each in programs)


def test_addresses_and_wheels_are_those_of_the_check_and_of_this_version():
    used = set(re.findall(r"192\.168\.1\.\d+(?!/)\b", TEXT)) - {"192.168.1.0"}
    assert used == set(PLACES.values())
    assert set(re.findall(r"opensled(?:_edge)?-(\d[\d.]*\d)-py3", TEXT)) == {opensled.__version__}


def test_shell_lines_have_no_stray_quotes():
    assert all(shlex.split(each.text) for each in COMMANDS if each.language == "sh")
