"""Pairing over real sockets: who knows the code is paired, and what everybody else on the link can do."""

import asyncio
import json
import stat
import time
from pathlib import Path

import pytest

from home.desk.desk import MAX_CONNECTIONS, MAX_GUESSES, MAX_OF_ADDRESS, MAX_RUNS, PairingFailed
from home.desk.home import Home
from home.pairing import frames
from home.pairing.channel import ANSWER_BYTES, VERSION, DeviceEnd, ServerEnd
from home.pairing.frames import MOST, PairFrame, encode_frame
from home.pairing.handover import (
    DIGITS,
    Grant,
    PairRequest,
    is_host,
    new_code,
    read_code,
    read_grant,
    read_request,
    safe_name,
)
from opensled.cli import paired
from opensled.core.errors import (
    OpenSledError,
    Overloaded,
    ProtocolError,
    Unauthorized,
    Unreachable,
    UsageError,
)
from tests.pairing_world import CODE, HERE, WRONG, Middle, desk, device, guess, line, names


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Both ends keep their files below one folder, each in its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPENSLED_NO_CONFIG", raising=False)
    return tmp_path / "opensled" / "home"


async def test_a_device_gets_address_authority_and_a_token_of_its_own(folder):
    async with desk(folder) as (found, port):
        grant = await device(port, name="Küche & Flur!")
        outcome = await found.outcome
    home = Home(folder)
    assert outcome.name == grant.name == "k-che-flur" and outcome.address == HERE
    assert grant.server == f"{HERE}:7411" and grant.authority == home.authority.der
    kept = paired.values({})
    assert kept["server"] == grant.server
    token = Path(kept["token_file"]).read_text().strip()
    assert token == grant.token and f"{token} k-che-flur # paired" in home.tokens.read_text()
    for path in (
        home.tokens,
        home.key,
        folder / "ca.key",
        *map(paired.paired_folder().joinpath, ("token", "ca.pem")),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for path in (folder, paired.paired_folder()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_a_code_is_eight_random_digits_and_is_read_as_people_type_it():
    codes = {new_code() for _ in range(50)}
    assert len(codes) > 45 and all(len(read_code(code)) == DIGITS for code in codes)
    assert {read_code(typed) for typed in ("4821-0937", "48210937", " 4821 0937 ", "48-21-09-37")} == {
        "48210937"
    }
    for typed in ("", "4821-093", "4821-09377", "4821-o937", "٤٨٢١٠٩٣٧", "4821\n0937"):
        with pytest.raises(UsageError):
            read_code(typed)


async def test_a_wrong_code_pairs_nothing_and_says_so(folder):
    async with desk(folder) as (found, port):
        with pytest.raises(Unauthorized, match="not the one that the server shows"):
            await device(port, WRONG)
        assert not found.outcome.done()
        await device(port)
    assert names(folder) == ["kitchen"]


async def test_the_third_wrong_guess_withdraws_the_code(folder):
    async with desk(folder) as (found, port):
        for _ in range(MAX_GUESSES):
            with pytest.raises(Unauthorized):
                await guess(port)
        with pytest.raises(PairingFailed, match="withdrawn after 3 wrong guesses"):
            await found.outcome
        with pytest.raises(Unauthorized, match="does not count any more"):
            await device(port)
    assert names(folder) == [] and paired.paired_server() == ""


async def test_guesses_at_the_same_time_are_no_more_than_one_after_another(folder):
    async with desk(folder) as (found, port):
        told = await asyncio.gather(*(guess(port) for _ in range(MAX_OF_ADDRESS)), return_exceptions=True)
        assert all(isinstance(error, Unauthorized) for error in told)
        assert found._guesses == MAX_GUESSES and found.outcome.done()


async def test_a_third_device_on_the_link_is_too_late(folder):
    async with desk(folder) as (found, port):
        async with line(port) as early:  # it has begun before the good device is paired
            end = DeviceEnd(read_code(CODE))
            early.say(encode_frame(PairFrame.HELLO, end.hello))
            channel, _ = end.channel(await early.hear(PairFrame.ANSWER))
            await device(port)
            early.say(encode_frame(PairFrame.REQUEST, channel.proof + channel.seal(b"{}")))
            with pytest.raises(Unauthorized, match="does not count any more"):
                await early.hear(PairFrame.GRANT)
        with pytest.raises(Unauthorized, match="does not count any more"):
            await guess(port, CODE)
        assert (await found.outcome).name == "kitchen"
    assert names(folder) == ["kitchen"]


async def test_who_only_passes_frames_on_learns_nothing(folder):
    middle = Middle()
    async with desk(folder) as (_, port), middle.before(port) as between:
        grant = await device(between)
    assert [kind for kind, _ in middle.seen] == list(PairFrame)[:6]
    for secret in (grant.token.encode(), grant.name.encode(), b"CERTIFICATE", CODE.encode(), b"48210937"):
        assert not any(secret in body for _, body in middle.seen)


@pytest.mark.parametrize("kind", list(PairFrame)[:6])
@pytest.mark.parametrize("place", [0, len(VERSION) + 5, -1], ids=["first", "middle", "last"])
async def test_a_changed_byte_ends_the_pairing(folder, kind, place):
    def change(frame, body):
        if frame != kind:
            return body
        changed = bytearray(body)
        changed[min(place, len(changed) - 1)] ^= 1
        return bytes(changed)

    async with desk(folder) as (found, port), Middle(change).before(port) as between:
        with pytest.raises((Unauthorized, ProtocolError, Unreachable)):
            await device(between)
    assert paired.paired_server() == ""
    # The last frame tells the device only that the server has heard it; the token is the device's, which forgot it
    assert names(folder) == (["kitchen"] if kind == PairFrame.DONE else [])
    assert found._guesses <= 1


async def test_a_recorded_pairing_is_worth_a_wrong_guess(folder):
    middle = Middle()
    async with desk(folder) as (_, port), middle.before(port) as between:
        await device(between)
    said = dict(middle.seen)
    async with desk(folder) as (found, port), line(port) as replay:  # the same code, were it ever drawn again
        replay.say(encode_frame(PairFrame.HELLO, said[PairFrame.HELLO]))
        await replay.hear(PairFrame.ANSWER)
        replay.say(encode_frame(PairFrame.REQUEST, said[PairFrame.REQUEST]))
        with pytest.raises(Unauthorized):
            await replay.hear(PairFrame.GRANT)
        assert found._guesses == 1 and not found.outcome.done()
    assert names(folder) == ["kitchen"]


def test_a_false_server_tests_one_guess_in_a_try_and_gets_no_further():
    """It learns whether its one guess was right, from the device's proof; with a wrong one it can prove nothing."""
    good, false = DeviceEnd("48210937"), ServerEnd("11111111", bytes(32), DeviceEnd("11111111").hello)
    false = ServerEnd("11111111", bytes(32), good.hello)
    channel, _ = good.channel(false.answer)
    guessed = false.channel()
    with pytest.raises(Unauthorized):
        guessed.require_proof(channel.proof)
    with pytest.raises(Unauthorized):
        channel.require_proof(guessed.proof)
    with pytest.raises(Unauthorized):
        guessed.unseal(channel.seal(b"{}"))


async def test_who_signs_drafts_comes_with_the_pairing_if_the_home_names_one(folder):
    for key in ("", "cd" * 32):
        if key:
            Home(folder).name_signer(key)
        async with desk(folder) as (_, port):
            grant = await device(port)
            assert grant.signer == key
            wanted = f"{grant.name}:{key}" if key else ""
            assert paired.signer_of(f"{HERE}:7411") == wanted and paired.signer_of("other:7411") == ""
    assert stat.S_IMODE((paired.paired_folder() / "signer").stat().st_mode) == 0o600


def test_a_message_sent_back_is_no_message():
    end = DeviceEnd("48210937")
    with pytest.raises(ProtocolError):
        end.channel(end.hello + bytes(ANSWER_BYTES - len(end.hello)))


async def test_another_authority_than_announced_is_refused(folder):
    """A server that could change its mind after the proofs would not be bound by them."""

    async def lie(reader, writer):
        hello = await frames.read_frame(reader, PairFrame.HELLO)
        end = ServerEnd("48210937", bytes(32), hello)
        writer.write(encode_frame(PairFrame.ANSWER, end.answer))
        await frames.read_frame(reader, PairFrame.REQUEST)
        channel = end.channel()
        grant = Grant("hub:7411", Home(folder).authority.der, "ab" * 32, "kitchen")
        writer.write(encode_frame(PairFrame.GRANT, channel.proof + channel.seal(grant.encode())))

    server = await asyncio.start_server(lie, HERE, 0)
    with pytest.raises(ProtocolError, match="another authority"):
        await device(server.sockets[0].getsockname()[1])
    server.close()
    assert paired.paired_server() == ""


async def test_a_device_that_cannot_keep_its_token_has_none(folder, monkeypatch):
    def full(*_):
        raise UsageError("the disk is full")

    monkeypatch.setattr(paired, "keep", full)
    async with desk(folder) as (found, port):
        with pytest.raises(UsageError, match="full"):
            await device(port)
        with pytest.raises(PairingFailed, match="knew the code"):
            await asyncio.wait_for(found.outcome, 20)
    assert names(folder) == []


async def test_devices_of_one_name_are_told_apart(folder):
    for _ in range(3):
        async with desk(folder) as (_, port):
            await device(port, name="Pi")
    assert names(folder) == ["pi", "pi-2", "pi-3"]


# -- what strangers send ------------------------------------------------------------------------------------------


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


# -- what comes out of the channel --------------------------------------------------------------------------------


def test_a_name_is_made_safe_and_unique():
    assert safe_name("local", frozenset({"local"})) == "local-2"
    assert safe_name("\x1b]0;x\x07 max_sessions=9 #\n") == "0-x-max-sessions-9"
    assert safe_name("日本") == "device" and len(safe_name("x" * 500, frozenset({"x" * 27}))) <= 32


@pytest.mark.parametrize("host", ["hub", "hub.local", "192.0.2.7", "fd00::1", "a-b.example.", "pc_1"])
def test_hosts_that_a_certificate_can_name(host):
    assert is_host(host)


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "-a", "a..b", "fe80::1%eth0", "x" * 64, "a\n", "*.example", "ä.de"]
)
def test_hosts_that_are_none(host):
    assert not is_host(host)
    with pytest.raises(ProtocolError):
        read_request(PairRequest(host, "x").encode())


GOOD = {"server": "hub:7411", "authority": "", "token": "ab" * 32, "name": "kitchen"}


@pytest.mark.parametrize(
    "changed",
    [
        {"server": "hub"},
        {"server": "hub:0"},
        {"server": "a/b:1"},
        {"token": "ab"},
        {"token": "x" * 64},
        {"name": "Kitchen"},
        {"name": "x" * 33},
        {"name": ""},
        {"authority": "nothing"},
        {"authority": 5},
        {"token": None},
        {"signer": "ab"},
        {"signer": 5},
        {"signer": "X" * 64},
    ],
)
def test_a_grant_is_checked_field_by_field(tmp_path, changed):
    good = GOOD | {"authority": Home(tmp_path).authority.pem.decode()}
    assert read_grant(json.dumps(good | {"later": 1}).encode()).name == "kitchen"
    assert read_grant(json.dumps(good | {"signer": "ab" * 32}).encode()).signer == "ab" * 32
    with pytest.raises(ProtocolError):
        read_grant(json.dumps(good | changed).encode())
    for said in (b"", b"[]", b"\xff", b"[" * 5000, b"null"):
        with pytest.raises(ProtocolError):
            read_grant(said)


def test_frames_hold_what_they_may():
    assert set(MOST) == set(PairFrame)
    with pytest.raises(AssertionError):
        encode_frame(PairFrame.STORED, bytes(100))
