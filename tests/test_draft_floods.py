"""A hostile draft server: whatever it sends costs drafts only, and bounded memory and time."""

import json
import time
from collections.abc import Iterable

import pytest

from edge_client.draft_servers import http_stream
from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.completions import CompletionsText
from edge_client.draft_servers.http_stream import MAX_DOCUMENT, MAX_HEAD, MAX_LINE, MAX_STREAM, fetch, stream
from edge_client.draft_servers.llama_server import LlamaServerTokens
from edge_client.draft_servers.ollama import OllamaText
from edge_client.draft_servers.served_text import ServedText
from edge_client.drafters import outage as outages
from edge_client.drafters.outage import Outage
from edge_client.drafters.streamed import StreamedDrafter
from opensled.core.errors import DraftSourceError, OpenSledError
from opensled.core.messages import SamplingParams
from opensled.core.sampling import Sampler
from tests.draft_stubs import Liar, lying
from tests.drafter_contract import pull
from tests.tiny_drafts import tiny_tokenizer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
SOCKET = 16 << 20  # bytes that may be on their way, in buffers of the system


def event(content: object) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    return b"data: " + text.encode("utf-8", "surrogatepass") + b"\n\n"


def chunk(tokens: object, logprobs: object = (), content: object = "x") -> bytes:
    entries = [{"id": id, "logprob": logprob} for id, logprob in logprobs] if logprobs != "bad" else "bad"
    return event(
        {"content": content, "tokens": tokens, "completion_probabilities": [{"top_logprobs": entries}]}
    )


def forever(part: bytes, head: bytes = HEAD):
    def answer(liar: Liar) -> Iterable[bytes]:
        yield head
        while True:
            yield part

    return answer


def dripping(part: bytes, head: bytes = HEAD):
    def answer(liar: Liar) -> Iterable[bytes]:
        yield head
        while not liar.closing.wait(0.01):
            yield part

    return answer


FLOODS = {
    "an endless line": forever(b"x" * 65536),
    "an endless stream of empty lines": forever(b"\n" * 65536),
    "an endless comment": forever(b": nothing\n" * 5000),
    "endless headers": forever(b"X-More: again\r\n" * 1000, b"HTTP/1.1 200 OK\r\n"),
    "an endless status line": forever(b"x" * 65536, b"HTTP/1.1 200 "),
    "endless informational answers": forever(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000, b""),
    "an endless chunk": forever(
        b"x" * 65536, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n"
    ),
    "an endless error": forever(b"x" * 65536, b"HTTP/1.1 500 Oops\r\nContent-Length: 99999999999\r\n\r\n"),
    "a drip of bytes": dripping(b"x"),
    "a drip of lines": dripping(b": ping\n\n"),
    "a drip of headers": dripping(b"X", b"HTTP/1.1 200 OK\r\nX-"),
    "silence": dripping(b""),
    "no answer at all": lambda liar: (),
    "a status line that is none": lambda liar: (b"HTTP/1.1 x\x1b[2J " + b"y" * 50_000 + b"\r\n\r\n",),
    "a header without a colon": lambda liar: (
        b"HTTP/1.1 200 OK\r\nbad\x1b[2J " + b"y" * 50_000 + b"\r\n\r\n",
    ),
    "no HTTP": lambda liar: (b"SSH-2.0-OpenSSH_9.6\r\n",),
    "a redirect": lambda liar: (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    ),
    "another protocol": lambda liar: (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",),
    "half a chunk": lambda liar: (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc",),
    "half an answer": lambda liar: (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: {",),
    "a line that is too long": lambda liar: (HEAD, b"data: " + b"x" * (MAX_LINE + 1)),
    "deep nesting": lambda liar: (HEAD, b"data: " + b"[" * (MAX_LINE - 100) + b"\n\n"),
    "deep objects": lambda liar: (HEAD, b"data: " + b'{"a":' * (MAX_LINE // 6) + b"\n\n"),
    "no JSON": lambda liar: (HEAD, event("{]")),
    "a list": lambda liar: (HEAD, event([1, 2])),
    "a long number": lambda liar: (HEAD, event('{"tokens": [' + "9" * 9000 + "]}")),
    "invalid UTF-8": lambda liar: (HEAD, b'data: {"content": "\xff\xfe", "tokens": [1]}\n\n'),
    "an error": lambda liar: (HEAD, event({"error": {"message": "out of memory \x1b[2J" * 99}})),
    "an id below zero": lambda liar: (HEAD, chunk([-1])),
    "an id that is huge": lambda liar: (HEAD, chunk([1 << 40])),
    "an id that is text": lambda liar: (HEAD, chunk(["1"])),
    "an id that is true": lambda liar: (HEAD, chunk([True])),
    "an id that is a fraction": lambda liar: (HEAD, chunk([1.5])),
    "ids that are no list": lambda liar: (HEAD, chunk({"1": 1})),
    "text that is none": lambda liar: (HEAD, chunk([1], content={"a": 1})),
    "half a character in a text": lambda liar: (HEAD, chunk([1], content="a long text \ud800")),
    "a logprob that is not a number": lambda liar: (HEAD, chunk([1], [(1, float("nan"))])),
    "a logprob without end": lambda liar: (HEAD, chunk([1], [(1, float("-inf"))])),
    "a logprob above all": lambda liar: (HEAD, chunk([1], [(1, float("inf"))])),
    "a logprob that is text": lambda liar: (HEAD, chunk([1], [(1, "x")])),
    "a candidate without an id": lambda liar: (HEAD, chunk([1], [(None, -1.0)])),
    "a candidate out of range": lambda liar: (HEAD, chunk([1], [(-7, -1.0)])),
}
# What is no error: the drafter goes on, and a block ends before an id that the target does not know
ODD = {
    "an id that the target lacks": lambda liar: (HEAD, chunk([5000], [(5000, -1.0)])),
    "a logprob above zero": lambda liar: (HEAD, chunk([1], [(1, 5.0)])),
    "candidates that are none": lambda liar: (HEAD, chunk([1], "bad")),
    "the same candidate again and again": lambda liar: (HEAD, chunk([1], [(1, -1.0)] * 64)),
    "many candidates": lambda liar: (HEAD, chunk([1], [(id, -9.0) for id in range(2000)])),
    "a number without end": lambda liar: (HEAD, chunk([1], [(1, -1e308), (2, -1e308)])),
    "a candidate of lists": lambda liar: (HEAD, chunk([1], [([1], -1.0)])),
    "surrogates": lambda liar: (HEAD, chunk([1], content="\ud800")),
    "an empty stream": lambda liar: (HEAD,),
}


@pytest.fixture
def hurried(monkeypatch):
    """A server gets a fraction of a second."""
    monkeypatch.setattr(outages, "LOAD_S", 0.3)
    monkeypatch.setattr(http_stream, "FIRST_S", 0.3)
    monkeypatch.setattr(http_stream, "BETWEEN_S", 0.3)
    monkeypatch.setattr(http_stream, "DOCUMENT_S", 0.3)
    monkeypatch.setattr(http_stream, "READ_PER_S", 1e9)


def blocks(address, sampling: dict) -> Iterable[tuple[str, list, Outage]]:
    """A block of each kind of drafter over a server."""
    sampler = Sampler(SamplingParams(**sampling), b"key", vocab_size=2048)
    outage = Outage("ids")
    drafter = StreamedDrafter(LlamaServerTokens(address, tiny_tokenizer(), 0, outage), 1024, outage)
    drafter.begin((5, 6, 7), sampler)
    yield "ids", pull(drafter), outage
    drafter.close()
    for dialect in (OllamaText("draft"), CompletionsText("draft")):
        outage = Outage(type(dialect).__name__)
        source = ServedText(address, dialect, outage)
        source.follow(b"Once")
        yield type(dialect).__name__, [piece for piece, _ in zip(source.pieces(), range(6))], outage
        source.close()


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8}], ids=["greedy", "warm"])
@pytest.mark.parametrize("name", FLOODS)
def test_what_is_no_answer_costs_drafts_only(name, sampling, hurried):
    with lying(FLOODS[name]) as liar:
        began = time.monotonic()
        for kind, block, outage in blocks(draft_address(liar.url), sampling):
            if kind == "ids":
                assert block == [] and outage.reason, kind
            assert len(outage.reason) < 500 and outage.reason.isprintable()
        assert time.monotonic() - began < 6
    assert liar.sent < 3 * (MAX_STREAM + SOCKET)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8}], ids=["greedy", "warm"])
@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_breaks_nothing(name, sampling, hurried):
    with lying(ODD[name]) as liar:
        for _, block, outage in blocks(draft_address(liar.url), sampling):
            for token in block:
                assert token.confidence == token.confidence and 0 <= token.confidence <= 1
            assert outage.reason.isprintable()


def test_a_document_is_bounded_in_bytes_and_time(hurried):
    for answer in (forever(b" " * 65536), dripping(b" "), dripping(b"", b"")):
        with lying(answer) as liar:
            began = time.monotonic()
            with pytest.raises(OpenSledError):
                fetch(draft_address(liar.url), "/props", seconds=0.3)
            assert time.monotonic() - began < 3
        assert liar.sent < MAX_DOCUMENT + SOCKET


def test_headers_are_bounded():
    with lying(FLOODS["endless headers"]) as liar:
        with pytest.raises(DraftSourceError, match="no answer of HTTP"):
            fetch(draft_address(liar.url), "/props")
        assert liar.sent < MAX_HEAD + SOCKET


def test_a_redirect_is_told_and_not_followed():
    with lying(FLOODS["a redirect"]) as liar:
        with pytest.raises(
            DraftSourceError, match=r"redirects to http://127\.0\.0\.1:1/, which is not followed"
        ):
            fetch(draft_address(liar.url), "/props")
        assert len(liar.requests) == 1


def test_proxies_of_the_environment_are_not_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with lying(lambda liar: (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",)) as liar:
        assert fetch(draft_address(liar.url), "/props") == {}


def test_a_stream_that_is_closed_is_cut_at_once():
    with lying(forever(event({"response": "x"}))) as liar:
        items = stream(draft_address(liar.url), "/", {}, lambda line: [line], 5.0)
        assert next(item for item in items if item)
        items.close()
        sent = liar.sent
    assert liar.sent - sent < SOCKET
