"""Answers GetDraft: a tenant's own manifest, or a file of it in parts, at a pace that leaves the link to answers.

Files are read by threads of their own, and one part of a transfer is in memory at a time: a device that reads slowly
holds 64 KiB here, and one that reads nothing is hung up on like any silent reader (byte_stream.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from adapt.handout.draft_store import DraftStore, Published
from opensled.core.errors import InvalidRequest, NotFound, OpenSledError, Overloaded
from opensled.core.files import user_path
from opensled.wire import codec, draft_codec
from verify_server.access.byte_stream import ByteStream
from verify_server.access.client_limits import Rate
from verify_server.access.clients import Client
from verify_server.access.token_bucket import TokenBucket
from verify_server.front.hand_out import HandOut, hand_out_nothing
from verify_server.front.session_stream import failure_of
from verify_server.options.adapt_config import AdaptConfig

MAX_TRANSFERS = 64  # at the same time, of all clients; chosen: 4 MiB of memory
MAX_OF_CLIENT = 4  # of a tenant, a connection, an address
SECONDS = 600.0  # of one call: a device that reads a little at a time comes back, and others get the place
RETRY_S = 2.0  # after which one that found no place is told to come back
RATE = 4e6  # bytes/s of all transfers together, so that answers keep their link; chosen

Found = TypeVar("Found")


class DraftHandOut:
    """What one server hands out."""

    def __init__(self, store: DraftStore, rate: float, met: Counter[str], clock: Callable[[], float]) -> None:
        """`rate`: bytes/s of all transfers; `met`: how often a limit was met; `clock`: in seconds."""
        self._store, self._met, self._clock = store, met, clock
        self._bucket = TokenBucket(Rate(rate, max(rate / 4, draft_codec.PART_BYTES)), clock())
        self._transfers: Counter[str] = Counter()  # by name of a client; "" = all
        self._threads = ThreadPoolExecutor(2, "drafts")

    async def serve(self, stream: ByteStream) -> None:
        """Serve one call of GetDraft to its end."""
        try:
            asked = await stream.read()
            if asked is not None:
                async with asyncio.timeout(SECONDS):
                    await self._answer(stream, *draft_codec.read_draft_request(asked))
        except codec.Malformed as error:
            await self._refuse(
                stream, InvalidRequest(f"the bytes are not a message of this protocol: {error}")
            )
        except OpenSledError as error:
            await self._refuse(stream, error)

    async def _refuse(self, stream: ByteStream, error: OpenSledError) -> None:
        await stream.write(draft_codec.failure_bytes(failure_of(error)))

    async def _answer(self, stream: ByteStream, file: str, offset: int) -> None:
        with self._place(stream.client):
            found = await self._in_thread(self._newest, stream.client.tenant)
            if file:
                await self._send(stream, found, file, offset)
            else:
                await stream.write(draft_codec.manifest_bytes(found.manifest, found.signature))

    async def _in_thread(self, work: Callable[..., Found], *arguments: object) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _newest(self, tenant: str) -> Published:
        """Raises NotFound."""
        found = self._store.newest(tenant)
        if found is None:
            raise NotFound(
                "there is no adapted draft for this device's tenant; ask the operator to run: opensled drafts publish",
                "draft",
            )
        return found

    async def _send(self, stream: ByteStream, found: Published, sha256: str, offset: int) -> None:
        """The bytes of a file from `offset` to its end; a tenant gets files of its own newest manifest alone."""
        named = self._store.file(found.draft, sha256)
        if named is None:
            raise NotFound("the draft has no such file (any more); fetch the draft again", "file")
        path, size = named
        if offset > size:
            raise InvalidRequest(f"the file has {size} bytes", "offset")
        while offset < size:
            length = min(draft_codec.PART_BYTES, size - offset)
            await self._turn(length)
            part = await self._in_thread(_part, path, offset, length)
            await stream.write(draft_codec.part_bytes(part))
            offset += length

    async def _turn(self, size: int) -> None:
        """Wait until so many bytes may leave. A device that ends its call meanwhile takes none of them from others."""
        seconds = self._bucket.take(size, self._clock())
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self._bucket.take(-size, self._clock())
            raise

    @contextmanager
    def _place(self, client: Client) -> Iterator[None]:
        """While inside, one more transfer counts; raises Overloaded."""
        names = ("", *(client.names or (client.tenant,)))
        if self._transfers[""] >= MAX_TRANSFERS or any(
            self._transfers[name] >= MAX_OF_CLIENT for name in names[1:]
        ):
            self._met["drafts"] += 1
            raise Overloaded("too many transfers of drafts at the same time; try again", retry_after=RETRY_S)
        self._transfers.update(names)
        try:
            yield
        finally:
            self._transfers.subtract(names)
            self._transfers = +self._transfers  # none stays at zero


def _part(path: Path, offset: int, length: int) -> bytes:
    """Raises NotFound where the file has gone, or is shorter than its manifest says."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            part = file.read(length)
    except OSError:
        part = b""
    if len(part) < length:
        raise NotFound(
            "a file of the draft is missing or damaged on the server; ask its operator to publish it again",
            "file",
        )
    return part


def hand_out_of(config: AdaptConfig, met: Counter[str], clock: Callable[[], float]) -> HandOut:
    """As configured; see `DraftHandOut`. Raises UsageError for a folder that cannot be used."""
    store = store_of(config)
    return DraftHandOut(store, RATE, met, clock).serve if store else hand_out_nothing


def store_of(config: AdaptConfig) -> DraftStore | None:
    """The folder of --drafts; raises UsageError for one that cannot be used."""
    if not config.drafts:
        return None
    store = DraftStore(user_path(config.drafts))
    store.require_closed()
    return store
