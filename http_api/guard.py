"""Who may call the API: clients with a key, and no web page that is not allowed. ASGI middleware, before any route.

A page of the web runs inside the user's browser and so behind every firewall. It reaches a loopback API by sending it
requests from a foreign origin (CSRF) or by pointing its own name at 127.0.0.1 (DNS rebinding). Browsers name the page
in `Origin` and the name in `Host`, and pages cannot change either; programs send no `Origin` and the address they call.
For requests without `Origin`, such as of pictures, browsers say in `Sec-Fetch-Site` whether a foreign page asks.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

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
from opensled.core.errors import Unauthorized, UsageError
from opensled.core.files import read_secret_text
from opensled.net.address import (
    calls_loopback,
    is_allowed_origin,
    names_own_machine,
    origins_pattern,
    web_origins,
    without_final_dot,
)
from opensled.net.probes import LIVE, READY
from opensled.process.watched_file import Watched

Admitted = TypeVar("Admitted")

# Tell whether the process works, and the page, which holds nothing of anybody: who has no key can read no more
OPEN_PATHS = ("/", "/health", LIVE, *READY)
PAGE_PATHS = "/page/"  # what the page asks for; browsers name no origin when a page reads from its own one
FOREIGN_SITES = ("cross-site", "same-site")  # in Sec-Fetch-Site (W3C Fetch Metadata): of another origin
QUOTED = 100  # characters of a header shown in an error
FOREIGN = (
    "web pages of other sites may not use this API, nor show its page; if one should, start {} with --cors-origin and "
    "its address, such as http://homeassistant.local:8123"
)
SERVED = "serve the page at one, such as with python3 -m http.server, and allow that"
KEY_HEADERS = ("x-api-key", "api-key")  # of Anthropic's clients, of Azure's


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
        allow_origin_regex=origins_pattern(origins),
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
        # A page always sends a Host; monitors and balancers that send none are no attack by a name
        if host and self._access.local and not (calls_loopback(host) or self._is_named(host)):
            return _refuse(
                path,
                403,
                f"this API is called at 127.0.0.1 or localhost, not at {host[:QUOTED]!r}; to be reached by other "
                f"names, start {self._access.verb} with --http on that address, or behind a proxy of yours with "
                f"--cors-origin https://{host[:QUOTED]}",
                code="forbidden_host",
            )
        origins = headers.getlist("origin")
        for origin in origins:
            if not is_allowed_origin(origin, self._access.origins) and not self._is_own(
                origin, scope["scheme"], host
            ):
                return _refuse(path, 403, self._advise(origin), code="forbidden_origin")
        may_frame = path == "/" and self._access.origins  # those that may its own headers say
        if not origins and not may_frame and _is_foreign(scope["method"], headers):
            return _refuse(path, 403, FOREIGN.format(self._access.verb), code="forbidden_origin")
        if (
            not origins
            and path.startswith(PAGE_PATHS)
            and not (self._is_ours(scope["scheme"], host) or self._is_named(host))
        ):
            return _refuse(
                path,
                403,
                f"the page is not shown at {host[:QUOTED]!r}, which may be a stranger's name: open it at an IP address "
                f"of this machine, or start {self._access.verb} with --cors-origin {scope['scheme']}://{host[:QUOTED]}",
                code="forbidden_host",
            )
        return None

    def _advise(self, origin: str) -> str:
        """Why a page is refused, and what allows it if anything does."""
        words = f"web pages of {origin[:QUOTED]} may not use this API"
        try:
            (allowed,) = web_origins(origin)
        except (UsageError, ValueError):
            return f"{words}: they come without an address that could be allowed; {SERVED}"
        return f"{words}; if they should, start {self._access.verb} with --cors-origin {allowed[:QUOTED]}"

    def _is_own(self, origin: str, scheme: str, host: str) -> bool:
        """Whether it is the origin of the page that this API serves itself."""
        return bool(host) and origin == f"{scheme}://{host}" and self._is_ours(scheme, host)

    def _is_ours(self, scheme: str, host: str) -> bool:
        """Whether a page at this name came from here: with TLS the browser has checked that, else no stranger may have
        a name for it."""
        return self._access.local or scheme == "https" or names_own_machine(host)

    def _is_named(self, host: str) -> bool:
        """Whether pages at this name are allowed."""
        return any(
            is_allowed_origin(f"{scheme}://{without_final_dot(host)}", self._access.origins)
            for scheme in ("http", "https")
        )


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
        await (self._app if free else refuse_without_key(scope, "--http-keys"))(scope, receive, send)

    def _opens(self, headers: Headers) -> bool:
        return any(is_key(given, self._keys) for given in authorizations(headers))


def while_admitted(send: Send, admitted: Callable[[], bool]) -> Send:
    """`send` of looks, which have no end of their own: a key that is withdrawn ends those that it opened."""

    async def send_if_admitted(message: Message) -> None:
        if message.get("more_body") and not admitted():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise ClientDisconnect
        await send(message)

    return send_if_admitted


def authorizations(headers: Headers) -> list[str]:
    """All keys in the headers, each as `authorization` has it; [""] = none.

    Clients send an empty or made-up one beside the right one, and proxies put one of their own before it.
    """
    given = [value.strip().partition(" ") for value in headers.getlist("authorization")]
    keys = [key.strip() for scheme, _, key in given if scheme.lower() == "bearer"]
    keys += [headers.get(name, "").strip() for name in KEY_HEADERS]
    return [f"Bearer {key}" for key in dict.fromkeys(keys) if key] or [""]


def admit_any(headers: Headers, admit: Callable[[str], Admitted]) -> Admitted:
    """What `admit` gives for one of the keys in the headers; raises Unauthorized as for the last of them."""
    *others, last = authorizations(headers)
    for given in others:
        with suppress(Unauthorized):
            return admit(given)
    return admit(last)


def is_key(authorization: str, keys: Iterable[str]) -> bool:
    """Whether an `authorization` header ("Bearer KEY", as HTTP gives it: latin-1) has one of `keys`."""
    scheme, _, given = authorization.partition(" ")
    # Every key is compared, so that timing tells nothing.
    matches = [hmac.compare_digest(key.encode(), given.strip().encode("latin-1")) for key in keys]
    return scheme.lower() == "bearer" and any(matches)


def refuse_without_key(scope: Scope, flag: str) -> Response:
    """The refusal of a request without a key, or with a wrong one; `flag` names the file with the keys."""
    headers = Headers(scope=scope)
    given = [headers.get(name, "").removeprefix("Bearer").strip() for name in ("authorization", *KEY_HEADERS)]
    message = f"an API key is needed, as Authorization: Bearer KEY or x-api-key: KEY; who runs this API has it ({flag})"
    if any(given):
        message = (
            f"this API key is none of those that this API takes; check it, or ask who runs this API ({flag})"
        )
    response = _refuse(scope["path"], 401, message, "authentication_error", "invalid_api_key")
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _refuse(
    path: str, status: int, message: str, type: str = "invalid_request_error", code: str = ""
) -> Response:
    """A refusal in the form of the API that `path` belongs to."""
    body = in_form_of(path, error_body(message, type, code))
    return Response(to_json(body), status, media_type="application/json")
