"""`opensled kept`: list and delete the texts that a server keeps; and what `serve --keep-text` requires."""

from __future__ import annotations

import json
import stat
import time

from adapt.kept.config import KeptDeleteConfig, KeptListConfig
from adapt.kept.keeper import TextKeeper
from adapt.kept.kept_store import HeldTexts, KeptStore
from opensled.core.errors import NotFound, UsageError
from opensled.core.files import user_path
from opensled.core.printable import visible_line
from verify_server.options.serve_config import ServeConfig

MB = 1_000_000
DAY = 86_400.0


def list_kept(config: KeptListConfig) -> int:
    """Print what is kept of each tenant."""
    held = _store(config.keep_text).summarize()
    if config.json:
        print(json.dumps([each._asdict() for each in held]))
        return 0
    print("\n".join(map(_line, held)) or "no text is kept")
    return 0


def delete_kept(config: KeptDeleteConfig) -> int:
    """Delete all texts of a tenant. Raises NotFound where there is none."""
    store = _store(config.keep_text)
    found = store.delete(config.tenant)
    if config.json:
        print(json.dumps({"deleted": found._asdict()}))
    elif found.texts:
        print(
            visible_line(
                f"deleted {found.texts} texts of {found.tenant}; sequences that have begun are not kept either; "
                "remove keep=1 from the token file to keep none in future"
            )
        )
    if not found.texts:
        raise NotFound(f"no text of {config.tenant!r} is kept in {config.keep_text}", "tenant")
    return 0


def _store(folder: str) -> KeptStore:
    """Raises UsageError or NotFound."""
    if not folder:
        raise UsageError("--keep-text FOLDER is missing: the folder that opensled serve --keep-text names")
    path = user_path(folder)
    if not path.is_dir():
        raise NotFound(f"{path} is not a folder; opensled serve --keep-text {folder} makes it", "keep_text")
    return KeptStore(path)


def _line(held: HeldTexts) -> str:
    days = [time.strftime("%Y-%m-%d", time.localtime(moment)) for moment in (held.oldest, held.newest)]
    return visible_line(
        f"{held.tenant}: {held.texts} texts, {held.bytes / MB:.1f} MB, {days[0]} to {days[1]}; {held.folder}"
    )


def require_keepable(config: ServeConfig) -> None:
    """Raises UsageError where no tenant could opt in, or deletion would not reach all texts."""
    if not config.keep_text:
        return
    if not config.tokens:
        raise UsageError(
            "--keep-text needs --tokens FILE: it keeps the texts of tenants with keep=1 in that file"
        )
    if config.replicas or config.ray_address:
        raise UsageError(
            "--keep-text works on a single server only: with replicas, a deletion would not reach all texts; leave one "
            "of them out"
        )


def keeper_of(config: ServeConfig, vocabulary: str) -> TextKeeper | None:
    """None: nothing is kept. `vocabulary`: fingerprint of the target's. Raises UsageError."""
    if not config.keep_text:
        return None
    folder = user_path(config.keep_text)
    try:
        store = KeptStore(folder, config.keep_text_mb * MB, config.keep_text_days * DAY)
    except OSError as error:
        raise UsageError(f"--keep-text {folder} cannot be used: {error.strerror}") from error
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"--keep-text {folder} is open to other users; run: chmod 700 {folder}")
    return TextKeeper(store, vocabulary)
