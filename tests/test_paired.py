"""What a pairing leaves on the device, and which commands use it: the paired server, and no other one."""

import os
import sys
from pathlib import Path

import pytest

import home.pairing
from edge_client.device.config import CalibrateConfig, DoctorConfig, EdgeConfig
from edge_client.device.prompt_config import ChatConfig, GenerateConfig
from edge_client.device.request_defaults import own_name
from edge_client.doctor.edge_section import with_edge_section
from edge_client.link.located import locate_server
from home import discovery
from home.pairing.pair_device import _place, pair_first
from opensled.cli import config_command, paired
from opensled.cli.config import config_folder
from opensled.cli.config_layers import merge_layers
from opensled.cli.main import main, parse_flags
from opensled.core.errors import UsageError
from opensled.net.address import MDNS
from opensled.process.registry import remedy
from tests.certificates import AUTHORITY, written
from verify_server.options.serve_config import ServeConfig

SERVER = "hub.local:7411"
VERBS = {
    "edge": EdgeConfig,
    "generate": GenerateConfig,
    "chat": ChatConfig,
    "doctor": DoctorConfig,
    "profile.calibrate": CalibrateConfig,
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to run in, and the user's own; nothing is set."""
    for name in [name for name in os.environ if name.startswith("OPENSLED_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def kept():
    """A device that is paired."""
    return paired.keep(SERVER, "authority", "ab" * 32)


def values(verb="edge", **flags):
    return merge_layers(VERBS[verb], verb, flags)[0]


def user_file(text):
    path = config_folder() / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_of_a_device_uses_the_paired_server(kept, verb):
    assert values(verb) == {
        "server": SERVER,
        "token_file": str(kept / "token"),
        "tls": True,
        "tls_ca": str(kept / "ca.pem"),
    }


def test_nothing_is_used_without_a_pairing_and_by_a_server():
    assert values() == {} == merge_layers(ServeConfig, "serve", {})[0]
    paired.keep(SERVER, "authority", "ab" * 32)
    assert merge_layers(ServeConfig, "serve", {})[0] == {}


@pytest.mark.parametrize("other", ["192.0.2.9:7411", "hub.local:7412", "127.0.0.1:7411"])
def test_another_server_gets_neither_token_nor_authority(kept, other, monkeypatch):
    assert values(server=other) == {"server": other}
    user_file(f'server = "{other}"\n')
    assert values() == {"server": other}
    monkeypatch.setenv("OPENSLED_SERVER", other)
    assert values() == {"server": other}


@pytest.mark.parametrize("same", [SERVER, "HUB.local:7411", MDNS])
def test_the_paired_server_by_its_name_or_by_discovery_does(kept, same):
    assert values(server=same) == values() | {"server": same}


def test_a_flag_comes_before_the_pairing(kept):
    assert values(token_file="mine", tls_ca="other.pem") == values() | {
        "token_file": "mine",
        "tls_ca": "other.pem",
    }


@pytest.mark.parametrize("line", ['tls-ca = "evil.pem"', "tls = false", 'fallback = "192.0.2.9:7411"',
                                  'tls-name = "evil.example"', 'server = "mdns"'])  # fmt: skip
def test_the_file_of_a_folder_does_not_lead_the_paired_token_elsewhere(kept, line):
    Path("opensled.toml").write_text(line + "\n")
    with pytest.raises(UsageError, match="the secret of your --token-file"):
        values()


def test_a_folder_that_names_another_server_gets_nothing_of_the_pairing(kept):
    Path("opensled.toml").write_text('server = "192.0.2.9:7411"\n')
    assert values() == {"server": "192.0.2.9:7411"}


def test_no_file_starts_a_pairing(monkeypatch):
    """A stranger's folder could pair this device with his server."""
    Path("opensled.toml").write_text('pair = "4821-0937"\n')
    assert values() == {}
    Path("opensled.toml").write_text('[edge]\npair = "4821-0937"\n')
    with pytest.raises(UsageError, match="unknown key 'pair'"):
        values()
    assert "pair =" not in config_command.sample()


def test_no_config_means_no_pairing(kept, monkeypatch):
    monkeypatch.setenv("OPENSLED_NO_CONFIG", "1")
    assert values() == {} and paired.paired_server() == ""
    with pytest.raises(UsageError, match="OPENSLED_NO_CONFIG"):
        paired.keep(SERVER, "authority", "ab" * 32)
    with pytest.raises(UsageError, match="OPENSLED_NO_CONFIG"):
        pair_first(EdgeConfig(pair="4821-0937", host="127.0.0.1:1"))


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"server": 5}', '{"server": "x"}', "null"])
def test_a_damaged_pairing_is_named_and_matters_to_nobody_else(kept, damage):
    (kept / "server.json").write_text(damage)
    with pytest.raises(UsageError, match="is damaged; pair this device again"):
        values()
    assert values(server="192.0.2.9:7411") == {"server": "192.0.2.9:7411"}


def test_a_half_written_pairing_does_not_count(kept, monkeypatch):
    """The token of one home must not meet the authority of another."""

    def full(path, content, private=False):
        if path.name == "token":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("opensled.core.files.write_whole", full)
    with pytest.raises(UsageError, match="No space left"):
        paired.keep("other:7411", "another", "cd" * 32)
    assert values() == {}


def test_the_doctor_does_not_send_the_token_to_another_server(kept):
    asked = DoctorConfig(**values("doctor", server="192.0.2.9:7411"))
    assert with_edge_section(asked, "doctor") == asked
    asked = DoctorConfig(**values("doctor", server="127.0.0.1:7411"))
    assert with_edge_section(asked, "doctor").token_file == ""
    own = DoctorConfig(**values("doctor"))
    assert with_edge_section(own, "doctor") == own


def test_the_doctor_follows_the_settings_of_edge_before_the_pairing(kept):
    user_file('[edge]\nserver = "192.0.2.9:7411"\n')
    found = with_edge_section(DoctorConfig(**values("doctor")), "doctor")
    assert (found.server, found.token_file, found.tls_ca) == ("192.0.2.9:7411", "", "")


def test_a_host_belongs_to_a_code():
    with pytest.raises(UsageError, match=r"without --pair: write --server"):
        pair_first(EdgeConfig(**parse_flags("edge", ["192.0.2.7"])))
    assert parse_flags("edge", ["--pair", "4821-0937", "hub"]) == {"pair": "4821-0937", "host": "hub"}
    assert parse_flags("edge", ["--pair", "4821-0937"]) == {"pair": "4821-0937"}
    with pytest.raises(UsageError, match="not a pairing code"):
        pair_first(EdgeConfig(pair="hello", host="hub"))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("hub", ("hub", 7412)),
        ("hub:99", ("hub", 99)),
        ("192.0.2.7", ("192.0.2.7", 7412)),
        ("fd00::1", ("fd00::1", 7412)),
        ("[fd00::1]", ("fd00::1", 7412)),
        ("[fd00::1]:99", ("fd00::1", 99)),
    ],
)
def test_places_of_a_pairing_port(given, found):
    assert _place(given) == found


@pytest.mark.parametrize("given", ["a b", "http://hub", "hub:", "hub:99999", "hub/x:1", "@hub"])
def test_places_that_are_none(given):
    with pytest.raises(UsageError):
        _place(given)


def test_discovery_gives_an_address_and_the_certificate_must_name_the_paired_server(
    kept, monkeypatch, tmp_path
):
    AUTHORITY.cert_pem.write_to_path(kept / "ca.pem")
    mine, asked = str(written(tmp_path)), []
    monkeypatch.setattr(discovery, "find", lambda kind, tls, name: asked.append(name) or "192.0.2.66:7411")
    found = locate_server(EdgeConfig(**values(server="mdns")))
    assert (found.server, found.tls_name) == ("192.0.2.66:7411", "hub.local")
    assert locate_server(EdgeConfig(**values(server="mdns", tls_ca=mine, tls_name="x"))).tls_name == "x"
    assert locate_server(EdgeConfig(**values(server="mdns", tls_ca=mine))).tls_name == ""
    assert asked == ["hub.local", "x", ""]
    named = EdgeConfig(server="a:1")
    assert locate_server(named) is named


def test_discovery_without_a_certificate_to_check_is_refused():
    with pytest.raises(UsageError, match="pair this device first"):
        locate_server(EdgeConfig(server="mdns"))
    with pytest.raises(UsageError, match="pair this device first"):
        locate_server(EdgeConfig(server="mdns", token_file="token"))


def test_a_missing_library_is_named_before_the_code_is_used(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "home.pairing.channel", raising=False)
    monkeypatch.delattr(home.pairing, "channel", raising=False)
    monkeypatch.setitem(sys.modules, "spake2", None)
    monkeypatch.setattr("home.pairing.pair_device.pair", lambda *_: pytest.fail("it connects"))
    assert main(["edge", "--pair", "4821-0937", "127.0.0.1"]) == 1
    assert "spake2" in capsys.readouterr().err


def test_what_pairing_needs_comes_with_one_extra():
    for module in ("cryptography", "spake2", "zeroconf", "ifaddr"):
        assert "[home]" in remedy(module)


def test_a_paired_device_goes_by_the_name_that_it_is_paired_under():
    """Others draw a name at each start, and the page shows that they have none."""
    folder = paired.keep(SERVER, "authority", "ab" * 32, name="kitchen")
    assert own_name(str(folder / "token")) == "kitchen"
    drawn = own_name("another-token"), own_name("")
    assert all(name.startswith("unnamed-") for name in drawn) and drawn[0] != drawn[1]
    paired.forget()
    assert own_name(str(folder / "token")).startswith("unnamed-")
