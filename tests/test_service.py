"""`opensled service`: what it writes and runs, with a systemctl that only notes what it is asked. Units themselves:
tests/test_service_units.py. Under a real systemd: `make service-check`."""

import json
import os
import re
from pathlib import Path

import pytest

from home.service import manager, unit_files, unit_text
from home.service.unit_text import facts_of
from opensled.cli import main as cli
from opensled.cli.paired import keep
from tests.fake_systemd import FakeSystemd


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """A user's systemd."""
    return FakeSystemd(tmp_path, monkeypatch)


def run(*words):
    return cli.main(["service", *words])


def test_an_installation_writes_a_unit_and_starts_it(systemd, capsys):
    assert run("install", "edge", "--", "--parallel", "2") == 0
    shown = capsys.readouterr()
    unit = systemd.unit("edge").read_text()
    assert "edge --parallel 2\n" in unit and "WantedBy=default.target" in unit and "DynamicUser" not in unit
    assert systemd.calls() == [
        "loginctl enable-linger root", "systemctl --user daemon-reload",
        "systemctl --user enable opensled-edge.service",
        "systemctl --user restart --no-block opensled-edge.service",
    ]  # fmt: skip
    assert all(f"+ {call}\n" in shown.err for call in systemd.calls())
    assert f"wrote {systemd.unit('edge')}" in shown.err and "http://127.0.0.1:8411/" in shown.out


def test_a_repeated_installation_leaves_a_running_service_alone(systemd, capsys):
    run("install", "edge")
    systemd.lingers()
    systemd.forget()
    assert run("install", "edge") == 0
    assert f"unchanged: {systemd.unit('edge')}" in capsys.readouterr().err
    assert systemd.calls() == [
        "systemctl --user enable opensled-edge.service",
        "systemctl --user start --no-block opensled-edge.service",
    ]
    assert run("install", "edge", "--", "--parallel", "3") == 0
    assert "--parallel 3" in systemd.unit("edge").read_text() and "restart" in systemd.calls()[-1]


def test_a_dry_run_changes_nothing_and_tells_all(systemd, capsys):
    assert run("install", "serve", "--dry-run", "--", "--model", "tiny") == 0
    shown = capsys.readouterr().out
    assert f"# {systemd.unit('serve')}\n" in shown and "serve --model tiny\n" in shown
    assert "+ loginctl enable-linger root\n" in shown and shown.endswith(
        "restart --no-block opensled-serve.service\n"
    )
    assert not systemd.unit("serve").exists() and systemd.calls() == []
    assert run("install", "serve", "--dry-run", "--json", "--", "--model", "tiny") == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["files"]) == [str(systemd.unit("serve"))] and len(told["commands"]) == 4
    assert run("install", "relay", "--dry-run", "--", "--upstream", "192.0.2.1:7411") == 0


def test_a_removal_leaves_no_trace_but_credentials(systemd, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    token = tmp_path / "token"
    token.write_text("t")
    run("install", "edge", "--", "--token-file", str(token))
    systemd.lingers()
    systemd.forget()
    capsys.readouterr()
    assert run("remove", "edge", "--dry-run") == 0
    assert f"+ rm {systemd.unit('edge')}" in capsys.readouterr().out and systemd.unit("edge").exists()
    assert run("remove", "edge") == 0
    assert systemd.calls() == [
        "systemctl --user disable --now opensled-edge.service",
        "systemctl --user daemon-reload",
        "loginctl disable-linger root",
    ]  # fmt: skip
    assert f"credentials stay: {token}" in capsys.readouterr().out
    systemd.forget()
    assert sorted(set(tmp_path.rglob("*")) - {token, *systemd.own()}) == sorted(set(before) - systemd.own())
    assert run("remove", "edge") == 3


def test_linger_stays_while_another_service_needs_it_or_the_user_had_it(systemd):
    run("install", "serve")
    systemd.lingers()
    run("install", "edge")
    run("remove", "serve")
    assert "loginctl disable-linger root" not in systemd.calls()
    run("remove", "edge")
    assert systemd.calls().count("loginctl disable-linger root") == 1
    systemd.forget()
    run("install", "edge")  # he has it now by his own will
    run("remove", "edge")
    assert not [call for call in systemd.calls() if "linger" in call]


def test_a_user_who_may_not_linger_is_told_who_can_allow_it(systemd, capsys):
    systemd.refuses("enable-linger")
    assert run("install", "edge") == 1
    assert (
        "Access denied; an administrator can allow it: sudo loginctl enable-linger root"
        in capsys.readouterr().err
    )
    assert not systemd.unit("edge").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[Service]\nExecStart=/bin/true\n", "was not written by"),
        ("", "was not written by"),
        (None, "is a link"),
    ],
)
def test_units_of_someone_else_are_never_touched(systemd, capsys, content, complaint):
    path = systemd.unit("edge")
    path.parent.mkdir(parents=True)
    path.write_text(content) if content is not None else path.symlink_to("/dev/null")
    before = path.readlink() if content is None else path.read_text()
    for words in (("install", "edge"), ("install", "edge", "--dry-run"), ("remove", "edge")):
        assert run(*words) == 2
        assert complaint in capsys.readouterr().err
    assert before == (path.readlink() if content is None else path.read_text())
    assert systemd.calls() == []


def test_a_unit_that_was_changed_by_hand_is_kept(systemd, capsys):
    run("install", "edge")
    path = systemd.unit("edge")
    path.write_text(path.read_text().replace("WatchdogSec=60", "WatchdogSec=90"))
    assert run("install", "edge") == run("remove", "edge") == 2
    assert "was changed since" in capsys.readouterr().err and "WatchdogSec=90" in path.read_text()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--servr", "x:1"], "did you mean --server"), (["--parallel", "0"], "out of range"),
        (["--offline", "sometimes"], "is not one of"), (["stray"], "pair this device before"),
        (["--device-name", "a\nExecStart=/bin/evil"], "holds a character"), (["--http", "nowhere:port"], "HOST:PORT"),
        (["--device-name", "\x1b[31m"], "holds a character"), (["--device-name", "\udcff"], "holds a character"),
        (["--token-file", "no/such/token"], "does not exist"), (["--device-name", "x" * 5000], "at most"),
        (["--pair", "1-2", "hub"], "pair this device before"), (["--parallel"], "expected one argument"),
        (["--lenient"] * 201, "at most 200 flags"),
    ],
)  # fmt: skip
def test_hostile_and_mistyped_flags_are_refused_before_anything_is_written(systemd, capsys, flags, complaint):
    assert run("install", "edge", "--", *flags) in (2, 3)
    assert complaint in capsys.readouterr().err
    assert systemd.calls() == [] and not systemd.unit("edge").exists()


def test_flags_before_the_dashes_are_the_installations(systemd, capsys):
    assert run("install", "edge", "--offline", "stall") == 2
    assert "flags of the service follow `--`" in capsys.readouterr().err
    assert run("install", "kitchen") == 2
    assert "choose from serve, edge, relay" in capsys.readouterr().err


def test_without_systemd_the_error_names_the_dry_run(systemd, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(manager, "BOOTED", tmp_path / "nothing")
    assert run("install", "edge") == 2
    assert "--dry-run" in capsys.readouterr().err and not systemd.unit("edge").exists()
    assert run("install", "edge", "--dry-run") == 0


def test_a_service_that_does_not_start_tells_why(systemd, capsys):
    systemd.fails("error: model 'tiny' is missing")
    assert run("install", "serve", "--", "--model", "tiny") == 1
    assert "does not start: model 'tiny' is missing; correct" in capsys.readouterr().err
    assert run("status", "--json") == 0
    [told] = json.loads(capsys.readouterr().out)
    assert (told["state"], told["last_error"], told["page"]) == ("failed", "model 'tiny' is missing", None)


def test_the_process_of_before_is_not_taken_for_the_new_one(systemd, capsys):
    """On a busy machine `install` told that a server runs, which systemd was about to stop."""
    systemd.fails("error: model 'tiny' is missing")
    systemd.restarts()
    assert run("install", "serve", "--", "--model", "tiny") == 1
    assert "does not start: model 'tiny' is missing" in capsys.readouterr().err


def test_a_device_whose_server_is_away_is_installed_all_the_same(systemd, capsys):
    systemd.retries("error: no server answers at hub:7411")
    assert run("install", "edge") == 0
    assert "cannot start yet: no server answers at hub:7411. systemd tries again" in capsys.readouterr().out


def test_status_tells_state_time_page_and_last_error(systemd, capsys):
    assert run("status") == 0 and "opensled service install edge" in capsys.readouterr().out
    run("install", "edge", "--", "--http", "0.0.0.0:8500", "--insecure")
    systemd.writes(
        '{"level": "error", "message": "the \\u001b[31mserver is gone"}', "INFO x: fine", '{"broken'
    )
    capsys.readouterr()
    run("status")
    shown = capsys.readouterr().out
    assert "opensled-edge (user): active since 20" in shown and "http://127.0.0.1:8500/" in shown
    assert "starts at every boot" in shown and re.search(
        r"last error  20\S+ \S+: the .*server is gone", shown
    )
    assert "\x1b" not in shown


def test_a_missing_model_is_fetched_first(systemd, capsys):
    run("install", "serve", "--dry-run", "--", "--model", "smollm2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("+ ") and lines[0].endswith(" pull smollm2")
    run("install", "serve", "--dry-run", "--", "--model", "tiny")
    assert " pull " not in capsys.readouterr().out


def test_relative_files_become_absolute(systemd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.txt").write_text("k")
    (tmp_path / "draft.gguf").write_text("k")
    flags = ("--http-keys", "keys.txt", "--draft-model", "draft.gguf", "--personal-table", "off")
    run("install", "edge", "--", *flags)
    [line] = [line for line in systemd.unit("edge").read_text().splitlines() if line.startswith("ExecStart")]
    assert line.endswith(
        f"--http-keys {tmp_path}/keys.txt --draft-model {tmp_path}/draft.gguf --personal-table off"
    )


def test_what_pairing_left_is_found_by_a_users_service_itself(systemd):
    keep("hub.local:7411", "authority", "token")
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "opensled/paired"
    run("install", "edge")
    text = systemd.unit("edge").read_text()
    assert text.count("hub.local") == 0 and facts_of(text).secrets == (str(folder),)


def test_a_service_of_the_system_gets_what_pairing_left_from_systemd(systemd, monkeypatch, capsys):
    systemd.becomes_the_systems()
    keep("hub.local:7411", "authority", "token")
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "opensled/paired"
    assert run("install", "edge") == 0
    text = systemd.unit("edge").read_text()
    assert f"LoadCredential=token_file:{folder}/token\nLoadCredential=tls_ca:{folder}/ca.pem\n" in text
    assert (
        "--server hub.local:7411 --token-file ${CREDENTIALS_DIRECTORY}/token_file --tls --tls-ca ${CRED"
        in text
    )
    assert "after a change, also by opensled pair: systemctl restart" in capsys.readouterr().err
    systemd.refuses("reset-failed")  # as it does for a service that has not failed
    assert run("remove", "edge") == 0
    assert "systemctl clean --what=cache opensled-edge.service" in systemd.calls()
    run("install", "edge")
    systemd.refuses("disable")
    assert run("remove", "edge") == 1 and systemd.unit("edge").exists()
    assert "disable --now opensled-edge.service failed: Access denied" in capsys.readouterr().err


def test_a_server_of_the_system_never_sees_the_authoritys_key(systemd, capsys):
    from home.desk.devices import add_device
    from home.desk.home import Home, home_folder

    systemd.becomes_the_systems()
    assert run("install", "serve", "--", "--paired") == 3
    home = Home(home_folder(""))
    assert run("install", "serve", "--", "--paired") == 3
    assert capsys.readouterr().err.count("no device is paired in") == 2
    add_device(home, "kitchen", "192.0.2.1")
    assert run("install", "serve", "--", "--paired", "--http", "8080") == 0
    text = systemd.unit("serve").read_text()
    loaded = {line.partition(":")[2] for line in text.splitlines() if line.startswith("LoadCredential")}
    assert loaded == {str(home.cert), str(home.key), str(home.tokens)} and "ca.key" not in text
    assert "--paired" not in text and facts_of(text).page == "https://127.0.0.1:8080/"


def test_a_service_of_the_system_is_refused_what_it_would_not_see(systemd, monkeypatch, tmp_path, capsys):
    systemd.becomes_the_systems()
    monkeypatch.setattr(unit_text, "HIDDEN", (str(tmp_path),))
    (tmp_path / "draft.gguf").write_text("k")
    assert run("install", "edge", "--", "--draft-model", str(tmp_path / "draft.gguf")) == 2
    assert "sees nothing" in capsys.readouterr().err and not systemd.unit("edge").exists()
    assert run("install", "edge", "--dry-run", "--", "--draft-model", str(tmp_path / "draft.gguf")) == 0
    shown = capsys.readouterr()
    assert "it would not be installed: " in shown.err and "sees nothing" in shown.err
    assert f"--draft-model {tmp_path / 'draft.gguf'}\n" in shown.out and not systemd.unit("edge").exists()


def test_everybody_can_see_the_service_of_the_machine_and_root_alone_installs_it(
    systemd, monkeypatch, capsys
):
    monkeypatch.setattr(unit_text, "HIDDEN", ())
    own = systemd.unit("serve")
    assert run("install", "serve", "--dry-run", "--system", "--", "--model", "tiny") == 0
    shown = capsys.readouterr().out
    assert f"# {manager.SYSTEM_UNITS}/opensled-serve.service\n" in shown and "DynamicUser=yes" in shown
    assert "systemctl enable" in shown and "--user" not in shown
    assert run("install", "serve", "--system", "--", "--model", "tiny") == 2
    assert "only root installs a service of the machine" in capsys.readouterr().err
    assert not own.exists() and systemd.calls() == []


def test_drop_ins_come_and_go_with_their_reason(systemd):
    systemd.becomes_the_systems()
    flags = ("--", "--model", "tiny", "--replicas", "2")
    run("install", "serve", *flags)
    folder = systemd.unit("serve").with_name("opensled-serve.service.d")
    assert "AF_NETLINK" in (folder / "opensled-netlink.conf").read_text()
    (folder / "override.conf").write_text("[Service]\nNice=5\n")
    run("install", "serve")
    assert [path.name for path in folder.iterdir()] == ["override.conf"]
    run("install", "serve", *flags)
    run("remove", "serve")
    assert [path.name for path in folder.iterdir()] == ["override.conf"], "this one is not ours"


def test_a_machine_with_a_gpu_gets_a_drop_in_for_it(systemd, tmp_path):
    (tmp_path / "nvidia0").touch()
    run("install", "edge")
    path = systemd.unit("edge").with_name("opensled-edge.service.d") / "opensled-gpu.conf"
    assert "MemoryDenyWriteExecute=no" in path.read_text() and "DeviceAllow" not in path.read_text()
    run("remove", "edge")
    systemd.becomes_the_systems()
    run("install", "edge")
    path = systemd.unit("edge").with_name("opensled-edge.service.d") / "opensled-gpu.conf"
    assert "DeviceAllow=char-nvidia* rw" in path.read_text()


def test_a_file_that_breaks_off_is_not_ours(tmp_path):
    path = tmp_path / "unit"
    unit_files.write(path, "[Service]\n")
    assert unit_files.read_ours(path) == "[Service]\n" and not unit_files.write(path, "[Service]\n")
    path.write_text(path.read_text()[:-3])
    with pytest.raises(cli.UsageError):
        unit_files.read_ours(path)


def test_variables_of_the_shell_are_named(systemd, capsys):
    run("install", "edge", "--dry-run")
    assert "OPENSLED_CACHE_DIR" in capsys.readouterr().err, "the tests have one"
