"""Lazy registries, and the advice for a module that is not installed."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from opensled.core.errors import UsageError
from opensled.process import registry
from opensled.process.registry import Registry, remedy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


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
    extras = PROJECT["optional-dependencies"]
    asked = extras[extra] if extra else PROJECT["dependencies"]
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
