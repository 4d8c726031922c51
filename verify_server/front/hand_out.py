"""What answers `GetDraft`: plug-in `adapt` where drafts are handed out, else a refusal."""

from __future__ import annotations

from typing import Protocol

from opensled.core.errors import NotFound
from opensled.wire import draft_codec
from verify_server.access.byte_stream import ByteStream
from verify_server.front.session_stream import failure_of

SILENT_S = 30.0  # for which a device may read nothing


class HandOut(Protocol):
    """Hands out drafts to devices."""

    async def serve(self, stream: ByteStream) -> None:
        """Serve one call of GetDraft to its end."""


class NoHandOut(HandOut):
    """Hands out nothing."""

    async def serve(self, stream: ByteStream) -> None:
        """Refuse, whatever is asked."""
        await stream.read()
        refusal = NotFound(
            "this server hands out no drafts; ask its operator to add --drafts to opensled serve", "draft"
        )
        await stream.write(draft_codec.failure_bytes(failure_of(refusal)))
