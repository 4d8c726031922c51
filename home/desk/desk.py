"""The pairing port: one code, one device, few guesses.

Everything that arrives here comes from strangers until its proof is right; docs/security.md, "Pairing", says what they
can do. All state is of one code and of one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import NamedTuple

from home.desk.devices import add_device, revoke_device
from home.desk.home import Home
from home.pairing.channel import PROOF_BYTES, SealedChannel, ServerEnd, fingerprint
from home.pairing.frames import DONE, STORED, PairFrame, Withdrawn, encode_frame, encode_refusal, read_frame
from home.pairing.handover import Grant, read_code, read_request
from opensled.core.errors import OpenSledError, Overloaded, ProtocolError, Unauthorized
from opensled.net.address import bare_host, client_network, join_host_port

log = logging.getLogger(__name__)

MAX_GUESSES = 3  # wrong proofs, of all connections together
# Runs of the key exchange for one code: what strangers can make us compute, and how often they can time it.
MAX_RUNS = 32
MAX_CONNECTIONS, MAX_OF_ADDRESS = 16, 4  # at the same time
TOTAL_SECONDS = 30.0  # of one connection


class PairingFailed(OpenSledError):
    code = "pairing_failed"  # no device was paired, and the code does not count any more


class Paired(NamedTuple):
    """What came of it."""

    name: str
    address: str  # of the device
    server: str  # as the device calls it
    renewed: bool  # the server's certificate had to be written anew


class PairingDesk:
    """Serves one code until one device has used it, or it is withdrawn."""

    def __init__(self, home: Home, code: str, server_port: int) -> None:
        self._home, self._digits, self._server_port = home, read_code(code), server_port
        self._runs = self._guesses = 0
        self._taken = False  # a device has proved that it knows the code
        self._by_address: Counter[str] = Counter()
        # Connections without a first message, oldest first
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        self.outcome: asyncio.Future[Paired] = asyncio.get_running_loop().create_future()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end, and close it."""
        peer = writer.get_extra_info("peername")
        if peer is None:  # gone again
            return writer.close()
        address = client_network(peer[0])
        self._by_address[address] += 1
        try:
            self._admit(address, writer)
            await asyncio.wait_for(self._pair(reader, writer, bare_host(peer[0])), TOTAL_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):
            log.info("a connection to the pairing port took longer than %g s", TOTAL_SECONDS)
        except (OpenSledError, OSError) as error:
            log.info("a connection to the pairing port ended: %s", error)
            if not writer.is_closing():
                writer.write(encode_refusal(error))
        finally:  # all together: else one address could have more silent connections than it may
            writer.close()
            self._waiting.pop(writer, None)
            self._by_address -= Counter((address,))  # which forgets who has none

    def _admit(self, address: str, writer: asyncio.StreamWriter) -> None:
        """Few connections of one address; of many addresses, the one that has been silent for longest gives way."""
        if self._by_address[address] > MAX_OF_ADDRESS:
            raise Overloaded("too many connections of this address")
        self._waiting[writer] = None
        if len(self._waiting) > MAX_CONNECTIONS:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()

    async def _pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        hello = await read_frame(reader, PairFrame.HELLO)
        self._waiting.pop(writer, None)
        self._count_run()
        end = ServerEnd(self._digits, fingerprint(self._home.authority.der), hello)
        writer.write(encode_frame(PairFrame.ANSWER, end.answer))
        body = await read_frame(reader, PairFrame.REQUEST)
        channel = self._proven(end, body[:PROOF_BYTES])
        try:
            await self._hand_over(channel, body[PROOF_BYTES:], reader, writer, address)
        except (OpenSledError, OSError) as error:
            self._fail(f"a device knew the code, but was not paired: {error}; run opensled pair again")
            raise

    def _count_run(self) -> None:
        self._require_open()
        self._runs += 1
        if self._runs > MAX_RUNS:
            self._fail(f"the code is withdrawn: {MAX_RUNS} connections began to pair and did not; run opensled pair "
                       "again, on a network of your own")  # fmt: skip
            self._require_open()

    def _require_open(self) -> None:
        if self._taken or self.outcome.done():
            raise Withdrawn("the code does not count any more")

    def _proven(self, end: ServerEnd, proof: bytes) -> SealedChannel:
        """The channel to a device that knows the code. Nothing is awaited in here: no two guesses overlap."""
        self._require_open()
        try:
            channel = end.channel()
            channel.require_proof(proof)
        except (Unauthorized, ProtocolError):
            self._guesses += 1
            log.warning("a wrong pairing code, %d of %d", self._guesses, MAX_GUESSES)
            if self._guesses >= MAX_GUESSES:
                self._fail(
                    f"the code is withdrawn after {MAX_GUESSES} wrong guesses; run opensled pair again"
                )
            raise
        self._taken = True
        return channel

    async def _hand_over(
        self,
        channel: SealedChannel,
        sealed: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
    ) -> None:
        """Give the device its token. It counts once the device says that it has stored it."""
        request = read_request(channel.unseal(sealed))
        renewed = self._home.name_server([request.host])
        name, token = add_device(self._home, request.name, address)
        try:
            server = join_host_port(request.host, self._server_port)
            grant = Grant(server, self._home.authority.der, token, name, self._home.signer)
            writer.write(encode_frame(PairFrame.GRANT, channel.proof + channel.seal(grant.encode())))
            if channel.unseal(await read_frame(reader, PairFrame.STORED)) != STORED:
                raise ProtocolError("the device did not confirm that it stored its token")
        except BaseException:
            revoke_device(self._home, name)
            raise
        writer.write(encode_frame(PairFrame.DONE, channel.seal(DONE)))
        await writer.drain()
        self.outcome.set_result(Paired(name, address, server, renewed))

    def _fail(self, reason: str) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(PairingFailed(reason))
