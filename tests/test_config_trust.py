"""`./opensled.toml` of a folder that may be a stranger's: announced, and no way for the user's secrets to leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_client.device.config import DoctorConfig, EdgeConfig
from edge_client.device.prompt_config import GenerateConfig
from edge_client.doctor.edge_section import with_edge_section
from opensled.cli import main as cli
from opensled.cli.config_layers import merge_layers, resolve
from opensled.core.errors import UsageError

USERS = "[generate]\nserver = 'home:7411'\ntls_ca = 'home.pem'\ntoken_file = '~/token'\n"


@pytest.fixture
def files(config_paths: tuple[Path, Path]) -> tuple[Path, Path]:
    """Both files, empty."""
    for path in config_paths:
        path.write_text("")
    return config_paths


def resolved(**flags: object) -> GenerateConfig:
    return resolve(GenerateConfig, "generate", flags, {})


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ("server = 'evil:1'", "--server evil:1"),
        ("tls_ca = 'evil.pem'", "--tls-ca evil.pem"),
        ("tls_ca = ''", "--tls-ca ''"),
        ("server = 'evil:1'\ntls_ca = ''\ntls = true", "--server evil:1 --tls-ca ''"),
    ],
)
def test_the_users_token_does_not_go_where_a_folder_says(
    files: tuple[Path, Path], theirs: str, named: str
) -> None:
    folder, own = files
    own.write_text(USERS)
    folder.write_text(f"[generate]\n{theirs}\n")
    with pytest.raises(UsageError) as caught:
        resolved()
    assert f"give {named} yourself; else set OPENSLED_NO_CONFIG=1" in str(caught.value)


def test_a_token_of_the_command_line_does_not_either(files: tuple[Path, Path]) -> None:
    files[0].write_text("[generate]\nserver = 'evil:1'\n")
    with pytest.raises(UsageError, match="--server evil:1"):
        resolved(token_file="token")
    with pytest.raises(UsageError, match="--server evil:1"):
        resolve(GenerateConfig, "generate", {}, {"OPENSLED_TOKEN_FILE": "token"})


def test_tls_is_not_turned_off(files: tuple[Path, Path]) -> None:
    files[1].write_text("[generate]\ntls = true\ntoken_file = 'token'\n")
    files[0].write_text("[generate]\ntls = false\n")
    with pytest.raises(UsageError, match="--no-tls"):
        resolved()
    files[0].write_text("[generate]\ntls = true\n")
    assert resolved().tls


def test_consent_is_to_say_it_oneself(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, own = files
    own.write_text(USERS)
    folder.write_text("[generate]\nserver = 'evil:1'\npace = 7\n")
    assert resolved(server="evil:1").token_file == "~/token"
    assert resolve(GenerateConfig, "generate", {}, {"OPENSLED_SERVER": "evil:1"}).server == "evil:1"
    monkeypatch.setenv("OPENSLED_NO_CONFIG", "1")
    assert resolved().server == "127.0.0.1:7411"


def test_what_is_no_secrets_way_is_the_folders_to_set(files: tuple[Path, Path]) -> None:
    folder, own = files
    own.write_text(USERS)
    folder.write_text("[generate]\npace = 7\nserver = 'home:7411'\n")
    assert (resolved().pace, resolved().server) == (7.0, "home:7411")
    own.write_text("")
    folder.write_text("[generate]\nserver = 'theirs:1'\ntoken_file = 'token'\n")
    assert resolved().token_file == "token"


def test_a_folder_names_no_secret_outside_of_it(files: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = files
    Path("link").symlink_to(tmp_path / "home/token")
    for path in (str(tmp_path / "home/token"), "../home/token", "~/token", "link"):
        folder.write_text(f"[generate]\nserver = 'evil:1'\ntoken_file = '{path}'\n")
        with pytest.raises(UsageError, match="names a secret outside of its folder"):
            resolved()
        assert resolved(token_file=path, server="evil:1").token_file == path


def test_the_doctor_takes_no_token_of_edge_there(files: tuple[Path, Path]) -> None:
    folder, own = files
    own.write_text("[edge]\nserver = 'home:7411'\ntoken_file = 'token'\n")
    assert with_edge_section(DoctorConfig(), "doctor").token_file == "token"
    folder.write_text("[doctor]\nserver = 'evil:1'\n")
    with pytest.raises(UsageError, match="--server evil:1"):
        with_edge_section(resolve(DoctorConfig, "doctor", {}, {}), "doctor")
    assert with_edge_section(DoctorConfig(server="own:1"), "doctor").token_file == "token"
    folder.write_text("[edge]\nserver = 'evil:1'\n")
    with pytest.raises(UsageError, match="evil:1"):
        with_edge_section(DoctorConfig(), "doctor")


def test_the_doctor_takes_keys_of_other_verbs(files: tuple[Path, Path]) -> None:
    files[0].write_text("max-sessions = 3\nsystem = 'Be brief.'\n[edge]\npace = 2.0\n")
    assert with_edge_section(DoctorConfig(), "doctor").pace == 2.0


def test_its_use_is_announced_in_one_line(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, own = files
    own.write_text("[models.list]\njson = true\n")
    assert cli.main(["models", "list"]) == 0
    assert capsys.readouterr().err == ""
    folder.write_text("[models.list]\njson = true\n")
    assert cli.main(["models", "list"]) == 0
    assert capsys.readouterr().err == "note: opensled.toml of this folder sets json\n"
    assert cli.main(["models", "list", "--json"]) == 0
    assert capsys.readouterr().err == "", "nothing of it is used"


def test_it_cannot_hide_itself(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    for form in ("log_level = 'error'", "log_level = 'error'\nlog_json = true"):
        files[0].write_text(f"[generate]\nserver = '127.0.0.1:1'\n{form}\n")
        assert cli.main(["generate", "Hi", "--drafter", "none"]) == 5
        line = capsys.readouterr().err.splitlines()[0]
        said = json.loads(line)["message"] if line.startswith("{") else line.removeprefix("note: ")
        assert said.startswith("opensled.toml of this folder sets") and "server" in said


def test_origins_are_by_field(files: tuple[Path, Path]) -> None:
    files[0].write_text("[edge]\nserver = 'a:1'\npace = 3\n")
    assert merge_layers(EdgeConfig, "edge", {"pace": 4.0}, {})[1] == {"server": "a:1"}
