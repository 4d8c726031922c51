"""What answers `GetDraft`: plug-in `adapt` where drafts are handed out, else a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from opensled.core.errors import NotFound
from opensled.wire import draft_codec
from verify_server.access.byte_stream import ByteStream
from verify_server.front.session_stream import failure_of

SILENT_S = 30.0  # for which a device may read nothing
HandOut = Callable[[ByteStream], Awaitable[None]]  # serves one call of GetDraft to its end


async def hand_out_nothing(stream: ByteStream) -> None:
    """Refuse, whatever is asked."""
    await stream.read()
    refusal = NotFound(
        "this server hands out no drafts; ask its operator to add --drafts to opensled serve", "draft"
    )
    await stream.write(draft_codec.failure_bytes(failure_of(refusal)))
