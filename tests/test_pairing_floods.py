"""Floods of the pairing port by other addresses: the good device is paired, or the code is withdrawn aloud."""

import asyncio
import contextlib
from collections import Counter

import pytest

from home.desk.desk import MAX_CONNECTIONS, MAX_GUESSES, MAX_OF_ADDRESS, MAX_RUNS, PairingFailed
from home.pairing.channel import HELLO_BYTES, DeviceEnd
from home.pairing.frames import PairFrame, encode_frame
from opensled.cli import paired
from opensled.core.errors import OpenSledError, Unauthorized
from tests.loops import cancelled
from tests.pairing_world import HERE, desk, device, guess, names

ATTACKERS = 3  # addresses
EACH = 40  # connections of one that are opened again and again


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "opensled" / "home"


FLOODS = {
    "silent connections": b"",
    "half a frame": bytes((PairFrame.HELLO, 0, HELLO_BYTES)) + b"opensled",
    "oversized frames": bytes((PairFrame.HELLO, 0xFF, 0xFF)) + bytes(60_000),
    "frames of another kind": encode_frame(PairFrame.STORED, bytes(20)),
    "noise": bytes(range(256)) * 100,
}


async def flood(port, address, said, counts):
    """Connections from there that say this, for as long as they are let."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0))
            counts["connections"] += 1
            writer.write(said)
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()
        except OSError:
            counts["refused"] += 1
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def flooded(port, said):
    counts = Counter()
    tasks = [
        asyncio.ensure_future(flood(port, f"127.0.1.{attacker}", said, counts))
        for attacker in range(1, ATTACKERS + 1)
        for _ in range(EACH)
    ]
    try:
        while counts["connections"] < ATTACKERS * EACH:
            await asyncio.sleep(0.01)
        yield counts
    finally:
        await cancelled(*tasks)


@pytest.mark.parametrize("kind", FLOODS)
async def test_the_good_device_is_paired_beside_a_flood(folder, kind):
    async with desk(folder) as (found, port), flooded(port, FLOODS[kind]):
        await asyncio.wait_for(device(port), 20)
        assert (await asyncio.wait_for(found.outcome, 20)).name == "kitchen"
        assert found._guesses == 0 and found._runs == 1
        assert len(found._waiting) <= MAX_CONNECTIONS
        assert len(found._by_address) <= ATTACKERS + 1  # who has gone is forgotten
    assert names(folder) == ["kitchen"]


async def test_a_flood_of_wrong_codes_withdraws_the_code_and_gets_nothing(folder):
    async def guessing(port, tried):
        with contextlib.suppress(OpenSledError, OSError):
            tried["runs"] += 1
            await guess(port)

    tried = Counter()
    async with desk(folder) as (found, port):
        while not found.outcome.done():
            await asyncio.gather(*(guessing(port, tried) for _ in range(MAX_OF_ADDRESS)))
        assert found._guesses == MAX_GUESSES
        with pytest.raises(PairingFailed, match="withdrawn after 3 wrong guesses"):
            found.outcome.result()
        with pytest.raises(Unauthorized, match="does not count any more"):
            await device(port)
    assert names(folder) == [] and paired.paired_server() == ""


async def test_a_flood_of_runs_without_a_guess_withdraws_the_code(folder):
    """It says so on the server's screen: the user sees that somebody disturbs."""
    hello = encode_frame(PairFrame.HELLO, DeviceEnd("11111111").hello)

    async def begin(port, address):
        _, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0))
        writer.write(hello)
        return writer

    async with desk(folder) as (found, port):
        held = [
            await begin(port, f"127.0.1.{1 + number // MAX_OF_ADDRESS}") for number in range(MAX_RUNS + 1)
        ]
        with pytest.raises(PairingFailed, match="began to pair and did not"):
            await asyncio.wait_for(found.outcome, 20)
        assert found._guesses == 0
        for writer in held:
            writer.close()
    assert names(folder) == []
