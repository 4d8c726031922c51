"""`make wheel-test`: build both wheels, install each in clean environments, and use it from another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import opensled
from lab.testbed.processes import Process
from opensled.cli.child_server import READY

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "opensled",
    "edge_client",
    "http_api",
    "verify_server",
    "relay",
    "scheduler",
    "hw_profiles",
    "lab.training",
    "lab.testbed",
}
SERVERS = {"verify_server", "relay", "scheduler", "lab.training", "lab.testbed"}
MODELS = {
    "tiny/model.safetensors",
    "tiny/tiny-f16.gguf",
    "tiny/tokenizer.json",
    "tiny-hub/model.safetensors",
    "tiny-hub/tiny-hub-f16.gguf",
    "tiny-vision/model.safetensors",
    "tiny-vision-draft/exit.json",
    "tiny-vision-draft/exit.safetensors",
    "tiny-vision-draft/tiny-vision-draft-q8_0.gguf",
    "tiny-draft/tokenizer.json",
    "tiny-draft/tiny-draft.table",
    "heldout.jsonl",
    "_heads/smollm2-ctc/head.safetensors",
    "_pivots/tiny/pivots.npz",
}


# What files of models are made of: the wheel has the files themselves (hatch_build.py).
ALONE = ("--drafter", "none", "--listen", "127.0.0.1:0")  # a server whose devices draft
PIECES = (".recipe.json", ".head", ".int8")
PAGE = "http_api/page/page.html"
UNITS = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("home/service/units/*.conf")}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="opensled-wheel-") as name:
        folder = Path(name)
        subprocess.run(["make", "wheel"], cwd=ROOT, check=True)
        whole, device = built("opensled"), built("opensled_edge")
        check_contents(whole)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        check_device(device, whole, folder)
        check_without_torch(whole, folder)
        check_use(install(f"opensled[server,llamacpp,onnx] @ {whole.as_uri()}", folder / "venv"), elsewhere)
        for wheel in (whole, device):
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed and used")


def built(package: str) -> Path:
    """The wheel of this version that `make wheel` has just built."""
    return ROOT / f"dist/{package}-{opensled.__version__}-py3-none-any.whl"


def check_contents(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in files if ".dist-info/" not in name}
    assert tops == PACKAGES, f"the wheel installs {sorted(tops)}"
    assert UNITS and set(files) >= UNITS, "the wheel lacks parts of units"
    assert PAGE in files, "the wheel lacks the page"
    missing = {model for model in MODELS if f"opensled/_models/{model}" not in files}
    assert not missing, f"the wheel lacks {sorted(missing)}"
    assert not [name for name in files if name.endswith(PIECES)], "the wheel has pieces of what is in it"
    for form in (".gguf", ".onnx"):
        assert any(
            name.startswith("opensled/_models/tiny-draft/") and name.endswith(form) for name in files
        ), form


def check_without_torch(whole: Path, folder: Path) -> None:
    """A clean environment with extra `llamacpp` serves `tiny`, of the GGUF file in the wheel."""
    opensled = install(f"opensled[llamacpp] @ {whole.as_uri()}", folder / "without-torch")
    serve = [str(opensled), "serve", "--model", "tiny", "--engine", "llamacpp", *ALONE]
    with subprocess.Popen(
        serve, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            ready = next(line for line in server.stdout if line.startswith(READY))
            print(ask(opensled, ready.removeprefix(READY).strip(), folder, "llamacpp"))
        finally:
            server.terminate()


def check_device(wheel: Path, whole: Path, folder: Path) -> None:
    """The device's wheel, with each of its extras, against a server of this checkout; with every Python there is."""
    files = zipfile.ZipFile(wheel).namelist()
    for kind in ("_heads/", "_pivots/"):
        assert not [name for name in files if kind in name], f"the device's wheel carries {kind}"
    assert set(files) >= UNITS, "the device's wheel lacks parts of units"
    assert PAGE in files, "the device's wheel lacks the page"
    packages = {name.split("/")[0] for name in files if ".dist-info/" not in name}
    assert not packages & SERVERS and packages < PACKAGES, f"the device's wheel installs {sorted(packages)}"
    with Process(["serve", "--model", "tiny", *ALONE], isolated=True) as server:
        address = server.wait_ready()
        for number, python in enumerate(pythons()):
            venv = folder / f"device-{number}"
            command = install(f"opensled-edge @ {wheel.as_uri()}", venv, python)
            texts = {ask(command, address, folder, drafter) for drafter in ("none", "lookup", "cacheback")}
            install(f"opensled-edge[llamacpp,onnx] @ {wheel.as_uri()}", venv, python)
            texts |= {ask(command, address, folder, drafter) for drafter in ("llamacpp", "onnx")}
            assert len(texts) == 1, texts
            check_device_alone(command, venv, whole, folder)


def pythons() -> list[str]:
    """This Python, and 3.10, the oldest that a device may have, if it is here (PYTHON310, else python3.10)."""
    oldest = shutil.which(os.environ.get("PYTHON310", "python3.10"))
    works = oldest and not subprocess.run([oldest, "--version"], capture_output=True).returncode
    print("Python 3.10:", oldest if works else "not here")
    return [sys.executable, oldest] if oldest and works else [sys.executable]


def ask(opensled: Path, address: str, folder: Path, drafter: str) -> str:
    """The text of one answer, drafted so; a drafter with a model must have helped."""
    question = ("Turn on the kitchen light.", "--drafter", drafter, "--json")
    answer = json.loads(run([opensled, "generate", "--server", address, *question], folder))
    assert answer["accepted"] or drafter in ("none", "lookup"), answer
    return answer["text"]


def check_device_alone(opensled: Path, venv: Path, whole: Path, folder: Path) -> None:
    """What it says about what it has not, and that it refuses to run over the other package."""
    assert "(opensled-edge)" in run([opensled, "--version"], folder)
    assert "--draft-model" in run([opensled, "edge", "--help"], folder)
    assert f"opensled[server] @ {whole.as_uri()}" in complaint([opensled, "serve"], folder)
    run([*pip(venv), "--no-deps", whole])
    assert "uninstall --yes opensled opensled-edge" in complaint([opensled, "--version"], folder)


def complaint(command: list, folder: Path) -> str:
    """Standard error of a command that must be refused as wrong usage."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    return done.stderr


def install(requirement: str, venv: Path, python: str = sys.executable) -> Path:
    """The `opensled` command of an environment, made if it is new, into which the requirement is installed."""
    if not venv.exists():
        run([python, "-m", "venv", venv])
    run([*pip(venv), "-c", ROOT / "constraints.txt", requirement])
    return venv / "bin/opensled"


def pip(venv: Path) -> list[object]:
    return [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def check_use(opensled: Path, folder: Path) -> None:
    listed = json.loads(run([opensled, "models", "list", "--json"], folder))["models"]
    assert {model["name"] for model in listed} >= {"tiny", "tiny-hub", "tiny-draft", "tiny-vision"}
    for model in listed:
        assert Path(model["path"]).is_relative_to(opensled.parents[1]), (
            f"{model['path']} is outside the environment"
        )
    profiles = json.loads(run([opensled, "profile", "list", "--json"], folder))
    empty = [kind for kind, found in profiles.items() if not found]
    assert not empty, f"the wheel lacks profiles of {empty}"
    demo = json.loads(run([opensled, "demo", "--model", "tiny", "--json"], folder))
    print(json.dumps(demo, indent=2))


def run(command: list, folder: Path = ROOT) -> str:
    """Standard output of a command that must succeed; what it says on stderr is shown."""
    words = [str(word) for word in command]
    print("+", " ".join(words), flush=True)
    done = subprocess.run(
        words, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Without what would lead a command to other sources, other settings, or models fetched before."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "OPENSLED_"))
    }
    return kept | {"OPENSLED_CACHE_DIR": os.devnull}


if __name__ == "__main__":
    main()
