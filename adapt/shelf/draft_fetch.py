"""Fetches a draft: the manifest is believed only if it is signed, its files only if they are those that it names.

A broken connection costs nothing: what is here of a file stays, and the rest is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import aclosing
from typing import BinaryIO

from adapt.shelf.draft_manifest import DraftManifest, HandedFile
from adapt.shelf.shelf import DraftShelf
from adapt.shelf.signature import Signed
from edge_client.link.link import Link
from opensled.core.errors import ModelError, Overloaded, ProtocolError, Unreachable
from opensled.models.download import ATTEMPTS, CHUNK, PAUSE, require_room


async def fetch_manifest(link: Link) -> Signed:
    """What the server says; nothing of it is checked yet. Raises NotFound where nothing is handed out."""
    async with aclosing(link.draft_parts()) as replies:
        async for reply in replies:
            if isinstance(reply, tuple):
                return Signed(*reply)
            break
    raise Unreachable(f"{link.server} ended its answer before the manifest; try again")


async def fetch_files(
    link: Link, shelf: DraftShelf, draft: DraftManifest, show: Callable[[int], None]
) -> None:
    """Complete the parts of all files of `draft`. `show` hears how many bytes of them are there.

    Raises ModelError for other bytes than the manifest names and for a full disk, Unreachable, what the server says.
    """
    missing = [(file, shelf.part(file)) for file in draft.files]
    here = sum(path.stat().st_size for _, path in missing if path.exists())
    require_room(shelf.folder, draft.total - here)
    before = 0
    for file, path in missing:
        path.touch()
        with path.open("r+b") as sink:
            await _complete(link, file, sink, lambda done, before=before: show(before + done))  # type: ignore[misc]
        before += file.bytes


async def _complete(link: Link, file: HandedFile, sink: BinaryIO, show: Callable[[int], None]) -> None:
    digest, done = _resume(file, sink)
    attempts = 0
    while done < file.bytes:
        before, pause = done, PAUSE * 2**attempts
        try:
            async with aclosing(link.draft_parts(file.sha256, done)) as replies:
                async for reply in replies:
                    part = _part(reply, file.bytes - done, file, sink)
                    digest.update(part)
                    done += len(part)
                    show(done)
            why = "it ended early"
        except Unreachable as error:
            why = str(error)
        except Overloaded as error:
            why, pause = str(error), max(error.retry_after, pause)
        attempts = 0 if done > before else attempts + 1
        if attempts >= ATTEMPTS:
            raise Unreachable(
                f"{link.server} broke off at {done / 1e6:.1f} of {file.bytes / 1e6:.1f} MB of {file.name} ({why}); run "
                "the same command again to continue"
            )
        if attempts:
            await asyncio.sleep(pause)
    if digest.hexdigest() != file.sha256:
        sink.truncate(0)
        raise ModelError(
            f"{file.name} arrived damaged: it is not the file that the manifest names. Nothing was replaced; run the "
            "same command again, and if that does not help, ask the operator to publish the draft again"
        )


def _resume(file: HandedFile, sink: BinaryIO) -> tuple[hashlib._Hash, int]:
    """Digest and length of what is here of a file; of one that is too long, nothing is kept."""
    digest, done = hashlib.sha256(), 0
    while chunk := sink.read(CHUNK):
        digest.update(chunk)
        done += len(chunk)
    if done <= file.bytes:
        return digest, done
    sink.seek(0)
    sink.truncate()
    return hashlib.sha256(), 0


def _part(reply: object, room: int, file: HandedFile, sink: BinaryIO) -> bytes:
    """The bytes of a reply, written; raises ProtocolError for more than the `room` that the manifest leaves."""
    if not isinstance(reply, bytes) or len(reply) > room:
        sink.truncate(0)
        raise ProtocolError(
            f"the server sent more of {file.name} than the {file.bytes} bytes that the manifest names; nothing was "
            "replaced"
        )
    sink.write(reply)
    return reply
