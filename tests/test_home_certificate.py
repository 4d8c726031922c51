"""How long the certificate of a home counts, and that a server renews its own in time."""

import asyncio
import time
from datetime import timedelta

from cryptography import x509

from home.desk import home as home_module
from home.desk.home import Home
from home.desk.upkeep import home_kept
from verify_server.options.serve_config import ServeConfig


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
