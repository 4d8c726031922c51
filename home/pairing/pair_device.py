"""`opensled edge --pair CODE [HOST]`: get a server's address, its authority and a token over a channel of the code."""

from __future__ import annotations

import asyncio
import hmac
import socket
from dataclasses import replace

from edge_client.device.config import EdgeConfig
from home import discovery
from home.pairing import PAIRING_PORT
from home.pairing.handover import Grant, PairRequest, is_host, read_code, read_grant
from opensled.cli import paired
from opensled.cli.addresses import whole_address
from opensled.core.errors import ProtocolError, Unreachable, UsageError
from opensled.net.address import host_port, join_host_port
from opensled.process.logs import tell

CONNECT_SECONDS = 10.0


def pair_first(config: EdgeConfig) -> EdgeConfig:
    """`config`, if it says --pair after pairing, with the server that this device belongs to from now on.

    Raises UsageError, Unauthorized for a wrong code, Unreachable and ProtocolError.
    """
    if not config.pair:
        if config.host:
            raise UsageError(
                f"{config.host!r} without --pair: write --server {config.host}, or --pair CODE {config.host}"
            )
        return config
    digits = read_code(config.pair)
    from home.pairing import channel  # noqa: F401  a missing library is an error now, not when the code is used

    host, port = _place(config.host or discovery.find(discovery.PAIRING))
    paired.require_folder()  # before the code is used up
    grant = asyncio.run(pair(host, port, digits, config.device_name or socket.gethostname()))
    tell(f"paired with {grant.server}, where this device is called {grant.name}; from now on opensled edge, chat, "
         "generate and doctor use it")  # fmt: skip
    own = paired.values({"server": grant.server})
    return replace(config, **own, pair="", host="")


def _place(given: str) -> tuple[str, int]:
    """(host, port) of the server's pairing port; raises UsageError."""
    host, port = host_port(whole_address(given, PAIRING_PORT))
    if not is_host(host):
        raise UsageError(f"{given!r} is not a host; write HOST or HOST:PORT as opensled pair shows it")
    return host, port


async def pair(host: str, port: int, digits: str, name: str) -> Grant:
    """Pair with the server whose pairing port is there, and keep what it hands over."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, limit=1 << 14), CONNECT_SECONDS
        )
    except (OSError, asyncio.TimeoutError) as error:
        raise Unreachable(
            f"no pairing port answers at {join_host_port(host, port)}; run opensled pair on the server, and type its "
            "code before it expires"
        ) from error
    try:
        return await _exchange(reader, writer, PairRequest(host, name), digits)
    except ConnectionError as error:
        raise Unreachable(f"{join_host_port(host, port)} ended the pairing") from error
    finally:
        writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: PairRequest, digits: str
) -> Grant:
    from home.pairing.channel import PROOF_BYTES, DeviceEnd, fingerprint
    from home.pairing.frames import DONE, STORED, PairFrame, encode_frame, read_frame

    end = DeviceEnd(digits)
    writer.write(encode_frame(PairFrame.HELLO, end.hello))
    channel, authority = end.channel(await read_frame(reader, PairFrame.ANSWER))
    writer.write(encode_frame(PairFrame.REQUEST, channel.proof + channel.seal(request.encode())))
    body = await read_frame(reader, PairFrame.GRANT)
    channel.require_proof(body[:PROOF_BYTES])
    grant = read_grant(channel.unseal(body[PROOF_BYTES:]))
    if not hmac.compare_digest(fingerprint(grant.authority), authority):
        raise ProtocolError("the server handed over another authority than it named at first; pair again")
    signer = f"{grant.name}:{grant.signer}" if grant.signer else ""
    paired.keep(grant.server, grant.authority_pem, grant.token, signer, grant.name)
    try:
        writer.write(encode_frame(PairFrame.STORED, channel.seal(STORED)))
        if channel.unseal(await read_frame(reader, PairFrame.DONE)) != DONE:
            raise ProtocolError("the server did not confirm the pairing; pair again")
    except BaseException:
        paired.forget()
        raise
    return grant
