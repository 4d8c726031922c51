"""The folder of a home, and a running server that learns of its changes: tokens that come and go, a new certificate."""

import asyncio
import logging
import os
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from edge_client.link.link import Endpoint, Link
from home.desk import home as home_module
from home.desk.authority import names_in, read_certificate
from home.desk.devices import add_device, paired_devices, rename_device, revoke_device
from home.desk.home import Home
from home.desk.upkeep import home_kept, with_home
from opensled.core.errors import NotFound, Unauthorized, Unreachable, UsageError
from opensled.core.files import write_whole
from opensled.core.messages import Open
from opensled.process.watched_file import CHECK_SECONDS, Watched
from tests.certificates import AUTHORITY, HERE, issued
from tests.emulated import Clock
from tests.serving import GREEDY, PROMPT, first_reply, linked, serving
from verify_server.access import security
from verify_server.access.security import TenantLimits, read_tls, watched_tenants
from verify_server.options.serve_config import ServeConfig
from verify_server.round.budget import Quotas


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.fixture
def clock():
    """A clock that a test sets."""

    return Clock(100.0)


def named(home):
    return names_in(read_certificate(home.cert.read_bytes(), ""))


def test_what_is_there_stays(home):
    before = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    Home(home.folder)
    assert {path.name: path.read_bytes() for path in home.folder.iterdir()} == before
    assert {"localhost", "127.0.0.1"} < set(named(home))


def test_a_folder_that_others_can_enter_is_refused_and_left_as_it_is(tmp_path):
    """It may be any folder, such as /tmp."""
    tmp_path.chmod(0o755)
    with pytest.raises(UsageError, match="is open to others; run: chmod 700"):
        Home(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755 and list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="cannot be used"):
        Home(Path(__file__))


def test_a_host_that_the_certificate_does_not_name_is_added(home):
    key, names = home.key.read_bytes(), named(home)
    assert not home.name_server(["localhost"])
    assert home.name_server(["Hub.Example", "2001:db8::7"])
    assert {*names, "hub.example", "2001:db8::7"} == set(named(home))
    assert home.key.read_bytes() == key  # so that a server never reads two that do not match
    assert not home.name_server(["hub.example"])


def test_a_certificate_names_at_most_so_many_hosts_the_newest_among_them(home, monkeypatch):
    monkeypatch.setattr(home_module, "MAX_NAMES", 12)
    for number in range(20):
        home.name_server([f"h{number}"])
    assert len(named(home)) <= 12 and "h19" in named(home) and "localhost" in named(home)


def test_an_old_certificate_is_renewed_with_its_names(home, monkeypatch):
    home.name_server(["hub.example"])
    before = home.cert.read_bytes()
    monkeypatch.setattr(home_module, "RENEWED_AFTER", timedelta(days=1))  # it counts from before it was made
    assert home.name_server(()) and home.cert.read_bytes() != before
    assert "hub.example" in named(home)


def test_a_certificate_of_another_authority_is_replaced(home):
    (home.folder / "ca.pem").unlink()
    (home.folder / "ca.key").unlink()
    again = Home(home.folder)
    assert again.authority.has_signed(read_certificate(again.cert.read_bytes(), ""))


@pytest.mark.parametrize("file", ["ca.pem", "ca.key", "server.pem", "server.key", "tokens.txt"])
def test_a_damaged_or_open_file_is_named(home, file):
    path = home.folder / file
    if path.suffix != ".pem":
        path.chmod(0o644)
        with pytest.raises(UsageError, match=f"{file} is readable by others"):
            Home(home.folder), paired_devices(home), home.name_server(["x"])
        path.chmod(0o600)
    path.write_bytes(b"nonsense\n\xff")
    with pytest.raises(UsageError, match=str(home.folder)):
        Home(home.folder), paired_devices(home), home.name_server(["x"])


def test_an_authority_whose_half_is_lost_is_not_made_anew(home):
    """A new one would lock all devices out."""
    (home.folder / "ca.key").unlink()
    with pytest.raises(NotFound, match=r"ca\.key does not exist"):
        Home(home.folder)


def test_lines_of_the_user_stay(home):
    own = "# mine\n\n" + "ab" * 32 + " phone max_sessions=3 # hers\n"
    write_whole(home.tokens, own.encode(), private=True)
    name, _ = add_device(home, "phone", "192.0.2.7")
    assert name == "phone-2" and home.tokens.read_text().startswith(own)
    assert [(each.name, each.address) for each in paired_devices(home)] == [
        ("phone", ""),
        ("phone-2", "192.0.2.7"),
    ]
    revoke_device(home, "phone-2")
    assert home.tokens.read_text() == own
    with pytest.raises(NotFound, match="no device is called 'phone-2'"):
        revoke_device(home, "phone-2")


def test_a_device_gets_another_name_and_keeps_its_token(home):
    _, token = add_device(home, "raspberrypi", "10.0.0.2")
    write_whole(home.tokens, home.tokens.read_bytes() + b"x" * 64 + b" desk max_sessions=2\n", private=True)
    assert rename_device(home, "raspberrypi", "Kitchen") == "kitchen"
    assert [device.name for device in paired_devices(home)] == ["kitchen", "desk"]
    assert (
        f"{token} kitchen # paired " in home.tokens.read_text()
        and "desk max_sessions=2" in home.tokens.read_text()
    )
    for name, wish, error in (("kitchn", "hall", "did you mean kitchen"), ("kitchen", "desk", "is taken")):
        with pytest.raises((NotFound, UsageError), match=error):
            rename_device(home, name, wish)
    with pytest.raises(NotFound, match="did you mean desk"):
        revoke_device(home, "dsk")


def test_paired_brings_its_own_files(tmp_path):
    config = with_home(ServeConfig(paired=True, folder=str(tmp_path / "home")))
    assert all(Path(path).is_file() for path in (config.tls_cert, config.tls_key, config.tokens))
    with pytest.raises(UsageError, match="--paired brings its own"):
        with_home(ServeConfig(paired=True, folder=str(tmp_path / "home"), tokens="tokens.txt"))
    with pytest.raises(UsageError, match="add --paired"):
        with_home(ServeConfig(folder=str(tmp_path)))
    assert with_home(ServeConfig(tokens="x")) == ServeConfig(tokens="x")


def test_a_home_without_devices_admits_nobody(home):
    tenants = watched_tenants(home.tokens, TenantLimits(), may_be_empty=True)
    assert not tenants.anonymous and not tenants.named_by_certificate
    for said in ("", "Bearer ", "Bearer x"):
        with pytest.raises(Unauthorized):
            tenants.of(said)
    with pytest.raises(UsageError, match="holds no token"):
        watched_tenants(home.tokens, TenantLimits())


def test_a_file_is_looked_at_once_a_second_and_read_when_it_changed(tmp_path, clock):
    path, reads = tmp_path / "file", []

    def read():
        reads.append(path.read_text())
        return reads[-1]

    path.write_text("one")
    watched = Watched([path], read, clock)
    path.write_text("two")
    assert watched.current() == "one"
    clock.now += CHECK_SECONDS
    assert watched.current() == "two"
    clock.now += CHECK_SECONDS
    assert watched.current() == "two" and reads == ["one", "two"]
    path.write_text("six")
    assert watched.current() == "two" and watched.current(at_once=True) == "six"


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path, clock):
    path = tmp_path / "file"
    path.write_text("one")
    watched = Watched([path], path.read_text, clock)
    status = path.stat()
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert watched.current(at_once=True) == "two"


@pytest.mark.parametrize("edit", ["broken", "gone", "open", "empty"])
def test_a_broken_edit_keeps_the_tenants_and_says_so_once(tmp_path, caplog, edit):
    path = tmp_path / "tokens"
    write_whole(path, b"secret-1 alice\n", private=True)
    tenants = watched_tenants(path, TenantLimits())
    if edit == "gone":
        path.unlink()
    elif edit == "open":
        path.chmod(0o644)
    else:
        path.write_bytes(b"secret-2\n" if edit == "broken" else b"")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(Unauthorized):
                tenants.of("Bearer secret-2")
        assert tenants.of("Bearer secret-1") == "alice"
    assert len(caplog.records) == 1 and "secret" not in caplog.text
    assert "changed and cannot be used, so what it said before still counts" in caplog.text
    write_whole(path, b"secret-2 bob max_sessions=4\n", private=True)
    assert tenants.of("Bearer secret-2") == "bob" and tenants.limits_of("bob").max_sessions == 4
    with pytest.raises(Unauthorized):
        tenants.of("Bearer secret-1")


def test_new_limits_of_a_tenant_count_from_now_on(tmp_path):
    path = tmp_path / "tokens"
    write_whole(path, b"secret-1 alice positions_per_s=5\n", private=True)
    tenants = watched_tenants(path, TenantLimits())
    quotas = Quotas(tenants, lambda: 0.0)
    first = quotas.of("alice")
    assert quotas.of("alice") is first and first.per_second == 5
    write_whole(path, b"secret-1 alice positions_per_s=9 kv_tokens=64\n", private=True)
    tenants.file.current(at_once=True)
    assert quotas.of("alice").per_second == 9 and tenants.kv_budgets == {64}
    write_whole(path, b"secret-1 alice\n", private=True)
    tenants.file.current(at_once=True)
    assert quotas.of("alice") is None


async def test_a_token_that_comes_counts_at_once_and_one_that_goes_ends_no_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("opensled.process.watched_file.CHECK_SECONDS", 0.0)
    path = tmp_path / "tokens"
    write_whole(path, b"secret-1 alice\n", private=True)
    async with (
        serving(watched_tenants(path, TenantLimits())) as (_, address),
        linked(address, token="secret-2") as late,
        linked(address, token="secret-1") as early,
    ):
        with pytest.raises(Unauthorized):
            await late.describe()
        stream = early.connect()
        await stream.send(Open(PROMPT, GREEDY))
        await stream.receive()
        write_whole(path, b"secret-2 bob\n", private=True)
        await late.describe()
        with pytest.raises(Unauthorized):
            await early.describe()
        with pytest.raises(Unauthorized):
            await first_reply(early, Open(PROMPT, GREEDY))
        while not (await stream.receive()).finish_reason:
            pass
        await stream.close()


def shown_names(address):
    """The names in the certificate that a server shows now."""
    pem = ssl.get_server_certificate((HERE, int(address.rpartition(":")[2])))
    return names_in(read_certificate(pem.encode(), ""))


async def test_a_new_certificate_counts_for_the_next_connection(tmp_path, monkeypatch):
    monkeypatch.setattr("opensled.process.watched_file.CHECK_SECONDS", 0.0)
    home = Home(tmp_path / "home")
    _, token = add_device(home, "kitchen", HERE)
    tls = read_tls(str(home.cert), str(home.key), "")
    async with serving(watched_tenants(home.tokens, TenantLimits()), tls=tls) as (_, address):
        known = {"token": token, "tls": True, "tls_ca": home.ca}
        async with linked(address, **known) as link:
            await link.describe()
            assert home.name_server(["hub.example"])
            await link.describe()  # an open connection stays
        assert "hub.example" in await asyncio.to_thread(shown_names, address)
        async with linked(address, tls_name="hub.example", **known) as link:
            await link.describe()
        home.cert.write_text("damaged")
        assert "hub.example" in await asyncio.to_thread(shown_names, address)


async def test_a_certificate_must_name_the_server_by_the_name_that_is_asked_for(tmp_path):
    authority = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(authority)
    tls = security.Tls(issued(AUTHORITY, "hub.example"))
    async with serving(tls=tls) as (_, address):
        async with linked(address, tls=True, tls_ca=authority, tls_name="hub.example") as link:
            await link.describe()
        for name in ("", "other.example"):
            link = Link(Endpoint(address, tls=True, tls_ca=authority, tls_name=name, timeout=1.0))
            with pytest.raises(Exception, match=r"certificate|TLS|no server answers|names"):
                await link.describe()
            await link.close()


@pytest.mark.parametrize("name", ["same", "another"])
async def test_the_server_of_another_home_is_a_stranger(tmp_path, name, monkeypatch):
    """Also one whose authority has the name of ours, such as a home that was made anew."""
    if name == "same":
        monkeypatch.setattr(home_module.secrets, "token_hex", lambda size: "00000000")
    ours, theirs = Home(tmp_path / "ours"), Home(tmp_path / "theirs")
    tls = read_tls(str(theirs.cert), str(theirs.key), "")
    async with serving(tls=tls) as (_, address), linked(address, tls=True, tls_ca=ours.ca) as link:
        with pytest.raises(
            Unreachable, match=r"does not know; name the authority's file with --tls-ca .*, or pair"
        ):
            await link.describe()


# -- how long the certificate counts ------------------------------------------------------------------------------


def validity(file):
    """Days for which a certificate counts."""
    known = x509.load_pem_x509_certificate(file.read_bytes())
    return (known.not_valid_after_utc - known.not_valid_before_utc).days


def test_phones_accept_how_long_a_certificate_counts(tmp_path):
    """Apple's limit for servers is 825 days (support.apple.com/103769)."""
    made = Home(tmp_path / "home")
    assert 365 + 30 < validity(made.cert) <= 825 < validity(made.ca)


def test_a_server_that_runs_for_years_renews_its_certificate(tmp_path, monkeypatch):
    made = Home(tmp_path / "home")
    first = made.cert.read_bytes()
    config = ServeConfig(paired=True, folder=str(made.folder))

    async def years(days):
        """A server whose every day lasts a moment."""
        async with home_kept(config, every=0.01):
            deadline = time.monotonic() + days
            while made.cert.read_bytes() == first and time.monotonic() < deadline:
                await asyncio.sleep(0.01)

    asyncio.run(years(0.2))
    assert made.cert.read_bytes() == first  # it is young
    monkeypatch.setattr(home_module, "RENEWED_AFTER", timedelta(days=-1000))
    asyncio.run(years(10))
    assert made.cert.read_bytes() != first and Home(made.folder).authority.pem == made.authority.pem
