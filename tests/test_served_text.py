"""The text that a server writes: when its stream stays open, what cuts it, and what is asked."""

from itertools import islice

import pytest

from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.completions import CompletionsText
from edge_client.draft_servers.http_stream import STREAM_TOKENS
from edge_client.draft_servers.ollama import OllamaText
from edge_client.draft_servers.served_text import MOST, NEAR, ServedText, _latest, pieces_of
from edge_client.draft_servers.server import ServerFactory
from edge_client.drafters.base import DrafterOptions
from edge_client.drafters.outage import Outage
from tests.draft_stubs import (
    HANDLERS,
    STORY,
    CompletionsHandler,
    OllamaHandler,
    RouterHandler,
    Stub,
    narrator,
    stub_of,
)
from tests.draft_stubs import kind as kind
from tests.draft_stubs import stub as stub
from tests.loops import block_until
from tests.tiny_drafts import tiny_info, tiny_tokenizer

DIALECTS = {"ollama": OllamaText, "completions": CompletionsText}


@pytest.fixture
def source(kind, stub):
    made = ServedText(draft_address(stub.url), DIALECTS[kind]("draft"), Outage("stub"))
    yield made
    made.close()


def texts(source: ServedText, count: int) -> bytes:
    return b"".join(piece.text for piece in islice(source.pieces(), count))


def prompts(stub: Stub) -> list[str]:
    return [body["prompt"] for _, body in stub.heard if "prompt" in body]


def test_a_stream_stays_open_while_the_text_agrees(stub, source):
    told = STORY[:10].encode()
    source.follow(told)
    for _ in range(5):
        told += texts(source, 2)
        source.follow(told)
    assert told == STORY[: 10 + 30].encode() and source.streams == 1 and prompts(stub) == [STORY[:10]]


def test_text_that_the_stream_has_yet_to_write_is_taken_from_it(stub, source):
    source.follow(STORY[:10].encode())
    assert texts(source, 1) == STORY[10:13].encode()
    source.follow(STORY[:20].encode())
    assert texts(source, 1) == STORY[20:22].encode() and source.streams == 1


def test_another_text_cuts_the_stream(stub, source):
    source.follow(STORY[:10].encode())
    texts(source, 1)
    source.follow(b"Quite another text")
    assert texts(source, 9) == b"" and source.streams == 2
    source.follow(STORY[:30].encode())
    assert texts(source, 1) == STORY[30:33].encode() and prompts(stub)[-1] == STORY[:30]


def test_a_text_that_runs_ahead_is_sent_anew(stub, source):
    source.follow(STORY[:10].encode())
    texts(source, 1)
    source.follow(STORY[:100].encode())
    assert texts(source, 1) == STORY[100:103].encode() and prompts(stub)[-1] == STORY[:100]


def test_the_server_hears_that_a_stream_is_cut(kind):
    with stub_of(HANDLERS[kind], writer=narrator(STORY * 20, 1), pause=0.08) as stub:
        source = ServedText(draft_address(stub.url), DIALECTS[kind]("draft"), Outage("stub"))
        source.follow(STORY[:10].encode())
        texts(source, 1)
        source.follow(b"x")
        block_until(lambda: stub.cuts, 10)
        assert stub.pieces < STREAM_TOKENS
        source.close()


def test_pieces_go_on_over_the_length_of_one_stream(stub, source):
    source.follow(STORY[:1].encode())
    count = 2 * STREAM_TOKENS + 5
    assert texts(source, count) == STORY[1 : 1 + 3 * count].encode() and source.streams == 3


def test_the_end_of_an_answer_is_told(stub, source):
    source.follow(STORY[:-4].encode())
    pieces = list(source.pieces())
    assert b"".join(piece.text for piece in pieces) == STORY[-4:].encode()
    assert [piece.is_end for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_text_that_ends_within_a_character_waits_for_the_rest(stub, source):
    source.follow("é".encode()[:1])
    assert texts(source, 1) == b"" and not stub.heard
    source.follow(b"\xff and " + STORY.encode())  # no text: a server gets a replacement
    assert texts(source, 1) == b"" and prompts(stub) == ["\ufffd and " + STORY]


@pytest.mark.parametrize("handler", [RouterHandler, OllamaHandler, CompletionsHandler])
@pytest.mark.parametrize("name", ["\ud800x", "\x1b[2J\u202egnp", "a\nb", "n" * 5000], ids=range(4))
def test_whatever_a_model_is_called_costs_drafts_at_most(handler, name):
    with stub_of(handler, models=(name,), writer=narrator(STORY)) as stub:
        made = ServerFactory("", 0, DrafterOptions(draft_url=stub.url))
        made.fit(tiny_info(), tiny_tokenizer())
    shown = made.name + made.note
    assert len(shown) < 400 and shown.isprintable()


def test_a_long_chunk_comes_in_pieces_that_are_soon_tokenized():
    """All at once, 200 KB of one word hold a device for seconds."""
    *pieces, end = pieces_of("ü" * 2000, is_end=True)
    assert b"".join([piece.text for piece in pieces]).decode() == "ü" * 2000 and end.is_end
    assert len(pieces) > 1 and all(len(piece.text) <= NEAR for piece in pieces)


def test_of_a_long_text_the_end_is_sent_from_a_place_that_stays():
    text = ("ä" * 40_000).encode()
    starts = set()
    for size in range(30_000, 34_000, 2):
        sent = _latest(text[:size], MOST)
        assert sent is not None and len(sent.encode()) <= MOST and len(sent.encode()) > MOST // 3
        starts.add(size - len(sent.encode()))
    assert len(starts) <= 2
    assert _latest(b"short", MOST) == "short"


def test_nobody_waits_while_a_server_reads_a_long_text(kind):
    with stub_of(HANDLERS[kind], writer=narrator(STORY), pause=0.3) as stub:
        source = ServedText(draft_address(stub.url), DIALECTS[kind]("draft"), Outage("stub"))
        source.follow(STORY[:5].encode())
        assert not source.behind
        source.follow(STORY[: NEAR + 50].encode())
        reads = 0
        while source.read(16):
            reads += 1
        assert reads > 3 and texts(source, 1) == STORY[NEAR + 50 : NEAR + 53].encode()
        source.close()


# -- the stub itself ------------------------------------------------------------------------------------------------


def test_the_stub_speaks_with_ollamas_own_client():
    ollama = pytest.importorskip("ollama")
    with stub_of(OllamaHandler, writer=narrator(STORY), models=("draft:latest",)) as stub:
        client = ollama.Client(stub.url, trust_env=False)
        assert [model.model for model in client.list().models] == ["draft:latest"]
        request = OllamaText("draft").request(STORY[:12])
        said = list(client.generate(**request))
        assert "".join(part.response for part in said) == STORY[12 : 12 + 3 * STREAM_TOKENS]
        assert said[-1].done and said[-1].done_reason == "length"
        options = ollama.Options(**request["options"])  # no option that the client does not know
        assert options.model_dump(exclude_none=True) == request["options"]
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.generate("stranger", "x", raw=True)
        # What our reader makes of it is what the client has read
        source = ServedText(draft_address(stub.url), OllamaText("draft"), Outage("stub"))
        source.follow(STORY[:12].encode())
        assert texts(source, STREAM_TOKENS).decode() == STORY[12 : 12 + 3 * STREAM_TOKENS]
        source.close()
