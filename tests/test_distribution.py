"""The two packages, and the one place that spells how to install them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import pytest

from opensled.cli import main as cli
from opensled.cli.config_file import read_file
from opensled.cli.verbs import VERBS
from opensled.core.errors import UsageError
from opensled.process import distribution, registry
from opensled.process.registry import Registry, remedy, remedy_of
from tests.absent import without
from tests.commands import opensled
from tests.layers import EVERYTHING, PLUG_INS, _imports, _module, _room, _sources

ROOT = Path(__file__).resolve().parents[1]
WHOLE = read_file(ROOT / "pyproject.toml")
DEVICE = read_file(ROOT / "deploy/edge/pyproject.toml")
PIP = distribution.command().partition(" install ")[0]  # of this Python
# What each package holds, as paths from the root; of the device's, the plug-ins by rooms and files.
HOLDS = {
    "opensled": set(WHOLE["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]),
    "opensled-edge": {
        name
        for name in DEVICE["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].values()
        if "_models/" not in name
    },
}
OF_CHECKOUTS = {
    "demo",
    "plan",
    "bench serve",
    "bench drafts",
    "quality",
    "train-head",
    "train-pivots",
    "adapt",
    "models eval",
}
OF_SERVERS = {
    "serve",
    "relay",
    "run",
    "selftest",
    *("pair", "pair list", "pair rename", "pair revoke", "kept list", "kept delete"),
    *("drafts keygen", "drafts publish", "drafts list", "drafts rollback", "drafts delete"),
}

# Where commands that install OpenSLED may stand: the helper, the page, the home's page whose check types them, and
# files that install it themselves.
SPELLED_IN = {
    "opensled/process/distribution.py",
    "docs/install.md",
    "docs/home.md",
    "docs/vllm.md",
    "tests/home_check.py",
    "tests/test_home_page.py",
    "deploy/docker/edge.Dockerfile",
    "deploy/docker/verify.Dockerfile",
    "tests/wheel_check.py",
    "tests/test_distribution.py",
}
SPELLED = re.compile(
    r"""pip3? (?:install|wheel|download)[^\n]*(?:\bopensled\b|\./deploy/edge|["' ]\.(?:\[|["'`]|$))""", re.M
)


def test_no_other_place_spells_how_to_install_opensled():
    spelt = ['pip install "opensled[onnx]"', "pip install -U opensled", "pip install ./deploy/edge"]
    for each in [*spelt, 'pip install -c c.txt ".[x]"']:
        assert SPELLED.search(each)
    for other in ("pip install --upgrade grpcio", "pip install ./this", "pip install ollama."):
        assert not SPELLED.search(other)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    strays = []
    for name in set(listed.stdout.split()) - SPELLED_IN:
        if re.search(r"\.(py|md|toml|txt|sh|yml|service|env|conf|Dockerfile)$|Makefile$", name):
            text = (ROOT / name).read_text().replace("\\\n", " ")
            strays += [f"{name}: {found[0]}" for found in SPELLED.finditer(text)]
    assert strays == []


def test_both_packages_ask_for_the_same_libraries():
    whole, device = WHOLE["project"], DEVICE["project"]
    assert device["dependencies"] == whole["dependencies"]
    assert device["requires-python"] == whole["requires-python"]
    assert set(device["optional-dependencies"]) == {*distribution.DEVICE_EXTRAS} - {""}
    for extra, asked in device["optional-dependencies"].items():
        assert set(asked) <= set(whole["optional-dependencies"][extra])


def held(package: str, module: str) -> bool:
    """Whether a package holds a module of ours."""
    path = module.replace(".", "/")
    return any(f"{path}/".startswith(f"{name.removesuffix('.py')}/") for name in HOLDS[package])


def test_the_devices_package_holds_what_a_device_imports():
    """All packages that its files and its commands import, of the plug-ins the rooms, and nothing else."""
    files = {_module(file): file for file in _sources(*EVERYTHING)}
    needed = {_place(file) for file in _sources("edge_client")}
    verbs = [verb for name, verb in VERBS.items() if name not in OF_CHECKOUTS | OF_SERVERS]
    needed |= {_place(files[module]) for verb in verbs for module in verb.modules}
    found = set()
    while needed - found:
        found |= needed
        inside = [file for file in files.values() if _place(file) in found]
        named = [name for file in inside for name, _ in _imports(file)]
        imported = {files.get(name) or files.get(name.rpartition(".")[0]) for name in named}
        needed = {_place(file) for file in imported - {None}}
    roots = {f"{top}/__init__.py" for top in PLUG_INS if any(name.startswith(f"{top}/") for name in found)}
    assert HOLDS["opensled-edge"] == found | roots
    included = DEVICE["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all((ROOT / "deploy/edge" / source).exists() for source in included)
    # That it runs on Python 3.10
    (checked,) = re.findall(r"^EDGE := (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert HOLDS["opensled-edge"] <= set(checked.split())


def _place(file: str) -> str:
    """What of the device's package a file comes with: its package, or of a plug-in its room, or itself in none."""
    top = file.partition("/")[0]
    if top not in PLUG_INS:
        return top
    return file if _room(file) == top else _room(file)


def test_each_package_has_its_commands():
    for package, absent in (("opensled", OF_CHECKOUTS), ("opensled-edge", OF_CHECKOUTS | OF_SERVERS)):
        lacking = {
            name for name, verb in VERBS.items() if not all(held(package, each) for each in verb.modules)
        }
        assert lacking == absent, package
    assert all(verb.here for verb in VERBS.values())  # a checkout has them all


def test_a_module_is_here_only_if_its_file_is(monkeypatch, tmp_path):
    """A device has `home` and not `home.desk`."""
    assert distribution.has("home.desk.config") and not distribution.has("home.desk.nothing")
    (tmp_path / "plugged/room").mkdir(parents=True)
    for name in ("__init__", "room/__init__", "room/config"):
        (tmp_path / f"plugged/{name}.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert distribution.has("plugged.room.config") and distribution.has("plugged.room")
    assert not distribution.has("plugged.desk.config") and not distribution.has("nowhere.desk.config")
    assert "plugged" not in sys.modules


def test_no_project_stands_for_a_package_of_ours(monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(ROOT), str(tmp_path / "none")])
    monkeypatch.chdir(tmp_path)
    distribution.find_own_first()
    assert sys.path == [str(ROOT), str(tmp_path / "none"), "", str(tmp_path)]
    assert {"opensled", "lab", *distribution._OWN} == set(EVERYTHING)


def test_the_whole_package_holds_all_but_the_laboratory():
    assert HOLDS["opensled"] >= set(EVERYTHING) - {"lab"} and "lab" not in HOLDS["opensled"]
    models = {name for name in HOLDS["opensled"] if name.startswith("models/")}
    assert all((ROOT / name).is_dir() for name in models)
    assert {name for name in HOLDS["opensled"] if name not in models} <= set(EVERYTHING)


def test_a_library_comes_with_the_extra_of_the_part_that_asks_for_it(tmp_path):
    """Several bring `cryptography`."""
    variables = without(tmp_path, "cryptography")
    for words, extra in (("drafts keygen --sign-key drafts.key", "adapt"), ("pair", "home")):
        done = opensled(*words.split(), cwd=tmp_path, variables=variables)
        assert done.returncode == 1 and f"[{extra}]'" in done.stderr, done.stderr
    done = ModuleNotFoundError("no module", name="cryptography.x509")
    assert "[home]" in remedy_of(done)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """`installed(package, direct_url)`: this copy came in that package, from there."""

    def install(package, direct_url):
        monkeypatch.setattr(distribution, "_HOME", tmp_path)
        monkeypatch.setattr(distribution, "has", partial(held, package))
        found = tmp_path / f"{package.replace('-', '_')}-0.1.0.dist-info"
        found.mkdir()
        (found / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {package}\nVersion: 0.1.0\n")
        if direct_url is not None:
            (found / "direct_url.json").write_text(json.dumps(direct_url))
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


WHEEL = {"url": "file:///w/opensled_edge-0.1.0-py3-none-any.whl", "archive_info": {}}
FOLDER = {"url": "file:///my%20code/deploy/edge", "dir_info": {}}
GIT = {
    "url": "https://x/o.git",
    "vcs_info": {"vcs": "git", "commit_id": "abc"},
    "subdirectory": "deploy/edge",
}
REMOVE = f"{PIP} uninstall --yes opensled-edge && {PIP} install"


@pytest.mark.parametrize(
    ("direct_url", "adds", "replaces"),
    [
        (
            WHEEL,
            f"'opensled-edge[onnx] @ {WHEEL['url']}'",
            "'opensled[server] @ file:///w/opensled-0.1.0-py3-none-any.whl'",
        ),
        (FOLDER, "'/my code/deploy/edge[onnx]'", "'/my code[server]'"),
        (
            GIT,
            "'opensled-edge[onnx] @ git+https://x/o.git@abc#subdirectory=deploy/edge'",
            "'opensled[server] @ git+https://x/o.git@abc'",
        ),
        (
            None,
            "--find-links FOLDER_OF_ITS_WHEEL 'opensled-edge[onnx]'",
            "--find-links FOLDER_OF_ITS_WHEEL 'opensled[server]'",
        ),
    ],
    ids=["wheel", "folder", "repository", "unknown"],
)
def test_a_device_gets_extras_from_where_its_package_came_from(installed, direct_url, adds, replaces):
    installed("opensled-edge", direct_url)
    assert distribution.command("onnx") == f"{PIP} install {adds}"
    assert distribution.command("server") == f"{REMOVE} {replaces}"


def test_the_whole_package_gets_its_extras_from_its_wheel(installed):
    url = "file:///w/opensled-0.1.0-py3-none-any.whl"
    installed("opensled", {"url": url, "archive_info": {}})
    assert distribution.command("server") == f"{PIP} install 'opensled[server] @ {url}'"


def test_a_checkout_installs_itself(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert distribution.command("onnx").endswith(f"pip install --editable '{ROOT}[onnx]'")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv/bin/python"))
    assert distribution.command() == ".venv/bin/python -m pip install --editable ."


def test_both_packages_in_one_place_are_refused(installed, capsys):
    installed("opensled-edge", None)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.endswith("(opensled-edge)\n")
    installed("opensled", None)
    assert cli.main(["--version"]) == UsageError.exit_code
    assert f"{PIP} uninstall --yes opensled opensled-edge" in capsys.readouterr().err


ABSENT = ("serve", "run smollm2", "pair", "pair list", "drafts keygen", "kept")
LABORATORY = ("demo --json", "plan", "quality", "bench", "bench serve", "models eval")
TOLD = {
    ABSENT: ("opensled-edge, the package for devices, has no opensled ", "'opensled[server] @ "),
    LABORATORY: ("comes with the source tree of OpenSLED", "docs/install.md"),
}


@pytest.mark.parametrize(
    ("package", "commands"),
    [("opensled-edge", ABSENT), ("opensled-edge", LABORATORY), ("opensled", LABORATORY)],
)
def test_a_command_that_a_package_has_not_says_how_to_get_it(installed, capsys, package, commands):
    installed(package, WHEEL)
    for words in commands:
        assert cli.main(words.split()) == UsageError.exit_code
        (line,) = capsys.readouterr().err.splitlines()
        assert all(part in line for part in TOLD[commands])


def test_the_help_of_the_whole_package_lists_what_it_has(installed, capsys):
    installed("opensled", None)
    assert cli.main(["--help"]) == 0
    commands, absent = capsys.readouterr().out.split("\n\nNot in opensled (docs/install.md): ")
    assert all(f"\n  {name} " in commands for name in ("serve", "edge", "pair", "drafts keygen"))
    assert "opensled run tiny" in commands and "demo" not in commands
    assert " ".join(absent.split("\n\n")[0].split()).split(", ") == [
        name for name in VERBS if name in OF_CHECKOUTS
    ]


def test_the_help_of_a_device_lists_what_it_has(installed, capsys):
    installed("opensled-edge", None)
    assert cli.main(["--help"]) == 0
    commands, absent = capsys.readouterr().out.split("\n\nNot in opensled-edge (docs/install.md): ")
    assert "\n  edge " in commands and "\n  serve " not in commands
    absent = " ".join(absent.split())
    assert all(name in absent for name in ("serve", "run", "demo", "plan", "bench serve", "models eval"))


def test_a_device_reads_a_configuration_file(installed, monkeypatch, config_paths, capsys):
    installed("opensled-edge", None)
    config_paths[0].write_text('drafter = "lookup"\n[serve]\nmodel = "tiny"\n')
    assert cli.main(["config", "init"]) == 0
    shown = capsys.readouterr().out
    assert "[generate]" in shown and "[serve]" not in shown


def test_a_server_of_gguf_targets_needs_no_library_of_others():
    """Extra `llamacpp` has none of them."""
    absent = dict.fromkeys(("torch", "transformers", "safetensors", "PIL"))
    modules = "verify_server.start.command, verify_server.start.load_target"
    code = f"import sys; sys.modules.update({absent}); import {modules}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# -- registries and what they miss --------------------------------------------------------------------------------


def distributions(requirements: list[str]) -> set[str]:
    """Names as PyPI compares them."""
    return {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower() for text in requirements}


@cache
def modules() -> dict[str, list[str]]:
    """What each installed distribution is imported as."""
    found: dict[str, list[str]] = {}
    for module, owners in metadata.packages_distributions().items():
        for owner in distributions(owners):
            found.setdefault(owner, []).append(module)
    return found


@pytest.mark.parametrize("extra", ["", "llamacpp", "onnx", "server", "home", "train"])
def test_a_missing_module_comes_with_what_asks_for_it(extra):
    extras = WHOLE["project"]["optional-dependencies"]
    asked = extras[extra] if extra else WHOLE["project"]["dependencies"]
    if extra == "server":
        asked = asked + extras["serving"]
    for name in distributions(asked) & modules().keys() - {"opensled"}:
        advice = "".join(map(remedy, modules()[name]))
        named = f"[{extra}]" in advice or f"extra {extra} " in advice
        assert named if extra else advice.endswith((" .", str(ROOT))), f"{name}: {advice}"


def test_beside_vllm_nothing_replaces_its_torch(monkeypatch):
    assert "[server]" in remedy("httpx") and "[server]" in remedy("jinja2")
    monkeypatch.setattr(registry, "find_spec", lambda name: name == "vllm" or None)
    assert "[serving]" in remedy("httpx") and "[serving]" in remedy("jinja2.sandbox")
    assert "[vllm]" in remedy("vllm.engine")


def test_modules_of_strangers_have_no_remedy():
    assert remedy("nobody.knows") == remedy(None) == ""


def test_a_registry_names_its_choices_and_what_is_missing():
    plugins = Registry(
        "drafter", {"good": "pathlib:Path", "absent": "llguidance_no_such:X", "bad": "pathlib:X"}
    )
    assert plugins.get("good") is Path and plugins.get("json:loads")
    for name, said in (
        ("other", "choose from good, absent, bad"),
        ("absent", "No module"),
        ("bad", "has no X"),
    ):
        with pytest.raises(UsageError, match=said):
            plugins.get(name)
