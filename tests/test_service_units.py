"""The units that `opensled service` writes: their parts, limits and command lines, and what systemd says of them."""

import os
import re
import shutil
import subprocess

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from home.service import unit_text
from home.service.config import SERVICES
from home.service.service_flags import check_flags
from home.service.unit_text import UNITS, Facts, drop_ins, facts_of, quote, unit
from http_api.server import CLOSING, GRACE
from opensled.cli.config import options
from opensled.cli.main import CONFIGS, _parser
from opensled.core.errors import UsageError
from verify_server.front.draining import longest_end
from verify_server.options.serve_config import ServeConfig

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="there is no systemd-analyze here (Debian: apt-get install systemd)",
)
FLAGS = {"relay": ["--upstream", "192.0.2.1:7411"]}


@pytest.fixture(autouse=True)
def _everything_is_visible(monkeypatch):
    monkeypatch.setattr(unit_text, "HIDDEN", ())


def directives(text):
    """(section, name, value) of each line of a unit."""
    section, found = "", []
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            found.append((section, *line.split("=", 1)))
    return found


def written(service, system, flags=(), facts=Facts()):
    return unit(service, check_flags(service, [*FLAGS.get(service, []), *flags]), facts, system)


def service_values(text):
    return {name: value for section, name, value in directives(text) if section == "Service"}


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_starts_what_it_says_and_may_do_no_more(service, system):
    values = service_values(written(service, system))
    words = values["ExecStart"].split()
    verb, *arguments = words[words.index(service) :]
    assert verb == service and _parser(verb, options(CONFIGS.get(verb))).parse_args(arguments) is not None
    assert values["Type"] == "notify" and values["NoNewPrivileges"] == "yes" and values["UMask"] == "0077"
    # What ends without a word must fit: a longer --drain, and replicas, ask for more themselves (tests/test_notify.py).
    assert int(values["TimeoutStopSec"]) > {"edge": GRACE + CLOSING}.get(
        service, longest_end(ServeConfig.drain)
    )
    assert ("DynamicUser" in values) == ("CapabilityBoundingSet" in values) == system
    assert not system or (values["ProtectSystem"], values["ProtectHome"]) == ("strict", "yes")
    assert not system or (values["DynamicUser"], values["CapabilityBoundingSet"]) == ("yes", "")


@pytest.mark.parametrize(("service", "never"), [("serve", "2 3"), ("relay", "2 3"), ("edge", "2")])
def test_a_device_waits_for_a_server_that_announces_itself(service, never):
    """`--server mdns` ended with 3 while the server slept, and was never started again."""
    assert service_values(written(service, False))["RestartPreventExitStatus"] == never


def test_a_services_variables_are_options():
    assigned = set(re.findall(r"\b(OPENSLED_\w+)=", "".join(map(str, directives(written("edge", True))))))
    known = {item.variable for item in options(CONFIGS.get("edge"))}
    assert assigned - {"OPENSLED_NO_CONFIG"} <= known


def families(service, system, values):
    """All that a service may use; systemd adds those of later lines to those of earlier ones."""
    texts = [written(service, system), *drop_ins(values, system).values()]
    found = [
        value for text in texts for _, name, value in directives(text) if name == "RestrictAddressFamilies"
    ]
    return set(" ".join(found).split())


@pytest.mark.parametrize(
    ("service", "values"),
    [("serve", {"replicas": 2}), ("serve", {"announce": True}), ("edge", {"server": "mdns"})],
)
def test_who_lists_the_machines_addresses_may_ask_the_kernel(service, values):
    """Pairing did not: a server of a user with --paired ended with "Address family not supported"."""
    assert "AF_NETLINK" in families(service, True, values) & families(service, False, {"paired": True})
    assert "AF_NETLINK" not in families(service, True, {})


def test_every_part_is_used():
    named = {*SERVICES, "unit", "system", "user", "gpu-system", "gpu-user", "netlink"}
    assert {path.stem for path in UNITS.iterdir()} == named


def test_facts_come_back_out_of_a_unit():
    facts = Facts("http://127.0.0.1:8411/", True, ("/a b/token", "/c=d"))
    assert facts_of(written("edge", False, facts=facts)) == facts
    assert facts_of("[Service]\n") == Facts()


def read_by_systemd(line):
    """The words of a command line as systemd.service(5) reads them, `%` and `$` undone: written from its text."""
    for inside, plain in re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line):
        word = plain or re.sub(r"\\(.)", r"\1", inside)
        yield word.replace("%%", "%").replace("$$", "$")


WORDS = st.lists(
    st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=12), max_size=6
)


@examples(WORDS)
def test_words_reach_the_service_as_they_are(words):
    assert list(read_by_systemd(" ".join(map(quote, words)))) == words


@pytest.mark.parametrize(
    "word", ["$HOME", "${HOME}", "%n", ";", "a;b", "'", '"', "\\", "-x y", "", "#", "\\;"]
)
def test_no_word_keeps_a_meaning_for_systemd(word):
    line = quote(word)
    assert list(read_by_systemd(line)) == [word]
    assert line.startswith('"') and not re.search(r"(?<!\$)\$(?!\$)|(?<!%)%(?!%)", line)


@pytest.mark.parametrize("name", ["back\\slash", "blank "])
def test_a_secret_with_a_name_that_a_unit_cannot_hold_is_refused(tmp_path, name):
    (tmp_path / name).write_text("t")
    with pytest.raises(UsageError, match="rename the file"):
        written("edge", True, ["--token-file", str(tmp_path / name)])


def test_a_program_with_a_dollar_in_its_path_is_refused(monkeypatch):
    monkeypatch.setattr(unit_text, "program", lambda: ["/opt/$x/opensled"])
    with pytest.raises(UsageError, match="dollar sign"):
        written("edge", False)


@needs_analyze
@pytest.mark.parametrize("system", [True, False])
def test_systemd_finds_no_fault(tmp_path, system):
    (tmp_path / "to ken").write_text("t")
    hostile = ["--device-name", 'Küche $HOME %n "x" it\'s ; \\back', "--token-file", str(tmp_path / "to ken")]
    texts = {service: written(service, system, hostile if service == "edge" else ()) for service in SERVICES}
    paths = [tmp_path / f"opensled-{service}.service" for service in SERVICES]
    for path, text in zip(paths, texts.values()):
        path.write_text(text)
        folder = path.with_name(f"{path.name}.d")
        folder.mkdir()
        for name in ("gpu-system" if system else "gpu-user", "netlink"):
            (folder / f"{name}.conf").write_text((UNITS / f"{name}.conf").read_text())
    words = ["systemd-analyze", "--system" if system else "--user", "verify", *paths]
    folders = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(words, env=folders, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    paths[0].write_text(f"{paths[0].read_text()}\n[Service]\nNoSuchDirective=1\n")
    assert "NoSuchDirective" in subprocess.run(words, env=folders, capture_output=True, text=True).stderr


@needs_analyze
@pytest.mark.parametrize("service", SERVICES)
def test_systemd_rates_the_exposure_ok(tmp_path, service):
    path = tmp_path / f"opensled-{service}.service"
    path.write_text(written(service, True))
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
