"""`make wheel-test`: build both wheels, install each in clean environments, and use it from another folder.

Sizes by folder are printed. The laboratory is in no wheel: each says where it is.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import opensled
from lab.testbed.processes import Process
from opensled.process.logs import READY

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "opensled",
    "edge_client",
    "http_api",
    "verify_server",
    "relay",
    "scheduler",
    "hw_profiles",
    "home",
    "adapt",
    "vllm_plugin",
}
SERVERS = ("verify_server/", "relay/", "scheduler/", "home/desk/", "adapt/kept/", "adapt/handout/")
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
    "_heads/smollm2-ctc/head.safetensors",
    "_pivots/tiny/pivots.npz",
}


# What files of models are made of: the wheel has the files themselves (hatch_build.py).
ALONE = ("--server-drafter", "none", "--listen", "127.0.0.1:0")  # a server whose devices draft
PIECES = (".recipe.json", ".head", ".int8")
PAGE = "http_api/page/page.html"
UNITS = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("home/service/units/*.conf")}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="opensled-wheel-") as name:
        folder = Path(name)
        whole, device = built(".", "opensled", folder), built("deploy/edge", "opensled_edge", folder)
        check_contents(whole)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        check_device(device, whole, folder)
        check_without_torch(whole, folder)
        check_use(install(f"opensled[server,llamacpp,onnx] @ {whole.as_uri()}", folder / "venv"), elsewhere)
        for wheel in (whole, device):
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed and used")
            print(contents(wheel))


def built(source: str, package: str, folder: Path) -> Path:
    """A new wheel of a folder of this checkout, made as `make wheel` does: both in one folder."""
    run([sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", source], ROOT)
    return folder / f"dist/{package}-{opensled.__version__}-py3-none-any.whl"


def contents(wheel: Path) -> str:
    """Files and megabytes of a wheel, by folder: one line each."""
    files, sizes = Counter[str](), Counter[str]()
    for entry in zipfile.ZipFile(wheel).infolist():
        top, below = entry.filename.split("/")[:2]
        place = f"{top}/{below}" if below == "_models" else top
        files[place] += 1
        sizes[place] += entry.file_size
    return "\n".join(
        f"  {place:32} {files[place]:4} files {sizes[place] / 1e6:7.2f} MB" for place in sorted(files)
    )


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
    with serving(opensled, folder, "--engine", "llamacpp") as address:
        print(ask(opensled, address, folder, "llamacpp"))


@contextmanager
def serving(opensled: Path, folder: Path, *flags: str) -> Iterator[str]:
    """The address of a server of this installation that serves `tiny`."""
    command = [str(opensled), "serve", "--model", "tiny", *flags, *ALONE]
    with subprocess.Popen(
        command, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            ready = next(line for line in server.stdout if line.startswith(READY))
            yield ready.removeprefix(READY).strip()
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
    assert packages < PACKAGES, f"the device's wheel installs {sorted(packages)}"
    strays = [name for name in files if name.startswith(SERVERS)]
    assert not strays, f"the device's wheel carries {strays}"
    with Process(["serve", "--model", "tiny", *ALONE], isolated=True) as server:
        address = server.wait_ready()
        for number, python in enumerate(pythons()):
            venv = folder / f"device-{number}"
            command = install(f"opensled-edge @ {wheel.as_uri()}", venv, python)
            texts = {ask(command, address, folder, drafter) for drafter in ("none", "lookup", "cacheback")}
            install(f"opensled-edge[llamacpp,onnx] @ {wheel.as_uri()}", venv, python)
            texts |= {ask(command, address, folder, drafter) for drafter in ("llamacpp", "onnx")}
            assert len(texts) == 1, texts
            check_device_alone(command, venv, wheel, whole, folder)


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


def check_device_alone(opensled: Path, venv: Path, edge: Path, whole: Path, folder: Path) -> None:
    """What it says about what it has not, and that it refuses to run over the other package."""
    assert "(opensled-edge)" in run([opensled, "--version"], folder)
    assert "--draft-model" in run([opensled, "edge", "--help"], folder)
    for words in (["serve"], ["pair"], ["drafts", "keygen"]):
        assert f"opensled[server] @ {whole.as_uri()}" in complaint([opensled, *words], folder)
    check_without_laboratory(opensled, folder)
    assert run([opensled, "service", "status", "--json"], folder)
    asked = [opensled, "drafts", "pull", "--server", "127.0.0.1:1", "--signer", f"kitchen:{'0' * 64}"]
    assert f"opensled-edge[adapt] @ {edge.as_uri()}" in complaint(asked, folder, 1)
    pairing = [opensled, "edge", "--pair", "4821-0937", "127.0.0.1"]
    assert f"opensled-edge[home] @ {edge.as_uri()}" in complaint(pairing, folder, 1)
    run([*pip(venv), "--no-deps", whole])
    assert "uninstall --yes opensled opensled-edge" in complaint([opensled, "--version"], folder)


def check_without_laboratory(opensled: Path, folder: Path) -> None:
    """The help leaves its commands out, and each says that a checkout has it."""
    shown = run([opensled, "--help"], folder)
    print(shown)
    for words in (["demo"], ["plan"], ["bench", "serve"], ["quality"], ["models", "eval"]):
        assert f"\n  {' '.join(words)} " not in shown
        said = complaint([opensled, *words], folder)
        assert "comes with the source tree" in said, said
    print(complaint([opensled, "demo"], folder))


def complaint(command: list, folder: Path, code: int = 2) -> str:
    """Standard error of a command that must be refused, as wrong usage if no other exit code is given."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
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
    check_without_laboratory(opensled, folder)
    key = json.loads(run([opensled, "drafts", "keygen", "--sign-key", "drafts.key", "--json"], folder))
    assert Path(folder / key["key"]).is_file() and len(key["public"]) == 64
    with serving(opensled, folder) as address:
        texts = {ask(opensled, address, folder, name) for name in ("none", "cacheback", "llamacpp", "onnx")}
    assert len(texts) == 1, texts
    print(*texts)


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
