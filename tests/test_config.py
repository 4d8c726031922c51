"""Layers of configuration, and errors that name where a bad value came from."""

import json
import math
import re
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.device.prompt_config import GenerateConfig
from edge_client.doctor.edge_section import with_edge_section
from opensled.cli import main as cli
from opensled.cli.config import config_files, option, options
from opensled.cli.config_command import DEVICE_VERBS, sample
from opensled.cli.config_file import TABLES, read_file
from opensled.cli.config_layers import merge_layers, resolve
from opensled.cli.main import CONFIGS
from opensled.cli.verbs import VERBS
from opensled.core.errors import UsageError
from opensled.net.address import host_port, join_host_port


@dataclass(frozen=True)
class Sample:
    """One field of every kind."""

    what: str = option("", "a positional argument", positional=True)
    listen: str = option("127.0.0.1:1", "an address", check=host_port)
    mode: str = option("slow", "a choice", choices=("slow", "quick"))
    draft_wait: float = option(0.5, "seconds", low=0)
    share: float = option(0.5, "a share", low=0, high=1)
    count: int = option(3, "a number", low=1)
    seed: int | None = option(None, "may be left out")
    loud: bool = option(False, "a switch")
    rare: int = option(1, "rarely set", low=1, file_only=True)
    most: int = option(8, "a limit", low=1, table="limits")


NAMED = {item.name: item for item in options(Sample)}


def test_names_follow_from_the_field():
    wait = NAMED["draft_wait"]
    assert (wait.flag, wait.variable, wait.kind) == ("--draft-wait", "OPENSLED_DRAFT_WAIT", float)
    assert NAMED["seed"].kind is int
    assert (wait.flags, NAMED["loud"].flags) == (("--draft-wait",), ("--loud", "--no-loud"))
    assert NAMED["rare"].flags == NAMED["most"].flags == ()
    assert (NAMED["rare"].variable, NAMED["most"].key) == ("OPENSLED_RARE", "most")


def test_precedence(config_paths):
    here, user = config_paths
    user.write_text("[sample]\ncount = 10\nmode = 'quick'\ndraft-wait = 10\nshare = 0.1\n")
    here.write_text("[sample]\ncount = 20\nmode = 'slow'\ndraft_wait = 20\n")
    environ = {"OPENSLED_COUNT": "30", "OPENSLED_DRAFT_WAIT": "30"}
    found = resolve(Sample, "sample", {"count": 40, "what": "it"}, environ)
    assert found == Sample(what="it", count=40, draft_wait=30.0, mode="slow", share=0.1)
    with pytest.raises(FrozenInstanceError):
        found.count = 1  # type: ignore[misc]


def test_an_option_of_a_table_has_variable_and_key(config_paths):
    here, user = config_paths
    user.write_text("[limits]\nmost = 10\n[sample]\nrare = 2\n")
    assert resolve(Sample, "sample", {}, {}) == Sample(most=10, rare=2)
    assert resolve(Sample, "other", {}, {}) == Sample(most=10), "the table is not the command's"
    here.write_text("rare = 3\n[limits]\nmost = 20\n")
    assert merge_layers(Sample, "sample", {}, {})[1] == {"most": 20, "rare": 3}
    assert resolve(Sample, "sample", {}, {"OPENSLED_MOST": "30"}).most == 30


def test_a_named_file_is_read_alone(config_paths, monkeypatch, tmp_path):
    for path in config_paths:
        path.write_text("[sample]\ncount = 10\nrare = 10\n")
    named = tmp_path / "named.toml"
    monkeypatch.setenv("OPENSLED_CONFIG", str(named))
    monkeypatch.setenv("OPENSLED_NO_CONFIG", "1")  # as in containers, and in services of the system
    with pytest.raises(UsageError, match=r"named\.toml cannot be read"):
        resolve(Sample, "sample", {})
    named.write_text("[limits]\nmost = 20\n[sample]\ncount = 20\n")
    assert resolve(Sample, "sample", {}) == Sample(count=20, most=20)
    assert merge_layers(Sample, "sample", {})[1] == {}


def test_files_by_importance(config_paths):
    assert config_files() == []
    for path in config_paths:
        path.write_text("")
    assert [path.resolve() for path in config_files()] == [path.resolve() for path in config_paths]


def test_the_environment_is_the_processs(config_paths, monkeypatch):
    monkeypatch.setenv("OPENSLED_SEED", '"-5"\r')  # as a file for variables may have it
    monkeypatch.setenv("OPENSLED_MODE", "")  # empty counts as not set
    monkeypatch.setenv("OPENSLED_WHAT", "no variable sets a positional argument")
    assert resolve(Sample, "sample", {}) == Sample(seed=-5)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("draft_wait", "inf", math.inf),
        ("draft_wait", "2", 2.0),
        ("count", "7", 7),
        ("loud", "Yes", True),
        ("loud", "0", False),
        ("listen", "[::1]:80", "[::1]:80"),
        ("mode", "quick", "quick"),
    ],
)
def test_spellings(name, text, value):
    parsed = NAMED[name].parse(text, "here")
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("count", "many", "OPENSLED_COUNT: 'many' is not a whole number"),
        ("count", "1.5", "OPENSLED_COUNT: '1.5' is not a whole number"),
        ("count", "0", "OPENSLED_COUNT: 0 is out of range: it must be at least 1"),
        ("share", "2", "OPENSLED_SHARE: 2.0 is out of range: it must be from 0 to 1"),
        ("draft_wait", "nan", "OPENSLED_DRAFT_WAIT: nan is out of range"),
        ("mode", "fast", "OPENSLED_MODE: 'fast' is not one of slow, quick"),
        ("loud", "maybe", "OPENSLED_LOUD: 'maybe' is not true or false"),
        ("listen", "localhost", "OPENSLED_LISTEN: 'localhost' is not an address; write HOST:PORT"),
    ],
)
def test_bad_variables_are_named(name, text, said):
    with pytest.raises(UsageError) as caught:
        resolve(Sample, "sample", {}, {NAMED[name].variable: text}, files=())
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sample]\ncuont = 3", "unknown key 'cuont' in [sample]; did you mean count?"),
        ("[sample]\ndraft-wiat = 3", "unknown key 'draft-wiat' in [sample]; did you mean draft-wait?"),
        ("[sample]\nzzz = 3", "unknown key 'zzz' in [sample]; see opensled sample --help-all"),
        ("[sample]\nwhat = 'it'", "unknown key 'what'"),
        ("[sample]\ncount = '3'", "count in [sample]: '3' is not a whole number"),
        ("[sample]\ncount = true", "count in [sample]: True is not a whole number"),
        ("[sample]\nloud = 1", "loud in [sample]: 1 is not true or false"),
        ("[sample]\ndraft-wait = -1", "draft-wait in [sample]: -1 is out of range"),
        ("[simple]\ncount = 3", "unknown section [simple]; did you mean [sample]?"),
        ("[zzz]\ncount = 3", "unknown section [zzz]; sections are limits, other, sample"),
        (
            "[count]\nname = 3",
            "unknown section [count]; write `count = VALUE` above all sections, or in that of its",
        ),
        ("[limits]\nmots = 3", "unknown key 'mots' in [limits]; did you mean most?"),
        ("[limits]\nzzz = 3", "unknown key 'zzz' in [limits]; see opensled config init"),
        ("[limits]\nmost = 0", "most in [limits]: 0 is out of range: it must be at least 1"),
        ("[limits]\nmost = true", "most in [limits]: True is not a whole number"),
        ("[limits]\ncount = 3", "'count' belongs in [sample], not in [limits]"),
        ("[sample]\nmost = 3", "'most' belongs in [limits]"),
        ("most = 3", "'most' belongs in [limits]"),
        ("limits = 3", "limits is not a section; write [limits]"),
        ("[limts]\nmost = 3", "unknown section [limts]; did you mean [limits]?"),
        ("cuont = 3", "unknown key 'cuont'; did you mean count?"),
        ("count = '3'", "opensled.toml: count: '3' is not a whole number"),
        ("zzz = 3", "unknown key 'zzz'"),
        ("sample = 3", "sample is not a section; write [sample]"),
        ("[sample", "cannot be read"),
        ("[sample]\nmode = 'caf\xe9'", "cannot be read"),
    ],
)
def test_bad_files_are_named(config_paths, text, said):
    config_paths[0].write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        merge_layers(
            Sample, "sample", {}, {}, sections=("sample", "other", "limits"), keys=lambda: ["count", "loud"]
        )
    assert str(caught.value).startswith("opensled.toml")
    assert said in str(caught.value)


def test_a_key_above_all_sections_counts_for_every_verb_that_has_it(config_paths):
    here, user = config_paths
    user.write_text("count = 10\nshare = 0.1\n")
    here.write_text("count = 20\nother-key = 1\n[sample]\nshare = 0.2\n[other]\ncount = 30\n")
    found = merge_layers(Sample, "sample", {}, {}, sections=("sample", "other"), keys=lambda: ["other_key"])
    assert found[0] == {"count": 20, "share": 0.2}
    here.write_text("count = 20\n[sample]\ncount = 25\n")
    assert resolve(Sample, "sample", {}, {}).count == 25


def test_a_section_in_a_section(config_paths):
    config_paths[0].write_text("[sample.one]\ncount = 5\n[sample.two]\nnothing = 'of our business'\n")
    assert resolve(Sample, "sample.one", {}, {}).count == 5


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:7411", ("127.0.0.1", 7411)),
        ("[::1]:0", ("::1", 0)),
        ("hub.local:65535", ("hub.local", 65535)),
    ],
)
def test_addresses(address, expected):
    assert host_port(address) == expected
    assert join_host_port(*expected) == address


@pytest.mark.parametrize(
    "address", ["", "7411", ":7411", "host:", "host:65536", "host:-1", "host:x", "host:²"]
)
def test_no_addresses(address):
    with pytest.raises(UsageError, match="is not an address"):
        host_port(address)


ADDRESSES = {  # by verb and option: the port that stands in for one that is left out
    ("serve", "listen"): 7411, ("serve", "http"): 8411, ("serve", "metrics"): 9410, ("serve", "ray_address"): 6379,
    ("relay", "listen"): 7412, ("relay", "upstream"): 7411, ("relay", "metrics"): 9410,
    ("edge", "server"): 7411, ("edge", "fallback"): 7411, ("edge", "http"): 8411, ("edge", "metrics"): 9411,
    ("edge", "draft_url"): 11434, ("drafts pull", "server"): 7411, ("pair", "listen"): 7412,
}  # fmt: skip


@pytest.mark.parametrize(("verb", "name"), ADDRESSES)
def test_a_port_or_a_host_alone_is_an_address_everywhere(verb, name):
    item = next(each for each in options(CONFIGS.get(verb)) if each.name == name)
    port, start = ADDRESSES[verb, name], "http://" if name == "draft_url" else ""
    own = "0.0.0.0" if verb == "pair" else "127.0.0.1"
    wholes = {
        "5": f"{own}:5",
        "h": f"h:{port}",
        " h:5 ": "h:5",
        "::1": f"[::1]:{port}",
        "[::1]": f"[::1]:{port}",
    }
    if start:
        wholes |= {" http://h:5/v1 ": "h:5/v1", "h:5/v1 ": "h:5/v1"}
    for given, whole in {**wholes, "[::1]:5": "[::1]:5", "10.0.0.1": f"10.0.0.1:{port}"}.items():
        assert item.parse(given, item.flag) == start + whole
    for wrong in ("h:", "99999", "h:x", "h:65536", "a b", ":5"):
        with pytest.raises(UsageError, match=f"{item.flag}: .* is not an address; write .* {own}:{port}"):
            item.parse(wrong, item.flag)


def test_no_address_has_a_grammar_of_its_own():
    every = [item for verb in VERBS for item in options(CONFIGS.get(verb)) if item.metavar == "HOST:PORT"]
    assert all(item.read for item in every) and len(every) > len(ADDRESSES)


# -- the sample file ----------------------------------------------------------------------------------------------


SAMPLED = ("serve", *DEVICE_VERBS)


def set_in(text: str) -> str:
    """The sample with every option set that has a default."""
    given = r"^# (?=[a-z-]+ = (-?\d|true|false|\"[^A-Z[]|\"[^\"]*[a-z]))"
    return "\n".join(re.sub(given, "", line) for line in text.splitlines())


def test_it_is_printed_and_sets_nothing(capsys, tmp_path):
    assert cli.main(["config", "init"]) == 0
    printed = capsys.readouterr().out
    assert printed == sample() and max(map(len, printed.splitlines())) <= 120
    assert "\n## drafting\n\n# drafter: auto," in printed
    file = tmp_path / "opensled.toml"
    file.write_text(printed)
    assert read_file(file) == {name: {} for name in (*SAMPLED, *TABLES)}


@pytest.mark.parametrize("verb", SAMPLED)
def test_every_option_stands_there_with_its_default(verb, tmp_path):
    file = tmp_path / "opensled.toml"
    file.write_text(set_in(sample()))
    kind = cli.CONFIGS.get(verb)
    values = merge_layers(kind, verb, {}, {}, [file], {*SAMPLED, *TABLES}, cli._keys)[0]
    defaults = {item.name: item.default for item in options(kind) if not item.positional}
    assert values == {name: value for name, value in defaults.items() if value not in (None, "")}


# -- a folder that may be a stranger's ----------------------------------------------------------------------------


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
def test_the_users_token_does_not_go_where_a_folder_says(files, theirs, named):
    folder, own = files
    own.write_text(USERS)
    folder.write_text(f"[generate]\n{theirs}\n")
    with pytest.raises(UsageError) as caught:
        resolved()
    assert f"give {named} yourself; else set OPENSLED_NO_CONFIG=1" in str(caught.value)


def test_a_token_of_the_command_line_does_not_either(files):
    files[0].write_text("[generate]\nserver = 'evil:1'\n")
    with pytest.raises(UsageError, match="--server evil:1"):
        resolved(token_file="token")
    with pytest.raises(UsageError, match="--server evil:1"):
        resolve(GenerateConfig, "generate", {}, {"OPENSLED_TOKEN_FILE": "token"})


def test_tls_is_not_turned_off(files):
    files[1].write_text("[generate]\ntls = true\ntoken_file = 'token'\n")
    files[0].write_text("[generate]\ntls = false\n")
    with pytest.raises(UsageError, match="--no-tls"):
        resolved()
    files[0].write_text("[generate]\ntls = true\n")
    assert resolved().tls


def test_consent_is_to_say_it_oneself(files, monkeypatch):
    folder, own = files
    own.write_text(USERS)
    folder.write_text("[generate]\nserver = 'evil:1'\npace = 7\n")
    assert resolved(server="evil:1").token_file == "~/token"
    assert resolve(GenerateConfig, "generate", {}, {"OPENSLED_SERVER": "evil:1"}).server == "evil:1"
    monkeypatch.setenv("OPENSLED_NO_CONFIG", "1")
    assert resolved().server == "127.0.0.1:7411"


def test_what_is_no_secrets_way_is_the_folders_to_set(files):
    folder, own = files
    own.write_text(USERS)
    folder.write_text("[generate]\npace = 7\nserver = 'home:7411'\n")
    assert (resolved().pace, resolved().server) == (7.0, "home:7411")
    own.write_text("")
    folder.write_text("[generate]\nserver = 'theirs:1'\ntoken_file = 'token'\n")
    assert resolved().token_file == "token"


def test_a_folder_names_no_secret_outside_of_it(files, tmp_path):
    folder, _ = files
    Path("link").symlink_to(tmp_path / "home/token")
    for path in (str(tmp_path / "home/token"), "../home/token", "~/token", "link"):
        folder.write_text(f"[generate]\nserver = 'evil:1'\ntoken_file = '{path}'\n")
        with pytest.raises(UsageError, match="names a secret outside of its folder"):
            resolved()
        assert resolved(token_file=path, server="evil:1").token_file == path


def test_the_doctor_takes_no_token_of_edge_there(files):
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


def test_the_doctor_takes_keys_of_other_verbs(files):
    files[0].write_text("max-sessions = 3\nsystem = 'Be brief.'\n[edge]\npace = 2.0\n")
    assert with_edge_section(DoctorConfig(), "doctor").pace == 2.0


def test_its_use_is_announced_in_one_line(files, capsys):
    folder, own = files
    own.write_text("[models.list]\njson = true\n")
    assert cli.main(["models", "list"]) == 0
    assert capsys.readouterr().err == ""
    folder.write_text("[models.list]\njson = true\n")
    assert cli.main(["models", "list"]) == 0
    assert capsys.readouterr().err == "note: opensled.toml of this folder sets json\n"
    assert cli.main(["models", "list", "--json"]) == 0
    assert capsys.readouterr().err == "", "nothing of it is used"


def test_it_cannot_hide_itself(files, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    for form in ("log_level = 'error'", "log_level = 'error'\nlog_json = true"):
        files[0].write_text(f"[generate]\nserver = '127.0.0.1:1'\n{form}\n")
        assert cli.main(["generate", "Hi", "--drafter", "none"]) == 5
        line = capsys.readouterr().err.splitlines()[0]
        said = json.loads(line)["message"] if line.startswith("{") else line.removeprefix("note: ")
        assert said.startswith("opensled.toml of this folder sets") and "server" in said
