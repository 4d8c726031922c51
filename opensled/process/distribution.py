"""Which package this copy of OpenSLED came in, and the commands that add to it: docs/install.md and this file alone
spell them.

Two packages hold OpenSLED: `opensled` all of it but the laboratory, `opensled-edge` what a device needs. Neither is on
an index yet, so an extra comes from where its package came from: a checkout, a wheel or a repository, as pip notes it
(PEP 610). The laboratory (lab/: demo, planner, benchmarks, training) is in a checkout only.
"""

import shlex
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import opensled
from opensled.core.errors import UsageError

WHOLE, DEVICE, LAB = "opensled", "opensled-edge", "lab"
DEVICE_EXTRAS = ("", "adapt", "home", "llamacpp", "onnx", "prebuilt")  # of opensled-edge; "" = none
GUIDE = "docs/install.md"
UPDATE_SERVER = f"update OpenSLED on the server ({GUIDE})"
_OWN = (
    "adapt",
    "edge_client",
    "home",
    "http_api",
    "hw_profiles",
    "relay",
    "scheduler",
    "verify_server",
    "vllm_plugin",
)
_HOME = Path(opensled.__file__).resolve().parents[1]  # a checkout, or the folder that pip installs into


def find_own_first() -> None:
    """Look into folders with others of our names last: projects in PYTHONPATH or here have a `home`, a `scheduler`."""

    def has(name: str, place: str) -> bool:
        return PathFinder.find_spec(name, [place]) is not None

    sys.path.sort(key=lambda place: not has("opensled", place) and any(has(each, place) for each in _OWN))


@cache
def has(module: str) -> bool:
    """Whether this copy has `module`, such as home.desk.config; imports nothing."""
    top, *below = module.split(".")
    found, path = find_spec(top), top
    for name in below:
        path = f"{path}.{name}"
        found = found and PathFinder.find_spec(path, found.submodule_search_locations)
    return found is not None


def name() -> str:
    """The package that this copy came in, by what it holds."""
    return WHOLE if has("verify_server") else DEVICE


def offers(extra: str) -> bool:
    """Whether this package has that extra."""
    return name() == WHOLE or extra in DEVICE_EXTRAS


def require_one() -> None:
    """Refuse to run where both packages are: they share files, so that one may have overwritten the other's."""
    if all(any(_HOME.glob(f"{package.replace('-', '_')}-[0-9]*.dist-info")) for package in (WHOLE, DEVICE)):
        raise UsageError(
            f"{WHOLE} and {DEVICE} are both installed in {_HOME} and share files; remove both, then install one "
            f"({GUIDE}): {_pip('uninstall --yes', WHOLE, DEVICE)}"
        )


def require(asked: str, modules: tuple[str, ...]) -> None:
    """Refuse the command `asked` of the command line if this copy lacks one of its `modules`; say how to get it."""
    missing = [module for module in modules if not has(module)]
    if any(module.partition(".")[0] == LAB for module in missing):
        raise UsageError(
            f"opensled {asked} comes with the source tree of OpenSLED and is in no package; run it in a checkout, "
            f"where `make install` brings all that it needs ({GUIDE})"
        )
    if missing:
        raise UsageError(
            f"{DEVICE}, the package for devices, has no opensled {asked}; the whole of OpenSLED has: "
            f"{command('server')}"
        )


def absence(commands: list[str]) -> list[str]:
    """A paragraph of the help, in lines, on the commands of the command line that are not here; [] for none."""
    import textwrap

    return (
        ["", *textwrap.wrap(f"Not in {name()} ({GUIDE}): {', '.join(commands)}", 78, break_on_hyphens=False)]
        if commands
        else []
    )


def command(extra: str = "") -> str:
    """The shell command that installs `extra` in this environment; "" = the package itself, anew.

    What a device's package does not offer comes with the whole of OpenSLED, which replaces that package.
    """
    origin = _origin()
    if offers(extra):
        return _pip("install", *_source(name(), extra, origin))
    removal = _pip("uninstall --yes", DEVICE)
    return f"{removal} && {_pip('install', *_source(WHOLE, extra, _whole(origin)))}"


def _pip(verb: str, *words: str) -> str:
    return " ".join((_python(), "-m pip", verb, *map(shlex.quote, words)))


def _python() -> str:
    """This Python, as a shell in the current folder may call it."""
    path = Path(sys.executable)
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def _origin() -> dict[str, Any]:
    """Where pip found the package (PEP 610); {} = on an index or in a folder of wheels, or not by pip."""
    import json
    from importlib import metadata

    if (_HOME / "pyproject.toml").is_file():
        return {"url": _HOME.as_uri(), "dir_info": {"editable": True}}
    try:
        noted = metadata.distribution(name()).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        noted = None
    found: dict[str, Any] = json.loads(noted or "{}")
    return found


def _whole(origin: dict[str, Any]) -> dict[str, Any]:
    """Where the whole of OpenSLED lies, if the device's package came from `origin`: `make wheel` puts both wheels into
    one folder, and a checkout has the device's package below its own."""
    url = str(origin.get("url", "")).replace("/opensled_edge-", "/opensled-")
    return {**origin, "url": url.removesuffix("/deploy/edge"), "subdirectory": ""}


def _source(package: str, extra: str, origin: dict[str, Any]) -> list[str]:
    """What pip is to install: flags, then a requirement with its address."""
    extras = f"[{extra}]" if extra else ""
    url = str(origin.get("url", ""))
    if not url:
        return ["--find-links", "FOLDER_OF_ITS_WHEEL", f"{package}{extras}"]
    if "dir_info" in origin:
        return _from_folder(url, extras, bool(origin["dir_info"].get("editable")))
    version = origin.get("vcs_info", {})
    if version:
        url = f"{version['vcs']}+{url}@{version['commit_id']}"
    place = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
    return [f"{package}{extras} @ {url}{place}"]


def _from_folder(url: str, extras: str, editable: bool) -> list[str]:
    from urllib.parse import unquote, urlsplit

    folder = Path(unquote(urlsplit(url).path))
    spelled = "." if folder == Path.cwd() else str(folder)
    return [*(["--editable"] if editable else []), f"{spelled}{extras}"]
