"""`opensled drafts`: make a key, publish a draft to a tenant's devices, list, go back, delete."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from adapt.handout.config import (
    DraftDeleteConfig,
    DraftListConfig,
    KeygenConfig,
    PublishConfig,
    RollbackConfig,
)
from adapt.handout.draft_store import KEPT, DraftStore, Published
from adapt.shelf.draft_manifest import DraftManifest
from opensled.core.errors import NotFound, UsageError
from opensled.core.files import read_secret, user_path, write_whole
from opensled.core.printable import visible_line

if TYPE_CHECKING:
    from adapt.shelf.signature import SigningKey


def keygen(config: KeygenConfig) -> int:
    """Make a private key; an existing file is never written over."""
    from adapt.shelf.signature import SigningKey

    if not config.sign_key:
        raise UsageError("--sign-key FILE is missing: where the new key goes")
    path = user_path(config.sign_key)
    if path.exists():
        raise UsageError(
            f"{path} exists already and is not overwritten, since devices may trust its public key; name another file"
        )
    key = SigningKey.new()
    try:
        write_whole(path, key.pem, private=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    if config.json:
        print(json.dumps({"key": str(path), "public": key.public}))
        return 0
    print(f"wrote {path}; keep it where no server runs. Its public half: {key.public}")
    print(f"next: opensled drafts publish DRAFT --store drafts/ --tenant NAME --sign-key {path}")
    return 0


def publish(config: PublishConfig) -> int:
    """Hand out a draft to the devices of a tenant."""
    from adapt.handout.publisher import candidate, publish_draft

    if not config.tenant:
        raise UsageError(
            "--tenant NAME is missing: give a tenant of the token file, or the name of a paired device"
        )
    key, store = _key(config.sign_key), _store(config.store)
    found = candidate(Path(config.draft), config.name)
    store.make()
    with store.writing():
        draft = publish_draft(store, key, config.tenant, found, config.ungated, config.serial)
    _tell(draft, key, config.json)
    return 0


def rollback(config: RollbackConfig) -> int:
    """Hand out an earlier draft of a tenant again."""
    from adapt.handout.publisher import roll_back

    key, store = _key(config.sign_key), _existing(config.store)
    with store.writing():
        draft = roll_back(store, key, config.tenant, config.to)
    _tell(draft, key, config.json)
    return 0


def list_drafts(config: DraftListConfig) -> int:
    """Print the drafts of each tenant, the newest last: it is the one that is handed out."""
    store = _existing(config.store)
    found = {tenant: store.history(tenant) for tenant in store.tenants()}
    if config.json:
        print(
            json.dumps({tenant: [asdict(each.draft) for each in drafts] for tenant, drafts in found.items()})
        )
        return 0
    for tenant, drafts in found.items():
        print(visible_line(f"{tenant}:"))
        for each in drafts:
            print(f"  {_line(each, each is drafts[-1])}")
    if not found:
        print("no draft is handed out")
    return 0


def _line(each: Published, newest: bool) -> str:
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.draft.created))
    return f"{each.draft.title()}; {day}{' (handed out)' if newest else ''}"


def delete_drafts(config: DraftDeleteConfig) -> int:
    """Delete all drafts of a tenant. Raises NotFound where there is none."""
    store = _existing(config.store)
    with store.writing():
        found = store.delete(config.tenant)
    if config.json:
        print(json.dumps({"tenant": config.tenant, "deleted": [each.draft.serial for each in found]}))
    elif found:
        print(
            visible_line(
                f"deleted {len(found)} drafts of {config.tenant}; devices keep what they have fetched: there remove "
                "the folder that opensled models path adapted prints"
            )
        )
    if not found:
        raise NotFound(f"no draft of {config.tenant!r} is in {config.store}", "tenant")
    return 0


def _key(file: str) -> SigningKey:
    from adapt.shelf.signature import SigningKey

    if not file:
        raise UsageError("--sign-key FILE is missing; opensled drafts keygen --sign-key FILE makes one")
    return SigningKey.read(read_secret(file, "signing key"), file)


def _store(folder: str) -> DraftStore:
    if not folder:
        raise UsageError("--store FOLDER is missing: the folder that opensled serve --drafts names")
    return DraftStore(user_path(folder))


def _existing(folder: str) -> DraftStore:
    store = _store(folder)
    store.require_closed()
    return store


def _tell(draft: DraftManifest, key: SigningKey, as_json: bool) -> None:
    signer = f"{draft.tenant}:{key.public}"
    if as_json:
        print(json.dumps({**asdict(draft), "signer": signer}))
        return
    print(visible_line(f"handed out to {draft.tenant}: {draft.title()}; the store keeps the newest {KEPT}"))
    print("next, once: opensled serve ... --drafts STORE; on each device of this tenant:")
    print(f"  opensled drafts pull --signer {signer}")
