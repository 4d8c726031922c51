"""A fault of the operator's: the token file is edited, badly at first, while the server reads it."""

import asyncio
import secrets

from edge_client.link.link import Endpoint, Link
from lab.testbed.soak.target import SoakTarget
from opensled.core.errors import OpenSledError, Unauthorized
from opensled.core.files import write_whole

COUNTS_S = 5.0  # within which an edit counts
BROKEN = "no token and no tenant=1"


async def edit_token_file(target: SoakTarget) -> None:
    """A stranger's token comes, an edit breaks the file, and the token goes again.

    Raises OpenSledError where the stranger has access too late, too early or for too long.
    """
    path, stranger = target.place.tokens, secrets.token_hex(16)
    kept = path.read_text()
    try:
        await _until(target, stranger, admitted=False)
        _write(target, f"{kept}{stranger} stranger\n")
        await _until(target, stranger, admitted=True)
        _write(target, f"{kept}{BROKEN}\n")
        await asyncio.sleep(COUNTS_S / 2)
        await _until(target, stranger, admitted=True)  # the last good file counts
    finally:
        _write(target, kept)
    await _until(target, stranger, admitted=False)


def _write(target: SoakTarget, text: str) -> None:
    write_whole(target.place.tokens, text.encode(), private=True)


async def _until(target: SoakTarget, token: str, admitted: bool) -> None:
    """Wait until a holder of this token is admitted, or refused."""
    deadline = asyncio.get_running_loop().time() + COUNTS_S
    while await _admits(target, token) is not admitted:
        if asyncio.get_running_loop().time() > deadline:
            state = "refuses a token of" if admitted else "admits a token that is not in"
            raise OpenSledError(f"{target.name} {state} its file after {COUNTS_S:g} s")
        await asyncio.sleep(0.1)


async def _admits(target: SoakTarget, token: str) -> bool:
    """Raises OpenSledError for a server that does not answer: nothing else is broken now."""
    link = Link(Endpoint(target.address, token))
    try:
        await link.describe()
    except Unauthorized:
        return False
    finally:
        await link.close()
    return True
