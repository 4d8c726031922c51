"""What comes out of the channel of a pairing is checked field by field; names become safe."""

import json

import pytest

from home.desk.home import Home
from home.pairing.frames import MOST, PairFrame, encode_frame
from home.pairing.handover import PairRequest, is_host, read_grant, read_request, safe_name
from opensled.core.errors import ProtocolError


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
