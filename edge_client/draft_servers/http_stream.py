"""One request to a draft server, and its answer as it comes: bounded in bytes and in time, cut by closing the socket.

The answer is read in short waits, so that a drafter can do something else meanwhile (`None`). Each request has a
connection of its own: that is what ends a generation on every kind of server.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import quote

import h11

import opensled
from edge_client.draft_servers.address import DraftAddress
from opensled.core.errors import DraftSourceError, NotFound, Unauthorized, first_line
from opensled.core.printable import visible_line
from opensled.net.outward import why_untrusted

CONNECT_S = 2.0  # a household's network answers in milliseconds
WAIT_S = 0.05  # of one look at the socket
DOCUMENT_S = 5.0  # for a whole answer that is no stream
# Seconds for the first token: a busy server, and the reading of the prompt, where it is slow (an NPU; chosen)
FIRST_S, READ_PER_S = 10.0, 50.0
BETWEEN_S = 2.0  # between two tokens: slower ones are worth no wait
# Tokens that one request asks for: a block and most of the next one. A server generates all of them before anybody can
# cut the stream, and what it generates in vain takes the machine from what is wanted: with 48 of them a device and its
# draft server took 61 ms of a core for each token of an answer, with 12 29 (docs/benchmarks/remote_drafts.json)
STREAM_TOKENS = 12
COUNTS_S = 0.002  # seconds that one waits for a token that was not there yet (chosen)
MAX_LINE = 1 << 18  # bytes; 64 candidates of a token take 8 kB
MAX_STREAM = 1 << 24  # bytes of all lines of one stream
MAX_DOCUMENT = 1 << 22  # bytes; a llama-server tells its chat template, an Ollama lists its models
MAX_HEAD = 1 << 16  # bytes of the headers
BUSY = (408, 425, 429)  # statuses of what may be asked again later
MAX_SAID = 200  # characters of an error that the server tells

Item = TypeVar("Item")
# Of one line: items, none for a line that says nothing, or None at the end of the stream
Read = Callable[[bytes], "Sequence[Item] | None"]


class NotReady(DraftSourceError):
    """Nothing answers, or what answers is not ready."""


class Exchange:
    """A request that was sent. Every method raises DraftSourceError, and Unauthorized or NotFound for such a status."""

    def __init__(self, address: DraftAddress, path: str, body: dict[str, Any] | None = None) -> None:
        """Send `body` by POST; None = GET."""
        self._place, self._path = address.place, path
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._received = 0
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise NotReady(f"it cannot be reached: {_cause(error)}") from error
        try:
            self._socket.sendall(_request(self._http, address, path, body))
            self._socket.settimeout(WAIT_S)
        except OSError as error:
            self.close()
            raise NotReady(f"the connection broke: {_cause(error)}") from error

    def parts(self, most: int) -> Generator[bytes | None, None, None]:
        """The body of a good answer, at most `most` bytes; None = nothing came for a moment."""
        while isinstance(event := self._event(), h11.InformationalResponse) or event is None:
            yield None
        if not isinstance(event, h11.Response) or event.status_code != 200:
            yield from self._refused(event)
        while not isinstance(event := self._event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                self._received += len(event.data)
                if self._received > most:
                    raise DraftSourceError(f"its answer is longer than {most >> 10} kB")
                yield bytes(event.data)
            elif event is None:
                yield None
            else:
                raise DraftSourceError("it broke its answer off")

    def _refused(self, event: object) -> Generator[None, None, None]:
        if not isinstance(event, h11.Response):
            raise DraftSourceError("it gave no answer of HTTP")
        said, deadline = b"", time.monotonic() + WAIT_S * 4
        while len(said) < MAX_SAID * 4 and time.monotonic() < deadline:
            part = self._event()
            if isinstance(part, h11.Data):
                said += part.data
            elif part is None:
                yield None
            else:
                break
        raise _refusal(self._place, self._path, event, said)

    def lines(self) -> Generator[bytes | None, None, None]:
        """The lines of the body, without their ends; None = a moment has passed without one."""
        rest = b""
        for part in self.parts(MAX_STREAM):
            if part is None:
                yield None
                continue
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
            if len(rest) > MAX_LINE:
                raise DraftSourceError(f"a line of its answer is longer than {MAX_LINE >> 10} kB")
            if not whole:
                yield None
        if rest:
            yield rest

    def _event(self) -> object:
        """The next event of h11; None = nothing came for a moment."""
        try:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(self._socket.recv(1 << 16))
                event = self._http.next_event()
            return None if event is h11.NEED_DATA else event
        except TimeoutError:
            return None
        except OSError as error:
            raise NotReady(f"the connection broke: {_cause(error)}") from error
        except h11.RemoteProtocolError as error:
            raise DraftSourceError(f"it gave no answer of HTTP: {first_line(error)}") from error

    def close(self) -> None:
        """End the exchange; a server that generates notices."""
        self._socket.close()


def _connect(address: DraftAddress) -> socket.socket:
    plain = socket.create_connection((address.host, address.port), CONNECT_S)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is None:
            return plain
        return address.tls.wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise


def _request(http: h11.Connection, address: DraftAddress, path: str, body: dict[str, Any] | None) -> bytes:
    if address.model and body is None:
        path += f"?model={quote(address.model, safe='', errors='replace')}"
    named = {"model": address.model} if address.model else {}
    content = b"" if body is None else json.dumps({**named, **body}).encode()
    headers = [
        ("Host", address.place),
        ("User-Agent", f"opensled/{opensled.__version__}"),
        ("Accept", "*/*"),
        ("Connection", "close"),
    ]
    if address.key:
        headers.append(("Authorization", f"Bearer {address.key}"))
    if body is not None:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    method = "GET" if body is None else "POST"
    head = h11.Request(method=method, target=address.path_of(path), headers=headers)
    events = [head, *([h11.Data(data=content)] if content else []), h11.EndOfMessage()]
    return b"".join([http.send(event) or b"" for event in events])


def _cause(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    remedy = "name the file of its authority in draft-ca of the configuration file, or in SSL_CERT_FILE"
    return why_untrusted(error, remedy) or error.strerror or str(error) or type(error).__name__


def _refusal(place: str, path: str, response: h11.Response, said: bytes) -> Exception:
    status = response.status_code
    why = f"it answers {path} with status {status}{_told(said)}"
    if status in (401, 403):
        return Unauthorized(
            f"the draft server {place} wants a key (status {status}{_told(said)}); put it into a file of mode 600 that "
            "draft-key in the configuration file names"
        )
    if status == 404:
        return NotFound(why)
    if 300 <= status < 400:
        to = dict(response.headers).get(b"location", b"elsewhere").decode("ascii", "replace")[:MAX_SAID]
        return DraftSourceError(
            f"it redirects to {visible_line(to)}, which is not followed; name that address"
        )
    return NotReady(why) if status >= 500 or status in BUSY else DraftSourceError(why)


def _told(said: bytes) -> str:
    """What an error of the server says, from a body that may be cut; of a page, as proxies send, its title."""
    text = said.decode("utf-8", "replace")
    try:
        document = json.loads(text)
        error = document.get("error", document)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        pass
    if page := re.search(r"<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL):
        text = page[1]
    text = visible_line(" ".join(text.split()))[:MAX_SAID]
    return f": {text}" if text else ""


def read_object(text: bytes) -> dict[str, Any]:
    """A JSON object. Raises DraftSourceError, also for the error that a server tells in one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DraftSourceError("its answer is no JSON") from error
    if not isinstance(found, dict):
        raise DraftSourceError("its answer is no JSON object")
    if found.get("error"):
        raise DraftSourceError(f"it reports an error{_told(text)}")
    return found


def fetch(
    address: DraftAddress, path: str, body: dict[str, Any] | None = None, seconds: float = DOCUMENT_S
) -> dict[str, Any]:
    """The JSON object at a path; of a bare list, one with it as `data`. Raises DraftSourceError, Unauthorized or
    NotFound."""
    deadline, content = time.monotonic() + seconds, b""
    with closing(Exchange(address, path, body)) as exchange:
        for part in exchange.parts(MAX_DOCUMENT):
            content += part or b""
            if time.monotonic() > deadline:
                raise NotReady(f"it gave no whole answer within {seconds:g} s")
    return read_object(b'{"data":' + content + b"}" if content.lstrip().startswith(b"[") else content)


def stream(
    address: DraftAddress,
    path: str,
    body: dict[str, Any],
    read: Read[Item],
    first_s: float,
    waited: Callable[[int, float], None] = lambda items, seconds: None,
) -> Generator[Item | None, None, None]:
    """What `read` makes of the lines of an answer; None = nothing came for a moment.

    `first_s`: seconds for the first item. A line without items is no progress. `waited` hears of items behind the first
    ones that had not come yet: how many, and the seconds until they came. Raises DraftSourceError.
    """
    try:
        with closing(Exchange(address, path, body)) as exchange:
            yield from _items(exchange, read, first_s, waited)
    except (Unauthorized, NotFound) as error:
        raise DraftSourceError(str(error)) from error


def _items(
    exchange: Exchange, read: Read[Item], first_s: float, waited: Callable[[int, float], None]
) -> Generator[Item | None, None, None]:
    deadline, seconds, is_first = time.monotonic() + first_s, 0.0, True
    lines = exchange.lines()
    while True:
        began = time.perf_counter()
        try:
            line = next(lines)
        except StopIteration:
            return
        seconds += time.perf_counter() - began
        items = _read(read, line) if line else ()
        if items is None:
            return
        if items:
            if seconds > COUNTS_S and not is_first:
                waited(len(items), seconds)
            yield from items
            deadline, seconds, is_first = time.monotonic() + BETWEEN_S, 0.0, False
        elif time.monotonic() > deadline:
            raise NotReady("it gave no token in time")
        elif line is None:
            yield None


def _read(read: Read[Item], line: bytes) -> Sequence[Item] | None:
    try:
        return read(line)
    except DraftSourceError:
        raise
    except Exception as error:  # a line may hold anything, such as half a character
        raise DraftSourceError(f"a line of its answer cannot be read: {first_line(error)}") from error


def first_token_s(text_tokens: int) -> float:
    """Seconds to wait for the first token after a text of so many tokens."""
    return FIRST_S + text_tokens / READ_PER_S


def sse_data(line: bytes) -> bytes:
    """The data of a line of server-sent events; b"" = it has none."""
    name, _, data = line.partition(b":")
    return data.strip() if name in (b"data", b"error") else b""
