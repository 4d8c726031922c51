"""What a draft server answers: the bytes of an answer, in parts of any size, and chunks of any form."""

import contextlib
import json
import math
import socket
from itertools import islice
from unittest import mock

from edge_client.draft_servers import http_stream
from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.completions import CompletionsText
from edge_client.draft_servers.llama_server import LlamaServerText, LlamaServerTokens
from edge_client.draft_servers.ollama import OllamaText
from edge_client.draft_servers.served_text import ServedText
from edge_client.drafters.by_text import ByTextDrafter
from edge_client.drafters.outage import Outage
from edge_client.drafters.streamed import StreamedDrafter
from opensled.core.errors import OpenSledError
from opensled.core.messages import SamplingParams
from opensled.core.sampling import Sampler
from tests.fuzz import bodies
from tests.fuzz.choices import Choices
from tests.tiny_drafts import tiny_tokenizer

HERE = DraftAddress("127.0.0.1", 1)
VOCABULARY = 2048
LLAMA = {
    "content": " the",
    "tokens": [5],
    "stop": False,
    "stop_type": "eos",
    "completion_probabilities": [
        {"id": 5, "logprob": -0.5, "top_logprobs": [{"id": 5, "logprob": -0.5}, {"id": 6, "logprob": -1.5}]}
    ],
}
OLLAMA = {"model": "draft", "response": " the", "done": False, "done_reason": "stop"}
COMPLETION = {"choices": [{"index": 0, "text": " the", "finish_reason": None}]}
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\n\r\n"


def draft_server(data: bytes) -> None:
    """A block of drafts is short and of known tokens, whatever the server says; nothing but an outage comes of it."""
    choose = Choices(data)
    temperature = choose.pick((0.0, 0.8))
    sampler = Sampler(SamplingParams(temperature=temperature), b"key", vocab_size=VOCABULARY)
    outage = Outage("the fuzzer", lambda: 0.0)
    drafter = _drafter(choose, outage)
    with mock.patch.object(http_stream, "_connect", lambda address: _peer(choose)):
        drafter.begin((5, 6, 7), sampler)
        for _ in range(2):
            for token in islice(drafter.propose(), 6):
                assert 0 <= token.id < 1 << 31 and 0 <= token.confidence <= 1
                assert not math.isnan(token.confidence)
            drafter.commit((7,))
            drafter.read(16)
        drafter.close()
    assert outage.reason.isprintable() and len(outage.reason) < 1000


def draft_server_document(data: bytes) -> None:
    """A whole answer."""
    choose = Choices(data)
    with (
        mock.patch.object(http_stream, "_connect", lambda address: _peer(choose)),
        contextlib.suppress(OpenSledError),
    ):
        assert isinstance(http_stream.fetch(HERE, "/props"), dict)


def _drafter(choose: Choices, outage: Outage) -> StreamedDrafter | ByTextDrafter:
    kind = choose.below(4)
    if kind == 0:
        source = LlamaServerTokens(HERE, tiny_tokenizer(), 0, outage)
        return StreamedDrafter(source, 1024, outage)
    dialect = (LlamaServerText(0), OllamaText("draft"), CompletionsText("draft"))[kind - 1]
    return ByTextDrafter(ServedText(HERE, dialect, outage), tiny_tokenizer(), (0,))


def _peer(choose: Choices) -> socket.socket:
    """A connection whose other end has said all it says, and is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            theirs.sendall(_answer(choose))
        theirs.shutdown(socket.SHUT_WR)
    return ours


def _answer(choose: Choices) -> bytes:
    if choose.byte() > 230:
        return choose.bytes(400)
    lines = b"".join([_line(choose) for _ in range(1 + choose.below(4))])
    if choose.flag():
        return PLAIN + lines
    whole = HEAD + b"%x\r\n%s\r\n0\r\n\r\n" % (len(lines), lines)
    return whole[: len(whole) - choose.below(20)]


def _line(choose: Choices) -> bytes:
    known = choose.pick((LLAMA, OLLAMA, COMPLETION))
    text = bodies.changed_json(known, choose) if choose.flag() else json.dumps(known).encode()
    return choose.pick((b"data: ", b"", b"error: ")) + text + choose.pick((b"\n\n", b"\n", b"\r\n"))
