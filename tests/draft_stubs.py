"""Servers that draft, as their published APIs have them: an Ollama, one with OpenAI's completions, and liars.

Each writes what a `Writer` continues a text with. tests/test_draft_servers.py asks the Ollama with Ollama's own client.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import unquote

import pytest

from edge_client.drafters import DRAFTERS
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from tests.tiny_drafts import TINY_DRAFT, tiny_tokenizer

Writer = Callable[[str], Iterator[str]]  # what follows a text, piece by piece
STORY = "Once upon a time there was a mill. " * 20
WHEN = "2026-01-01T00:00:00.000000Z"


def narrator(story: str, size: int = 3) -> Writer:
    """Knows one story by heart, in pieces of `size` characters; ends after it, and elsewhere at once."""

    def write(text: str) -> Iterator[str]:
        if story.startswith(text):
            for start in range(len(text), len(story), size):
                yield story[start : start + size]

    return write


@cache
def _tiny():
    return DRAFTERS.get("llamacpp")(str(TINY_DRAFT), 1)


def tiny_writer(text: str) -> Iterator[str]:
    """The tiny draft model, greedily."""
    tokenizer, drafter = tiny_tokenizer(), _tiny().create()
    try:
        drafter.begin(
            tokenizer.encode_rendered(text), Sampler(SamplingParams(temperature=0.0), noise_key(0), False)
        )
        said = b""
        for token in drafter.propose():
            if token.id == 0:
                return
            said += tokenizer.token_bytes(token.id)
            with suppress(UnicodeDecodeError):
                yield said.decode()
                said = b""
    finally:
        drafter.close()


@dataclass
class Stub:
    """A server at work, and what it heard."""

    writer: Writer = tiny_writer
    models: tuple[str, ...] = ("draft",)
    pause: float = 0.0  # seconds before each token
    key: str = ""
    loading: set[str] = field(default_factory=set)  # models of a router
    form: dict[str, Any] = field(default_factory=dict)
    base: str = ""  # path of the API
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # paths and bodies
    hosts: list[str] = field(default_factory=list)
    pieces: int = 0  # written so far
    cuts: int = 0  # streams that the client ended
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def write(self, prompt: str, most: int) -> Iterator[str]:
        for piece in islice(self.writer(prompt), most):
            if self.pause and self.closing.wait(self.pause):
                return
            self.pieces += 1
            yield piece


class Handler(BaseHTTPRequestHandler):
    """One request; subclasses have the routes."""

    protocol_version = "HTTP/1.1"
    stub: Stub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        self.stub.heard.append((self.path, body))
        self.stub.hosts.append(self.headers["Host"])
        if self.stub.key and self.headers.get("Authorization") != f"Bearer {self.stub.key}":
            return self.document({"error": {"message": "Invalid API Key", "code": 401}}, 401)
        try:
            self.route(body)
        except (BrokenPipeError, ConnectionResetError):
            self.stub.cuts += 1
            self.close_connection = True

    def route(self, body: dict[str, Any]) -> None:
        raise NotImplementedError

    def document(self, content: object, status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, kind: str, lines: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


class OllamaHandler(Handler):
    def route(self, body: dict[str, Any]) -> None:
        if self.path == "/api/version":
            self.document({"version": "0.12.6"})
        elif self.path == "/api/tags":
            self.document({"models": [self._entry(name) for name in self.stub.models]})
        elif self.path == "/api/generate":
            self._generate(body)
        else:
            self.document({"error": "404 page not found"}, 404)

    def _entry(self, name: str) -> dict[str, Any]:
        details = {"format": "gguf", "family": "llama", "parameter_size": "1M", "quantization_level": "Q8_0"}
        return {
            "name": name,
            "model": name,
            "modified_at": WHEN,
            "size": 1,
            "digest": "0" * 64,
            "details": details,
        }

    def _generate(self, body: dict[str, Any]) -> None:
        name = body["model"] if ":" in body["model"] else f"{body['model']}:latest"
        if name not in self.stub.models and body["model"] not in self.stub.models:
            return self.document({"error": f"model '{body['model']}' not found"}, 404)
        assert body["raw"] is True, "without `raw` an Ollama puts its own template around the prompt"
        options = body["options"]
        assert options["temperature"] == 0
        self.stream(
            "application/x-ndjson", self._lines(body["model"], body["prompt"], options["num_predict"])
        )

    def _lines(self, model: str, prompt: str, most: int) -> Iterator[bytes]:
        said = {"model": model, "created_at": WHEN}
        count = 0
        for piece in self.stub.write(prompt, most):
            count += 1
            yield _line({**said, "response": piece, "done": False})
        reason = "length" if count >= most else "stop"
        counts = {"total_duration": 1, "load_duration": 1, "prompt_eval_count": 1, "eval_count": count}
        yield _line({**said, "response": "", "done": True, "done_reason": reason, **counts})


class CompletionsHandler(Handler):
    """As LM Studio: what it does not know it answers with status 200 and an error."""

    def route(self, body: dict[str, Any]) -> None:
        if self.path == "/v1/models":
            models = [{"id": name, "object": "model"} for name in self.stub.models]
            self.document({"object": "list", "data": models})
        elif self.path == "/v1/completions":
            assert body["model"] in self.stub.models and body["temperature"] == 0 and body["stream"]
            self.stream("text/event-stream", self._events(body["prompt"], body["max_tokens"]))
        else:
            self.document({"error": f"Unexpected endpoint or method. ({self.command} {self.path})"})

    def _events(self, prompt: str, most: int) -> Iterator[bytes]:
        count = 0
        for piece in self.stub.write(prompt, most):
            count += 1
            yield _event({"choices": [{"index": 0, "text": piece, "finish_reason": None}]})
        reason = "length" if count >= most else "stop"
        yield b": a comment\n\n"
        yield _event({"choices": [{"index": 0, "text": "", "finish_reason": reason}]})
        yield b"data: [DONE]\n\n"


class RouterHandler(CompletionsHandler):
    """As llama-server without a model: several, and each request names one."""

    def route(self, body: dict[str, Any]) -> None:
        path, _, query = self.path.partition("?")
        model = body.get("model") or unquote(query.removeprefix("model="))
        if path == "/v1/models":
            return self.document(
                {
                    "data": [
                        {"id": name, "owned_by": "llamacpp", "aliases": [f"alias of {name}"]}
                        for name in self.stub.models
                    ]
                }
            )
        settings = {"n_ctx": 4096 if model else 0}
        if path == "/props" and not model:
            return self.document({"role": "router", "default_generation_settings": settings})
        if model.removeprefix("alias of ") not in self.stub.models:
            return self.document({"error": {"message": "model name is missing from the request"}}, 400)
        if model in self.stub.loading:
            return self.document({"error": {"message": "Loading model", "code": 503}}, 503)
        if path == "/props":
            return self.document({"default_generation_settings": settings, "total_slots": 1})
        chunks = ({"content": piece, "stop": False} for piece in self.stub.write(body["prompt"], 4))
        self.stream("text/event-stream", map(_event, chunks))


class FormsHandler(CompletionsHandler):
    """A server with OpenAI's completions that lists its models, and answers, in the form `form` of its stub."""

    def route(self, body: dict[str, Any]) -> None:
        form, path = self.stub.form, self.path.removeprefix(self.stub.base).replace("/v3/", "/v1/")
        if path in form:
            return self.document(form[path])
        if path != "/v1/completions":
            return self.document({"detail": "Not Found"}, 404)
        pieces = list(self.stub.write(body["prompt"], 4))
        if "whole" in form:
            return self.document({"choices": [{"text": "".join(pieces), "finish_reason": "length"}]})
        chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        self.stream("text/event-stream", [b": keepalive\n\n", *map(_event, chunks), _event({"choices": []})])


HANDLERS = {"ollama": OllamaHandler, "completions": CompletionsHandler}


def _line(content: object) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that cut its connection


@contextmanager
def stub_of(
    kind: type[Handler], port: int = 0, tls: ssl.SSLContext | None = None, **facts: Any
) -> Iterator[Stub]:
    """A stub server on that port, 0 = a free one."""
    stub = Stub(**facts)
    with _Server(("127.0.0.1", port), type("Bound", (kind,), {"stub": stub})) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        stub.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield stub
        finally:
            stub.closing.set()
            server.shutdown()
            thread.join()


@dataclass
class Liar:
    """A server that answers each request with the same bytes, whatever it is asked."""

    url: str = ""
    sent: int = 0  # bytes
    requests: list[bytes] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def lying(answer: Callable[[Liar], Iterable[bytes]]) -> Iterator[Liar]:
    """A server at work; `answer` gives the bytes of each answer, after which the connection is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        liar = Liar(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=_lie, args=(listener, liar, answer))
        thread.start()
        try:
            yield liar
        finally:
            liar.closing.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _lie(listener: socket.socket, liar: Liar, answer: Callable[[Liar], Iterable[bytes]]) -> None:
    while not liar.closing.is_set():
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            liar.requests.append(connection.recv(1 << 20))
            for part in answer(liar):
                connection.sendall(part)
                liar.sent += len(part)
                if liar.closing.is_set():
                    return


@pytest.fixture(params=HANDLERS)
def kind(request):
    return request.param


@pytest.fixture
def stub(kind):
    with stub_of(HANDLERS[kind], writer=narrator(STORY)) as found:
        yield found
