"""What the server signs: whose it is, where it counts, and for how long."""

import base64

import pytest

from opensled.core.errors import Unauthorized
from tests.emulated import Clock
from verify_server.access.signing import UNBEGUN, GatewayCredentials, GatewayTenants, TokenSigner, derive_key

KEY = b"the cluster's key"


def test_a_token_opens_its_session_for_its_tenant_until_it_expires():
    clock = Clock(1000.0)
    signer = TokenSigner(clock, 60)
    token = signer.sign(7, "alice")
    assert signer.session_of(token, "alice") == 7
    assert signer.session_of(token, "bob") is None
    clock.now += 59
    assert signer.session_of(token, "alice") == 7
    clock.now += 1
    assert signer.session_of(token, "alice") is None


def test_a_token_of_another_process_is_merely_unknown():
    clock = Clock(1000.0)
    token = TokenSigner(clock, 60).sign(7, "alice")
    for given in (token, b"", b"short", token[:-1], token + b" ", bytes(200)):
        assert TokenSigner(clock, 60).session_of(given, "alice") is None


def test_in_a_cluster_a_token_names_the_replica_that_knows_its_session():
    clock = Clock(1000.0)
    gateway, first, second = (TokenSigner(clock, 60, KEY, name) for name in ("", "a", "b"))
    token = first.sign(7, "alice")
    assert first.session_of(token, "alice") == 7 and second.session_of(token, "alice") is None
    assert gateway.home_of(token, "alice") == ("a", True)
    assert gateway.home_of(token, "bob") == ("", False)
    assert TokenSigner(clock, 60, b"other").home_of(token, "alice") == ("", False)


def test_a_placement_is_no_session():
    clock = Clock(1000.0)
    gateway, replica = (TokenSigner(clock, 60, KEY, name) for name in ("", "a"))
    token = gateway.sign(UNBEGUN, "alice", "a")
    assert replica.session_of(token, "alice") is None
    assert gateway.home_of(token, "alice") == ("a", False)


def test_without_a_cluster_no_token_names_a_replica():
    signer = TokenSigner(Clock(1000.0), 60)
    assert signer.home_of(signer.sign(7, "alice"), "alice") == ("", False)


def test_a_pass_is_good_for_one_tenant_and_a_minute():
    clock = Clock(1000.0)
    credentials = GatewayCredentials(KEY, clock)
    clients = GatewayTenants(credentials=credentials)
    header = credentials.header("alice")
    assert clients.of(header) == "alice" and not clients.anonymous
    clock.now += 60
    with pytest.raises(Unauthorized, match="only gateways"):
        clients.of(header)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer ä", "Bearer !!!!", "Basic YWxpY2U="])
def test_what_is_no_pass_is_refused(header):
    with pytest.raises(Unauthorized, match="only gateways"):
        GatewayCredentials(KEY, Clock(1000.0)).tenant_of(header)


def test_a_resume_token_is_no_pass_and_a_pass_no_resume_token():
    clock = Clock(1000.0)
    signer, credentials = TokenSigner(clock, 60, KEY), GatewayCredentials(KEY, clock)
    sealed = base64.b64encode(signer.sign(7, "alice")).decode()
    with pytest.raises(Unauthorized):
        credentials.tenant_of(f"Bearer {sealed}")
    own_credential = base64.b64decode(credentials.header("alice").removeprefix("Bearer "))
    assert signer.home_of(own_credential, "alice") == ("", False)


def test_a_key_for_each_purpose():
    keys = {derive_key(KEY, purpose) for purpose in ("resume", "pass", "prefix")} | {
        derive_key(b"other", "resume")
    }
    assert len(keys) == 4 and all(len(key) == 32 for key in keys)
