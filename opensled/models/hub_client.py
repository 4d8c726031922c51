"""Speaks with a hub of models over HTTP: the listing of a repository, and its files from any byte on.

By the standard library: with huggingface_hub (2.4), a command that was interrupted begins its file anew, and over HTTP
only sizes are compared, no digests. The paths are those of Hugging Face, which mirrors serve, too; HF_ENDPOINT names
one. The token goes to the hub itself, never to where it redirects.
"""

import os
import re
from http.client import HTTPException, HTTPMessage, HTTPResponse, InvalidURL
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
    getproxies,
    proxy_bypass,
)

import opensled
from opensled.core.errors import NotFound, OpenSledError, Overloaded, Unauthorized, Unreachable, UsageError
from opensled.core.files import user_path
from opensled.models.hub_listing import Listing, read_listing
from opensled.models.hub_names import HUB, hub_endpoint, hub_variable
from opensled.net.address import is_loopback
from opensled.net.outward import is_near, tls_context, why_untrusted

TIMEOUT = 20.0  # seconds without a byte
MAX_ANSWER = 32 << 20  # bytes of a listing, all its pages together
# Where `hf auth login` keeps the token: HF_TOKEN_PATH, else $HF_HOME/token, else ~/.cache/huggingface/token.
TOKEN_FILE = "token"


class _Redirects(HTTPRedirectHandler):
    """Follows to HTTPS, and from HTTP to HTTP; gives the token only to the host that it is for."""

    http_error_308 = HTTPRedirectHandler.http_error_302  # Python 3.10 does not know it

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme != "https" and new.scheme != old.scheme:
            raise URLError(f"it redirects to {new.scheme}")
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if following is not None and token and (new.scheme, new.netloc) == (old.scheme, old.netloc):
            following.add_unredirected_header("Authorization", token)
        return following


class _Proxies(ProxyHandler):
    """Those of the environment, before hosts of other networks alone."""

    def __init__(self) -> None:
        found = getproxies()
        everywhere = found.get("all", "")
        usual = everywhere if everywhere.startswith("http") else ""  # no other kind is spoken here
        self._by_scheme = {scheme: found.get(scheme) or usual for scheme in ("http", "https")}
        super().__init__(self._by_scheme)

    def before(self, url: str) -> str:
        """The proxy that leads to `url`, without the password that it may need; "" = none."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        direct = is_near(host) or proxy_bypass(host)
        return "" if direct else self._by_scheme[parts.scheme].rpartition("@")[2]

    def proxy_open(self, req: Request, proxy: str, type: str) -> Any:
        return super().proxy_open(req, proxy, type) if self.before(req.full_url) else None


class HubClient:
    """One hub, as the environment names it."""

    def __init__(self) -> None:
        """Raises UsageError for an address or a token that cannot be used."""
        self.endpoint = hub_endpoint()
        self._token = _token()
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"HF_ENDPOINT: {self.endpoint!r} is not the address of a hub; write, for example, {HUB}"
            )
        if self._token and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise UsageError(
                f"HF_ENDPOINT: {self.endpoint} would get your token in clear text; use https, or no token"
            )
        self._proxies = _Proxies()
        self._opener = build_opener(_Redirects, self._proxies, HTTPSHandler(context=tls_context()))

    def listing(self, repository: str, revision: str) -> Listing:
        """The files at a commit, branch or tag; "" = the hub's default branch. Raises as `open` does."""
        where = f"/revision/{quote(revision, safe='')}" if revision else ""
        path: str | None = f"/api/models/{repository}{where}?blobs=true"
        pages: list[bytes] = []
        while path and len(pages) < 100:  # a bound for a hub that goes round in circles
            with self._get(path, repository, revision) as answer:
                pages.append(self._read(answer, MAX_ANSWER - sum(map(len, pages))))
                path = self._next_page(answer.headers.get("Link", ""))
        return read_listing(pages[0], repository, *pages[1:])

    def _read(self, answer: HTTPResponse, most: int) -> bytes:
        try:
            content = answer.read(most + 1)
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{self.endpoint} broke off its answer: {error}; try again") from error
        if len(content) > most:
            raise Unreachable(
                f"{self.endpoint} answers with more than {MAX_ANSWER >> 20} MB; it is not a model hub"
            )
        return content

    def _next_page(self, link: str) -> str | None:
        """The path of the next page, which only this hub is asked for."""
        parts = (
            re.match(r'<([^>\s]*)>\s*;.*\brel="?next', part) for part in re.split(r",\s*(?=<)", link.strip())
        )
        found = next(filter(None, parts), None)
        path = found[1].removeprefix(self.endpoint) if found else ""
        return path if path.startswith("/") else None

    def open(self, repository: str, commit: str, name: str, start: int = 0) -> HTTPResponse:
        """A file from byte `start` on, or whole with status 200 if the hub knows no ranges.

        Raises NotFound, Unauthorized, Overloaded or Unreachable; reading may raise OSError and HTTPException.
        """
        ranged = {"Range": f"bytes={start}-"} if start else {}
        return self._get(f"/{repository}/resolve/{commit}/{quote(name)}", repository, commit, **ranged)

    def _get(self, path: str, repository: str, revision: str, **headers: str) -> HTTPResponse:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise Unreachable(
                f"HF_HUB_OFFLINE is set, so {self.endpoint} is not asked for {repository}; unset it"
            )
        request = Request(
            self.endpoint + path, headers={"User-Agent": f"opensled/{opensled.__version__}", **headers}
        )
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=TIMEOUT)
            return answer
        except HTTPError as error:
            raise self._refusal(error, repository, revision) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable(error) from error

    def _refusal(self, error: HTTPError, repository: str, revision: str) -> OpenSledError:
        code, why = error.code, error.headers.get("X-Error-Code", "")
        error.close()
        if why == "RevisionNotFound":
            return NotFound(
                f"{repository} has no revision {revision!r}; see {self.endpoint}/{repository}", "revision"
            )
        plain = self._proxies.before(self.endpoint) and self.endpoint.startswith("http:") and not why
        if plain and code in (403, 407, 502, 503, 504):  # of the proxy, or of the hub
            return self._proxy_refusal(code)
        if code == 403 or why == "GatedRepo":
            return Unauthorized(
                f"{repository} is gated: accept its licence at {self.endpoint}/{repository}, then give a token of that "
                f"account: HF_TOKEN=hf_... opensled pull {repository}",
                "model",
            )
        if code == 401 and self._token:
            return Unauthorized(
                f"{self.endpoint} refuses your token, or has no {repository}; see HF_TOKEN, hf auth whoami",
                "model",
            )
        if code in (401, 404):  # it answers 401 for what does not exist, too
            return NotFound(
                f"{self.endpoint} has no {repository} that is public; check the name, or give a token "
                "for a private one: HF_TOKEN=hf_...",
                "model",
            )
        if code == 429:
            return Overloaded(f"{self.endpoint} has too many requests from here; try again in some minutes")
        return Unreachable(f"{self.endpoint} answers {code} for {repository}; try again later")

    def _proxy_refusal(self, code: int) -> Unreachable:
        """The error where the proxy answers for the hub."""
        proxy = self._proxies.before(self.endpoint).rpartition("//")[2].rstrip("/")
        if code == 407:
            named = f"{urlsplit(self.endpoint).scheme.upper()}_PROXY"
            return Unreachable(
                f"no hub at {self.endpoint}: the proxy {proxy} wants a password: write it as "
                f"http://NAME:PASSWORD@{proxy} in {named}; the one there, if any, is not accepted"
            )
        return Unreachable(
            f"no hub at {self.endpoint}: the proxy {proxy} answers {code}; ask who runs it to let this hub through, "
            "name a mirror in HF_ENDPOINT, or copy the model here and give its path"
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        cause: Any = error.reason if isinstance(error, URLError) else error
        proxy = self._proxies.before(self.endpoint)
        place = f"{self.endpoint}{f' through the proxy {proxy}' if proxy else ''}"
        if untrusted := why_untrusted(cause, "name your company's authorities (PEM) in SSL_CERT_FILE"):
            return Unreachable(f"no hub at {place}: {untrusted}")
        if tunnel := re.match(r"Tunnel connection failed: (\d+)", str(cause)):
            return self._proxy_refusal(int(tunnel[1]))
        if proxy and isinstance(error, (ValueError, InvalidURL)):  # its words may hold a part of the password
            return Unreachable(
                f"no hub at {self.endpoint}: the proxy's address cannot be read; write http://NAME:PASSWORD@HOST:PORT "
                "with % and two digits for each mark in the password, such as %40 for @"
            )
        words = getattr(cause, "strerror", None) or cause
        return Unreachable(
            f"no hub at {place}: {words}; connect to the internet (HTTPS_PROXY, HF_ENDPOINT for a mirror), or "
            "copy the model here and give its path"
        )


def _token() -> str:
    """HF_TOKEN, else the token that `hf auth login` keeps; "" = none. Raises UsageError."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    path = user_path(os.environ.get("HF_TOKEN_PATH") or home / TOKEN_FILE)
    token = hub_variable("HF_TOKEN")
    try:
        token = token or path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    if not (token.isascii() and token.isprintable()):
        raise UsageError("HF_TOKEN holds characters that no token has")
    return token
