"""A fault of the operator and of devices: drafts are published and taken back while a tenant fetches them greedily."""

import asyncio
import hashlib
import time
from contextlib import aclosing, suppress

from adapt.handout.draft_store import DraftStore
from adapt.handout.publisher import roll_back
from adapt.shelf.draft_fetch import fetch_manifest
from adapt.shelf.draft_manifest import DraftManifest, HandedFile, read_manifest
from adapt.shelf.signature import Signed, Signer, SigningKey
from edge_client.link.link import Endpoint, Link
from lab.testbed.soak.target import SoakTarget
from opensled.core.errors import NotFound, OpenSledError, Overloaded, Unreachable
from opensled.core.files import write_whole

GUEST = "guest"  # the tenant that means harm
GREEDY = 8  # loops that fetch at the same time
HOLD_S = 1.5  # for each draft
MEGABYTES = 3
COUNTS_S = 10.0  # within which what is published is handed out
ATTEMPTS, PAUSE_S = 100, 0.1  # to find a place among the greedy ones


async def hand_out_drafts(target: SoakTarget, token: str) -> None:
    """Two drafts and a rollback reach a device of the tenant as they were signed, while others of it fetch greedily.

    `token`: of the tenant. Raises OpenSledError for anything else.
    """
    key, store = SigningKey.new(), DraftStore(target.handout)
    flood = [asyncio.ensure_future(_greedy(target, token)) for _ in range(GREEDY)]
    try:
        for number in (1, 2):
            await _arrives(target, token, key, await asyncio.to_thread(_published, store, key, number))
        await _arrives(target, token, key, await asyncio.to_thread(roll_back, store, key, GUEST))
    finally:
        for task in flood:
            task.cancel()
        ended = await asyncio.gather(*flood, return_exceptions=True)
        await asyncio.to_thread(store.delete, GUEST)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError):
            raise OpenSledError(f"a transfer from {target.name} went wrong: {error}")
    if await _newest(target, token) is not None:
        raise OpenSledError(f"{target.name} hands out a draft that was deleted")


def _published(store: DraftStore, key: SigningKey, number: int) -> DraftManifest:
    """A draft of some bytes, which is never loaded here."""
    path = store.folder / ".draft"
    write_whole(path, bytes((number,)) * (MEGABYTES << 20), private=True)
    file = store.keep_file(path, "draft.gguf")
    path.unlink()
    draft = DraftManifest(
        GUEST, store.next_serial(GUEST), f"draft {number}", time.time(), "0" * 64, "", (file,), False
    )
    store.publish(draft, *key.sign(draft))
    return draft


async def _arrives(target: SoakTarget, token: str, key: SigningKey, draft: DraftManifest) -> None:
    """Wait until a device gets this manifest; the others go on fetching for a while."""
    signer, deadline = Signer(GUEST, key.public), time.monotonic() + COUNTS_S
    while (found := await _newest(target, token)) is None or signer.verify(found) != draft:
        if time.monotonic() > deadline:
            raise OpenSledError(f"{target.name} does not hand out serial {draft.serial}")
        await asyncio.sleep(0.1)
    await asyncio.sleep(HOLD_S)


async def _newest(target: SoakTarget, token: str) -> Signed | None:
    """What is handed out; a device whose tenant has all its places, or whose address all its connections, in use comes
    back."""
    link = Link(Endpoint(target.origin, token))
    try:
        for _ in range(ATTEMPTS):
            with suppress(Overloaded, Unreachable):
                return await fetch_manifest(link)
            await asyncio.sleep(PAUSE_S)
        raise OpenSledError(f"{target.name} has no place for a device in {ATTEMPTS * PAUSE_S:g} s")
    except NotFound:
        return None
    finally:
        await link.close()


async def _greedy(target: SoakTarget, token: str) -> None:
    """Fetch without end; what arrives whole is right. Raises OpenSledError."""
    while True:
        link = Link(Endpoint(target.origin, token))
        try:
            draft = read_manifest((await fetch_manifest(link)).manifest)
            for file in draft.files:
                await _fetch(link, file)
        except (NotFound, Overloaded, Unreachable):
            await asyncio.sleep(0.05)
        finally:
            await link.close()


async def _fetch(link: Link, file: HandedFile) -> None:
    digest = hashlib.sha256()
    async with aclosing(link.draft_parts(file.sha256)) as replies:
        async for reply in replies:
            assert isinstance(reply, bytes)
            digest.update(reply)
    if digest.hexdigest() != file.sha256:
        raise OpenSledError("a file is not the one that its manifest names")
