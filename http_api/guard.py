"""Who may call the API: clients with a key, and no web page that is not allowed. ASGI middleware, before any route.

A page of the web runs inside the user's browser and so behind every firewall. It reaches a loopback API by sending it
requests from a foreign origin (CSRF) or by pointing its own name at 127.0.0.1 (DNS rebinding). Browsers name the page
in `Origin` and the name in `Host`, and pages cannot change either; programs send no `Origin` and the address they call.
For requests without `Origin`, such as of pictures, browsers say in `Sec-Fetch-Site` whether a foreign page asks.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_api.error_forms import in_form_of
from http_api.failures import error_body
from http_api.page.page_routes import EVENTS
from http_api.responses import to_json
from opensled.core.errors import UsageError
from opensled.core.files import read_secret_text
from opensled.net.address import calls_loopback, names_own_machine
from opensled.net.probes import LIVE, READY
from opensled.process.watched_file import Watched

# Tell whether the process works, and the page, which holds nothing of anybody: who has no key can read no more
OPEN_PATHS = ("/", "/health", LIVE, *READY)
PAGE_PATHS = "/page/"  # what the page asks for; browsers name no origin when a page reads from its own one
FOREIGN_SITES = ("cross-site", "same-site")  # in Sec-Fetch-Site (W3C Fetch Metadata): of another origin
QUOTED = 100  # characters of a header shown in an error


class KeyFile:
    """The keys of a file, as it is now: one that was added counts at once, and one that was removed no more."""

    def __init__(self, path: Path) -> None:
        """Raises what `read_keys` raises."""
        self._file = Watched([path], partial(read_keys, path))

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.current(at_once=True))


@dataclass(frozen=True)
class Access:
    """Who may call: the keys, the allowed web pages, and `local` (on loopback): only calls to a loopback name.

    `verb`: the command that serves the API, for its errors.
    """

    keys: tuple[str, ...] | KeyFile = field(default=(), repr=False)
    origins: tuple[str, ...] = ()
    local: bool = False
    verb: str = "opensled edge"

    def middleware(self, guard: Middleware | None = None) -> list[Middleware]:
        """Outermost first: pages, then the CORS headers of those allowed (also on a 401), then keys, or `guard`."""
        layers = [Middleware(PageGuard, access=self)]
        if self.origins:
            layers.append(_cors(self.origins))
        if self.keys:
            layers.append(Middleware(KeyGuard, keys=self.keys))
        return [*layers, guard] if guard else layers


def read_keys(path: Path) -> tuple[str, ...]:
    """The API keys in a file, one a line; `#` starts a comment. Raises UsageError or NotFound, never with a key."""
    lines = [line.split("#", 1)[0].split() for line in read_secret_text(path, "key file").splitlines()]
    for number, found in enumerate(lines, 1):
        if len(found) > 1:
            raise UsageError(f"{path}:{number}: expected one key per line")
    keys = tuple(found[0] for found in lines if found)
    if not keys:
        raise UsageError(f"key file {path} holds no key; make one with: openssl rand -hex 32")
    return keys


def _cors(origins: tuple[str, ...]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),  # the official client sends a dozen of its own
        allow_private_network=True,  # Chrome asks before a page of the internet may reach a loopback address
        expose_headers=(
            "Retry-After",
            "OpenSLED-Answer",
            "OpenSLED-Ignored",
            "OpenSLED-Not-In-Grammar",
            "OpenSLED-Tool-Calls",
            "request-id",
            "x-request-id",
        ),
    )


class PageGuard:
    """Refuses requests of web pages that are not allowed."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        path, host = scope["path"], headers.get("host", "")
        if self._access.local and not calls_loopback(host):
            return _refuse(
                path,
                403,
                f"this API is called at 127.0.0.1 or localhost, not at {host[:QUOTED]!r}; to be reached by other "
                f"names, start {self._access.verb} with --http on that address",
                code="forbidden_host",
            )
        origins = headers.getlist("origin")
        for origin in origins:
            if origin not in self._access.origins and not self._is_own(origin, scope["scheme"], host):
                return _refuse(
                    path,
                    403,
                    f"web pages of {origin[:QUOTED]} may not use this API; if they should, start "
                    f"{self._access.verb} with --cors-origin {origin[:QUOTED]}",
                    code="forbidden_origin",
                )
        if not origins and _is_foreign(scope["method"], headers):
            return _refuse(
                path, 403, "web pages of other sites may not use this API", code="forbidden_origin"
            )
        if not origins and path.startswith(PAGE_PATHS) and not self._may_show(scope["scheme"], host):
            return _refuse(
                path,
                403,
                f"the page is not shown at {host[:QUOTED]!r}, which may be a stranger's name: open it at an IP address "
                f"of this machine, or start {self._access.verb} with --cors-origin {scope['scheme']}://{host[:QUOTED]}",
                code="forbidden_host",
            )
        return None

    def _is_own(self, origin: str, scheme: str, host: str) -> bool:
        """Whether it is the origin of the page that this API serves itself."""
        return origin == f"{scheme}://{host}" and self._is_ours(scheme, host)

    def _is_ours(self, scheme: str, host: str) -> bool:
        """Whether a page at this name came from here: with TLS the browser has checked that, else no stranger may have
        a name for it."""
        return self._access.local or scheme == "https" or names_own_machine(host)

    def _may_show(self, scheme: str, host: str) -> bool:
        named = (origin.partition("://")[2] for origin in self._access.origins)
        return self._is_ours(scheme, host) or host in named


def _is_foreign(method: str, headers: Headers) -> bool:
    """Whether a browser says that a foreign page asks, and not a person who followed a link (which shows nothing to
    that page)."""
    follows_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    framed = headers.get("sec-fetch-dest", "document") != "document"
    return headers.get("sec-fetch-site") in FOREIGN_SITES and (framed or not follows_link)


class KeyGuard:
    """Refuses requests without a key, except to OPEN_PATHS."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == EVENTS:
            send = while_admitted(send, partial(self._opens, Headers(scope=scope)))
        free = scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._opens(Headers(scope=scope))
        await (self._app if free else refuse_without_key(scope["path"], "--http-keys"))(scope, receive, send)

    def _opens(self, headers: Headers) -> bool:
        return is_key(authorization(headers), self._keys)


def while_admitted(send: Send, admitted: Callable[[], bool]) -> Send:
    """`send` of looks, which have no end of their own: a key that is withdrawn ends those that it opened."""

    async def send_if_admitted(message: Message) -> None:
        if message.get("more_body") and not admitted():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise ClientDisconnect
        await send(message)

    return send_if_admitted


def authorization(headers: Headers) -> str:
    """The `authorization` header, or what it would be with the key in `x-api-key`, as Anthropic's clients send it."""
    key = headers.get("x-api-key", "")
    return headers.get("authorization", f"Bearer {key}" if key else "")


def is_key(authorization: str, keys: Iterable[str]) -> bool:
    """Whether an `authorization` header ("Bearer KEY", as HTTP gives it: latin-1) has one of `keys`."""
    scheme, _, given = authorization.partition(" ")
    # Every key is compared, so that timing tells nothing.
    matches = [hmac.compare_digest(key.encode(), given.strip().encode("latin-1")) for key in keys]
    return scheme.lower() == "bearer" and any(matches)


def refuse_without_key(path: str, flag: str) -> Response:
    """The refusal of a request without a key; `flag` names the file with the keys."""
    message = f"an API key is needed, as Authorization: Bearer KEY or x-api-key: KEY; who runs this API has it ({flag})"
    response = _refuse(path, 401, message, "authentication_error", "invalid_api_key")
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _refuse(
    path: str, status: int, message: str, type: str = "invalid_request_error", code: str = ""
) -> Response:
    """A refusal in the form of the API that `path` belongs to."""
    body = in_form_of(path, error_body(message, type, code))
    return Response(to_json(body), status, media_type="application/json")
