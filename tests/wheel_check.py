"""`make wheel-test`: build the wheel, install it in a clean environment, and use it from another folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "opensled",
    "edge_client",
    "http_api",
    "verify_server",
    "scheduler",
    "hw_profiles",
    "opensled_training",
    "opensled_testbed",
}
MODELS = {
    "tiny/model.safetensors",
    "tiny/tiny-f16.gguf",
    "tiny/tokenizer.json",
    "tiny-draft/tokenizer.json",
    "tiny-draft/tiny-draft.table",
    "heldout.jsonl",
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="opensled-wheel-") as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        check_contents(wheel)
        opensled = install(wheel, folder / "venv")
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        check_use(opensled, elsewhere)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed and used")


def build(folder: Path) -> Path:
    run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT])
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in files if ".dist-info/" not in name}
    assert tops == PACKAGES, f"the wheel installs {sorted(tops)}"
    missing = {model for model in MODELS if f"opensled/_models/{model}" not in files}
    assert not missing, f"the wheel lacks {sorted(missing)}"
    for form in (".gguf", ".onnx"):
        assert any(
            name.startswith("opensled/_models/tiny-draft/") and name.endswith(form) for name in files
        ), form


def install(wheel: Path, venv: Path) -> Path:
    """The `opensled` command of a new environment that holds the wheel and what it needs to serve and draft."""
    run([sys.executable, "-m", "venv", venv])
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "-c", ROOT / "constraints.txt", f"opensled[server,llamacpp,onnx] @ {wheel.as_uri()}"])
    return venv / "bin/opensled"


def check_use(opensled: Path, folder: Path) -> None:
    listed = json.loads(run([opensled, "models", "list", "--json"], folder))["models"]
    assert {model["name"] for model in listed} >= {"tiny", "tiny-draft"}
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
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "OPENSLED_"))
    }
    words = [str(word) for word in command]
    print("+", " ".join(words), flush=True)
    return subprocess.run(words, cwd=folder, env=clean, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
