"""Where a draft server is, and how a device proves itself there."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opensled.core.errors import UsageError
from opensled.core.files import read_bytes, read_secret_text
from opensled.net.address import is_loopback, join_host_port
from opensled.net.outward import tls_context

EXAMPLE = "http://192.168.1.20:8080"


@dataclass(frozen=True)
class DraftAddress:
    """A server that the user named. Nothing is ever sent elsewhere: no redirects, no proxies."""

    host: str
    port: int
    base: str = ""  # path before that of each request
    key: str = field(default="", repr=False)  # "" = none
    tls: ssl.SSLContext | None = None
    model: str = ""  # that each request to a router names; "" = there is no router

    @property
    def place(self) -> str:
        """HOST:PORT, for people and for the header."""
        return join_host_port(self.host, self.port)

    def path_of(self, request: str) -> str:
        """Where a request goes: a version at the end of `base` is that of OpenAI's API there."""
        base, slash, version = self.base.rpartition("/")
        if not re.fullmatch(r"v\d+\w*", version):
            return self.base + request
        return base + re.sub(r"^/v1(?=/)", slash + version, request)

    @property
    def key_in_clear(self) -> bool:
        """Whether others on the way could read the key."""
        return bool(self.key) and self.tls is None and not is_loopback(self.host)


def draft_address(url: str, key_file: str = "", ca: str = "") -> DraftAddress:
    """The server at `url`; `key_file` and `ca` (PEM) by path, "" = none. Raises UsageError or NotFound."""
    url = url.partition("/#/")[0]  # of the page that a llama-server shows
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _no_address(url, str(error)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _no_address(url, "it has no http:// and host")
    if parts.username is not None or parts.query or parts.fragment:
        raise _no_address(url, "it has a user, a query or a fragment; a key belongs in the file of draft-key")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise _no_address(url, "it has characters that no address has")
    is_safe = parts.scheme == "https"
    if ca and not is_safe:
        raise UsageError(f"draft-ca is for https, and --draft-url {url} is not")
    return DraftAddress(
        parts.hostname,
        port if port is not None else 443 if is_safe else 80,
        _base(parts.path),
        read_secret_text(key_file, "key file").strip() if key_file else "",
        _context(ca) if is_safe else None,
    )


def _base(path: str) -> str:
    """A path without what requests begin with themselves: people paste the address of an API, or of one request."""
    path = re.sub(
        r"/+(chat/completions|completions?|models|api/(generate|chat|tags))/*$", "", path.rstrip("/")
    )
    return path.rstrip("/").removesuffix("/v1")


def _no_address(url: str, why: str) -> UsageError:
    return UsageError(f"--draft-url {url!r} is no address of a server: {why}; write, for example, {EXAMPLE}")


def _context(ca: str) -> ssl.SSLContext:
    pem = read_bytes(ca, "certificate file") if ca else b""
    try:
        return tls_context(pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"certificate file {ca} holds no certificate (PEM): {error}") from error
