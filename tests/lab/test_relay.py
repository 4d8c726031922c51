"""The relay between real sockets: bytes, delays, outages, resets, real gRPC."""

import asyncio
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hw_profiles import catalog
from lab.testbed.link_relay import Chaos, Relay
from lab.testbed.link_state import Alarm
from opensled.core.errors import UsageError
from opensled.net.address import host_port, join_host_port
from tests.devices import device_on, read
from tests.link_profiles import profile, without_loss
from tests.serving import serving

CALM = profile()  # no delay, no loss
RESET = (ConnectionResetError, BrokenPipeError)


@asynccontextmanager
async def listener(talk):
    """A server that runs `talk(reader, writer)` for each connection; yields HOST:PORT."""

    async def closing(reader, writer):
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    try:
        yield join_host_port(*server.sockets[0].getsockname())
    finally:
        server.close()


async def echo(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except RESET:
        pass


@asynccontextmanager
async def dialled(address):
    reader, writer = await asyncio.open_connection(*host_port(address))
    try:
        yield reader, writer
    finally:
        writer.close()


async def round_trip(reader, writer, data=b"x" * 60) -> float:
    began = time.monotonic()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return time.monotonic() - began


async def exchanged(address, pieces) -> bytes:
    """What comes back of `pieces`, written one by one, while it is read; then the end of the stream both ways."""
    async with dialled(address) as (reader, writer):
        reading = asyncio.ensure_future(reader.read(-1))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        return await reading


@pytest.mark.parametrize("name", ["calm", "wifi-good", "5g"])
async def test_bytes_arrive_whole_and_in_order_whatever_their_sizes(name):
    link = CALM if name == "calm" else catalog.link(name)
    dice = random.Random(7)
    pieces = [[dice.randbytes(int(10 ** dice.uniform(0, 5))) for _ in range(12)] for _ in range(4)]
    async with listener(echo) as to, Relay(link, to, seed=1) as relay:
        back = await asyncio.gather(*(exchanged(relay.address, each) for each in pieces))
        assert back == [b"".join(each) for each in pieces]
        assert relay.bytes_up == relay.bytes_down == sum(map(len, back))
        assert not relay.connections


@pytest.mark.timed
@pytest.mark.parametrize("dilation", [1.0, 4.0])
async def test_a_round_trip_takes_what_the_profile_says_times_the_dilation(dilation):
    link = profile((20, 20))
    async with (
        listener(echo) as to,
        Relay(link, to, dilation=dilation) as relay,
        dialled(relay.address) as streams,
    ):
        taken = [await round_trip(*streams) for _ in range(12)]
    # The best of them: a busy machine makes the others late.
    assert 0.02 * dilation <= min(taken) < 0.03 * dilation


async def test_connecting_costs_a_round_trip_as_well():
    async with listener(echo) as to, Relay(profile((60, 60)), to) as relay:
        began = time.monotonic()
        async with dialled(relay.address) as streams:
            await round_trip(*streams)
        assert time.monotonic() - began >= 0.12


async def test_all_connections_share_the_rate():
    link = profile(up=8)  # 1 MB/s up
    async with listener(echo) as to, Relay(link, to) as relay:
        began = time.monotonic()
        await asyncio.gather(*(exchanged(relay.address, [bytes(50_000)]) for _ in range(4)))
        assert time.monotonic() - began >= 0.2


async def test_a_sender_is_held_up_when_its_receiver_does_not_read():
    release = asyncio.Event()

    async def sleeper(reader, writer):
        await release.wait()
        await reader.read(-1)

    async with listener(sleeper) as to, Relay(CALM, to) as relay, dialled(relay.address) as (_, writer):
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(bytes(64 * 2**20))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.5)
        assert relay.bytes_up < 32 * 2**20
        release.set()
        await asyncio.wait_for(writer.drain(), 20)


async def test_one_half_may_close_and_the_other_go_on():
    async def answer_at_the_end(reader, writer):
        question = await reader.read(-1)
        writer.write(b"heard " + question)
        writer.write_eof()

    async with listener(answer_at_the_end) as to, Relay(without_loss("wifi-good"), to) as relay:
        assert await exchanged(relay.address, [b"all", b" of it"]) == b"heard all of it"


async def test_both_ends_see_a_reset():
    came, seen = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def told(reader, writer):
        try:
            await reader.readexactly(1)
            came.set()
            await reader.read(-1)
        except RESET as error:
            seen.set_result(error)

    async with listener(told) as to, Relay(CALM, to) as relay, dialled(relay.address) as (reader, writer):
        writer.write(b"x")
        await came.wait()
        relay.reset()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert isinstance(await asyncio.wait_for(seen, 20), RESET)


async def test_a_reset_by_one_end_reaches_the_other():
    async def slam(reader, writer):
        await reader.readexactly(1)
        linger = (1).to_bytes(4, sys.byteorder) + bytes(4)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with listener(slam) as to, Relay(CALM, to) as relay, dialled(relay.address) as (reader, writer):
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), 20)
        assert not relay.connections


async def test_scheduled_resets_come_again_and_again():
    async with listener(echo) as to, Relay(CALM, to, chaos=Chaos(reset_every=0.1)) as relay:
        for _ in range(3):
            async with dialled(relay.address) as (reader, _):
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(reader.read(1), 20)


@pytest.mark.timed
async def test_an_outage_delays_and_loses_nothing():
    chaos = Chaos(outage_every=0.6, outage=0.3)
    async with listener(echo) as to, Relay(CALM, to, chaos=chaos) as relay, dialled(relay.address) as streams:
        taken = []
        while relay.now() < 1.4:
            taken.append(await round_trip(*streams))
    assert len(taken) > 10  # every one of them whole
    assert sum(each > 0.2 for each in taken) >= 2


def test_outages_shift_what_is_due_in_them_to_their_end():
    chaos = Chaos(outage_every=10, outage=2)
    assert [chaos.arrival(at) for at in (0.0, 1.0, 9.9)] == [0.0, 1.0, 9.9]
    assert [chaos.arrival(at) for at in (10.0, 11.9, 12.5, 20.5)] == pytest.approx([12.0, 12.0, 12.5, 22.0])


@pytest.mark.parametrize("numbers", [(10, 0, 0), (0, 1, 0), (10, 6, 0), (0, 0, -1)])
def test_chaos_that_makes_no_sense_is_refused(numbers):
    with pytest.raises(UsageError, match="chaos"):
        Chaos(*numbers)


async def test_a_server_that_refuses_is_a_reset_connection():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = join_host_port(*taken.getsockname())
    async with Relay(CALM, nobody) as relay, dialled(relay.address) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), 20)


async def test_an_alarm_rings_in_order_and_never_early():
    loop, rung = asyncio.get_running_loop(), []
    alarm, done = Alarm(), asyncio.Event()
    began = loop.time()
    for offset in (0.03, 0.01, 0.02, -1.0):
        alarm.at(began + offset, lambda offset=offset: rung.append((offset, loop.time() - began)))
    alarm.at(began + 0.04, done.set)
    await asyncio.wait_for(done.wait(), 20)
    alarm.close()
    assert [offset for offset, _ in rung] == [-1.0, 0.01, 0.02, 0.03]
    assert all(at >= offset for offset, at in rung)


async def test_a_closed_alarm_never_rings():
    alarm, rung = Alarm(), []
    now = asyncio.get_running_loop().time()
    alarm.at(now, lambda: rung.append("before"))
    alarm.close()
    alarm.at(now, lambda: rung.append("after"))
    await asyncio.sleep(0.01)
    assert not rung


async def test_an_address_in_use_is_an_error_and_leaves_no_timer_open():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        before = len(list(Path("/proc/self/fd").iterdir()))
        relay = Relay(CALM, "127.0.0.1:1", listen=join_host_port(*taken.getsockname()))
        with pytest.raises(OSError):
            await relay.__aenter__()
        assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_without_a_timer_of_the_kernel_asyncio_rings(monkeypatch):
    monkeypatch.setattr("lab.testbed.link_state._libc", object)
    async with listener(echo) as to, Relay(profile((4, 4)), to) as relay, dialled(relay.address) as streams:
        assert await round_trip(*streams) >= 0.004


async def test_a_device_answers_the_same_through_a_link_that_resets():
    link, answers = profile((4, 12), loss=0.01), []
    async with serving() as (_, address):
        async with device_on(address) as device:
            plain = await read(device)
        relay = Relay(link, address, chaos=Chaos(reset_every=0.1))
        async with relay, device_on(relay.address) as device:
            while relay.now() < 0.45:  # until some resets have struck
                answers.append(await asyncio.wait_for(read(device), 30))
    wanted = [token for chunk in plain for token in chunk.token_ids]
    assert answers and all([t for chunk in answer for t in chunk.token_ids] == wanted for answer in answers)


async def test_the_command_relays_until_it_is_told_to_stop():
    async with listener(echo) as to:
        command = [sys.executable, "-m", "lab.testbed.link_relay", "--profile", "ethernet", "--to", to]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            ready = await asyncio.to_thread(process.stdout.readline)
            async with dialled(ready.removeprefix("listening on ").strip()) as streams:
                assert await round_trip(*streams) > 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_the_command_refuses_an_unknown_link_by_name():
    command = [sys.executable, "-m", "lab.testbed.link_relay", "--profile", "carrier-pigeon", "--to", "a:1"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 3 and "carrier-pigeon" in run.stderr and "Traceback" not in run.stderr


def test_the_command_loads_nothing_heavy():
    heavy = ("torch", "numpy", "grpc", "httpx", "transformers", "llama_cpp")
    code = f"import sys, lab.testbed.link_relay; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
