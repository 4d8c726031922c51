"""The sample configuration file: what it says is what holds without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opensled.cli import main as cli
from opensled.cli.config import options
from opensled.cli.config_command import DEVICE_VERBS, sample
from opensled.cli.config_file import TABLES, read_file
from opensled.cli.config_layers import merge_layers

VERBS = ("serve", *DEVICE_VERBS)


def set_in(text: str) -> str:
    """The sample with every option set that has a default."""
    given = r"^# (?=[a-z-]+ = (-?\d|true|false|\"[^A-Z[]|\"[^\"]*[a-z]))"
    return "\n".join(re.sub(given, "", line) for line in text.splitlines())


def test_it_is_printed_and_sets_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["config", "init"]) == 0
    printed = capsys.readouterr().out
    assert printed == sample() and max(map(len, printed.splitlines())) <= 120
    assert "\n## drafting\n\n# drafter: auto," in printed
    file = tmp_path / "opensled.toml"
    file.write_text(printed)
    assert read_file(file) == {name: {} for name in (*VERBS, *TABLES)}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_stands_there_with_its_default(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "opensled.toml"
    file.write_text(set_in(sample()))
    kind = cli.CONFIGS.get(verb)
    values = merge_layers(kind, verb, {}, {}, [file], {*VERBS, *TABLES}, cli._keys)[0]
    defaults = {item.name: item.default for item in options(kind) if not item.positional}
    assert values == {name: value for name, value in defaults.items() if value not in (None, "")}
