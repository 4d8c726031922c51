"""Pairing and announcements by the decisions of a fuzzer: both ends of a pairing hear anything, also from who knows the
code; records of multicast DNS say anything."""

import asyncio
import contextlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path

from home.desk.desk import MAX_GUESSES, PairingDesk
from home.desk.devices import paired_devices, revoke_device
from home.desk.home import Home
from home.discovery import MAX_ADDRESSES, SERVING, check_record
from home.pairing.channel import DeviceEnd, ServerEnd, fingerprint
from home.pairing.frames import MOST, STORED, PairFrame
from home.pairing.handover import Grant, PairRequest, is_host, read_grant, read_request
from home.pairing.pair_device import _exchange
from opensled.core.errors import OpenSledError
from tests.fuzz import bodies
from tests.fuzz.choices import Choices

DIGITS = "48210937"
HOSTS = ("hub", "hub.local", "192.0.2.7", "fd00::1", "", "a b", "x" * 300, "*.example", "fe80::1%eth0", "ä")


@cache
def _home() -> Home:
    """Of a folder below the one for the device's own files, so that nothing of the user is touched."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    return Home(folder / "home")


class Wire:
    """The writer of one end, and a reader that says what a test wants."""

    def __init__(self) -> None:
        self.reader, self.written = asyncio.StreamReader(limit=1 << 14), bytearray()
        self.transport = self

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.7", 1)

    async def drain(self) -> None:
        """All is written."""

    def close(self) -> None:
        """Nothing to close."""

    abort = close

    def say(self, kind: int, body: bytes, length: int | None = None) -> None:
        size = len(body) if length is None else length
        self.reader.feed_data(bytes((kind & 255,)) + (size & 0xFFFF).to_bytes(2, "big") + body)

    def heard(self) -> list[bytes]:
        """The bodies that this end sent."""
        found, data = [], bytes(self.written)
        while data:
            length = int.from_bytes(data[1:3], "big")
            found.append(data[3 : 3 + length])
            data = data[3 + length :]
        return found


def _mangled(choose: Choices, body: bytes) -> bytes:
    """A body with a byte or its length changed, or as it is."""
    how = choose.byte()
    if how < 150 or not body:
        return body
    place = choose.below(len(body))
    return body[:place] if how < 180 else body[:place] + bytes((choose.byte(),)) + body[place + 1 :]


def _frame(choose: Choices, wire: Wire, kind: PairFrame, body: bytes) -> None:
    """This frame, mostly; or another kind, another length, or anything."""
    how = choose.byte()
    if how < 200:
        wire.say(kind, _mangled(choose, body))
    elif how < 230:
        wire.say(choose.byte(), body, choose.below(65536) if choose.flag() else None)
    else:
        wire.reader.feed_data(choose.bytes(choose.byte()))


async def _settled(condition) -> None:
    for _ in range(50):
        if condition():
            return
        await asyncio.sleep(0)


def pairing_server(data: bytes) -> None:
    """A device, or who says to be one, at the pairing port; sometimes it knows the code."""
    asyncio.run(_at_server(Choices(data)))


async def _at_server(choose: Choices) -> None:
    desk, wire = PairingDesk(_home(), DIGITS, 7411), Wire()
    serving = asyncio.ensure_future(desk.serve(wire.reader, wire))
    end = DeviceEnd(DIGITS if choose.flag() else "11111111")
    _frame(choose, wire, PairFrame.HELLO, end.hello)
    await _settled(lambda: serving.done() or wire.heard())
    with contextlib.suppress(OpenSledError, IndexError):
        channel, _ = end.channel(wire.heard()[0])
        host, name = choose.pick(HOSTS), choose.text()
        request = PairRequest(host, name).encode()
        if choose.flag():
            request = bodies.changed_json(json.loads(request), choose)
        request = request[: MOST[PairFrame.REQUEST] - 100]
        _frame(choose, wire, PairFrame.REQUEST, channel.proof + channel.seal(request))
        await _settled(lambda: serving.done() or len(wire.heard()) > 1)
        _frame(choose, wire, PairFrame.STORED, channel.seal(STORED))
    wire.reader.feed_eof()
    await serving
    assert desk._guesses <= MAX_GUESSES
    if desk.outcome.done() and desk.outcome.exception() is None:
        assert is_host(host) and end._pake.pw == DIGITS.encode()
    for device in paired_devices(_home()):
        revoke_device(_home(), device.name)


def pairing_device(data: bytes) -> None:
    """A server, or who says to be one, before a device that pairs; sometimes it knows the code."""
    _home()
    asyncio.run(_at_device(Choices(data)))


async def _at_device(choose: Choices) -> None:
    wire = Wire()
    pairing = asyncio.ensure_future(_exchange(wire.reader, wire, PairRequest("hub", "kitchen"), DIGITS))
    await _settled(wire.heard)
    digits = DIGITS if choose.flag() else "11111111"
    end = ServerEnd(digits, fingerprint(_home().authority.der), wire.heard()[0])
    _frame(choose, wire, PairFrame.ANSWER, end.answer)
    await _settled(lambda: pairing.done() or len(wire.heard()) > 1)
    channel = end.channel()
    grant = Grant("hub:7411", _home().authority.der, "ab" * 32, "kitchen").encode()
    if choose.flag():
        grant = bodies.changed_json(json.loads(grant), choose)[: MOST[PairFrame.GRANT] - 100]
    _frame(choose, wire, PairFrame.GRANT, channel.proof + channel.seal(grant))
    await _settled(lambda: pairing.done() or len(wire.heard()) > 2)
    _frame(choose, wire, PairFrame.DONE, channel.seal(b"done"))
    wire.reader.feed_eof()
    with contextlib.suppress(OpenSledError):
        got = await pairing
        assert digits == DIGITS and got.authority == _home().authority.der


def pairing_messages(data: bytes) -> None:
    """What comes out of the channel."""
    for read in (read_request, read_grant):
        with contextlib.suppress(OpenSledError):
            read(data)


def mdns_record(data: bytes) -> None:
    """A packet of multicast DNS, as it is; and a record that says anything."""
    from zeroconf import DNSIncoming

    packet = DNSIncoming(data)
    names = [record.name for record in packet.answers()] if packet.valid else []
    choose = Choices(data)
    addresses = choose.some(lambda: choose.pick(("192.168.1.7", "8.8.8.8", "::1", "fd00::1", choose.text())))
    for name in [*names, choose.text()]:
        found = check_record(SERVING, name, addresses, choose.below(70_000))
        if found:
            assert found.name.isprintable() and 0 < found.port < 65536
            assert 0 < len(found.addresses) <= MAX_ADDRESSES and "8.8.8.8" not in found.addresses
