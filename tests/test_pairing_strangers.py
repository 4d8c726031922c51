"""What strangers send to either end of a pairing, and how often: bytes that are no messages, silence, runs."""

import asyncio
import time

import pytest

from home.desk.desk import MAX_CONNECTIONS, MAX_OF_ADDRESS, MAX_RUNS, PairingFailed
from home.pairing import frames
from home.pairing.channel import ANSWER_BYTES, VERSION, DeviceEnd
from home.pairing.frames import PairFrame, encode_frame
from opensled.core.errors import OpenSledError, Overloaded, ProtocolError, Unreachable
from tests.pairing_world import HERE, desk, device, line, names


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Both ends keep their files below one folder, each in its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPENSLED_NO_CONFIG", raising=False)
    return tmp_path / "opensled" / "home"


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes([PairFrame.ANSWER, 0xFF, 0xFF]),
        bytes([PairFrame.ANSWER, 0, 3]) + b"abc",
        bytes([PairFrame.ANSWER, 0, ANSWER_BYTES]) + bytes(ANSWER_BYTES),
        bytes([PairFrame.REFUSED, 0, 1, 77]),
        b"",
    ],
)
async def test_a_device_bears_whatever_answers_it(said):
    async def answer(reader, writer):
        await reader.readexactly(10)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, HERE, 0)
    with pytest.raises(OpenSledError):
        await asyncio.wait_for(device(server.sockets[0].getsockname()[1]), 20)
    server.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes([PairFrame.HELLO, 0xFF, 0xFF]),
        bytes([PairFrame.GRANT, 0, 3]) + b"abc",
        encode_frame(PairFrame.HELLO, b"opensled-pairing-2" + bytes(33)),
        encode_frame(PairFrame.HELLO, VERSION + b"A"),
        bytes(100_000),
    ],
)
async def test_strangers_bytes_neither_use_the_code_nor_disturb_the_device(folder, said):
    async with desk(folder) as (found, port):
        async with line(port) as stranger:
            stranger.say(said)
            assert len(await stranger.ends()) <= 4  # a refusal at most
        await device(port)
        assert found._guesses == 0


async def test_a_point_that_is_none_counts_as_a_guess(folder):
    async with desk(folder) as (found, port), line(port) as stranger:
        stranger.say(encode_frame(PairFrame.HELLO, VERSION + b"A" + b"\xff" * 32))
        await stranger.hear(PairFrame.ANSWER)
        stranger.say(encode_frame(PairFrame.REQUEST, bytes(200)))
        with pytest.raises(ProtocolError):
            await stranger.hear(PairFrame.GRANT)
        assert found._guesses == 1


async def until_taken(port):
    """A device is, once the server has seen that a connection was closed."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return await device(port)
        except Overloaded:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


async def test_silent_connections_of_one_address_are_few(folder):
    async with desk(folder) as (_, port):
        lines = [await asyncio.open_connection(HERE, port) for _ in range(MAX_OF_ADDRESS)]
        with pytest.raises(Overloaded):
            await device(port)
        lines[0][1].close()
        await until_taken(port)
        for _, writer in lines:
            writer.close()


async def test_of_many_addresses_the_longest_silent_connection_gives_way(folder):
    """Each address of 127.0.0.0/8 is one of this machine."""
    async with desk(folder) as (_, port):
        lines = []
        for number in range(MAX_CONNECTIONS + 4):
            own = (f"127.0.0.{10 + number // 2}", 0)
            lines.append(await asyncio.open_connection(HERE, port, local_addr=own))
        await device(port)
        assert await asyncio.wait_for(lines[0][0].read(), 20) == b""
        for _, writer in lines:
            writer.close()


async def test_runs_of_one_code_are_few(folder):
    """They cost time, and could be timed."""
    async with desk(folder) as (found, port):
        for _ in range(MAX_RUNS + 1):
            async with line(port) as stranger:
                stranger.say(encode_frame(PairFrame.HELLO, DeviceEnd("11111111").hello))
                await stranger.reader.read(8)
        with pytest.raises(PairingFailed, match="began to pair and did not"):
            await asyncio.wait_for(found.outcome, 20)
    assert names(folder) == []


async def test_a_silent_end_is_given_up(folder, monkeypatch):
    monkeypatch.setattr(frames.read_frame, "__defaults__", (0.05,))
    async with desk(folder) as (_, port), line(port) as silent:
        await silent.ends(5)

    async def mute(reader, writer):
        await reader.read()

    server = await asyncio.start_server(mute, HERE, 0)
    with pytest.raises(Unreachable, match="said nothing"):
        await device(server.sockets[0].getsockname()[1])
    server.close()
