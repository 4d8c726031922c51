"""`--drafter server`: which server it finds, what it asks, when it cuts a stream, and what becomes of an outage."""

import asyncio
import logging
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from edge_client.device.config import DeviceConfig, DoctorConfig
from edge_client.device.drafter_choice import FittingFactory
from edge_client.device.known_drafts import choose_drafter
from edge_client.doctor.draft_server import check_draft_server
from edge_client.doctor.short_answers import time_server
from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.detection import find_server
from edge_client.draft_servers.server import ServerFactory
from edge_client.drafters import outage as outages
from edge_client.drafters.base import DrafterOptions
from opensled.core.errors import NotFound, Unauthorized, UsageError
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from tests import lossless
from tests.certificates import AUTHORITY, written
from tests.draft_stubs import (
    HANDLERS,
    STORY,
    CompletionsHandler,
    FormsHandler,
    OllamaHandler,
    RouterHandler,
    Stub,
    lying,
    narrator,
    stub_of,
)
from tests.draft_stubs import kind as kind
from tests.draft_stubs import stub as stub
from tests.drafter_contract import ids, pull
from tests.loops import block_until
from tests.tiny_drafts import tiny_info, tiny_tokenizer


def factory(stub: Stub, model: str = "", **options: object) -> ServerFactory:
    return ServerFactory(model, 0, DrafterOptions(draft_url=stub.url, **options))


def fitted(stub: Stub, model: str = "", **options: object) -> ServerFactory:
    made = factory(stub, model, **options)
    made.fit(tiny_info(), tiny_tokenizer())
    return made


def greedy() -> Sampler:
    return Sampler(SamplingParams(temperature=0.0), noise_key(1))


@contextmanager
def begun(made: ServerFactory) -> Iterator:
    """A drafter that has begun with the story."""
    with closing(made.create()) as drafter:
        drafter.begin(tiny_tokenizer().encode_rendered(STORY[:40]), greedy())
        yield drafter


# -- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "place", "base"),
    [
        ("http://mac:11434", "mac:11434", ""), ("http://mac:1234/v1/", "mac:1234", ""),
        ("http://mac/llama", "mac:80", "/llama"), ("http://[::1]:8080", "[::1]:8080", ""),
        ("http://mac:80/#/", "mac:80", ""), ("http://mac/x/#/chat/1", "mac:80", "/x"),
        ("HTTP://Mac:1/x/v1", "mac:1", "/x"), ("http://mac:8000/v3/chat/completions", "mac:8000", "/v3"),
    ],
)  # fmt: skip
def test_an_address(url, place, base):
    found = draft_address(url)
    assert (found.place, found.base, found.tls) == (place, base, None)


@pytest.mark.parametrize(
    "url",
    ["mac:11434", "ftp://mac", "http://", "http://user:secret@mac", "http://mac?x=1", "http://mac:99999",
     "http://mac/a b", "http://mac/\r\nX: y", "http://[::1", ""],
)  # fmt: skip
def test_what_is_no_address(url):
    with pytest.raises(UsageError, match="is no address of a server"):
        draft_address(url)


def test_a_key_is_read_from_a_private_file(tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        draft_address("http://mac", str(key))
    key.chmod(0o600)
    found = draft_address("http://mac", str(key))
    assert found.key == "secret" and "secret" not in repr(found) and found.key_in_clear
    assert not draft_address("http://127.0.0.1", str(key)).key_in_clear
    assert not draft_address("https://mac", str(key)).key_in_clear


def test_a_certificate_authority_is_for_https(tmp_path):
    with pytest.raises(UsageError, match="is for https"):
        draft_address("http://mac", ca="ca.pem")
    (tmp_path / "ca.pem").write_text("none")
    with pytest.raises(UsageError, match="holds no certificate"):
        draft_address("https://mac", ca=str(tmp_path / "ca.pem"))


# -- detection ------------------------------------------------------------------------------------------------------


def test_the_only_model_is_taken(kind, stub):
    made = fitted(stub)
    assert made.mode == "text" and "draft by text at 127.0.0.1:" in made.name
    assert find_server(draft_address(stub.url), "").kind.lower() == kind


def test_a_model_has_to_be_named_where_there_are_several(kind):
    with stub_of(HANDLERS[kind], models=("small:latest", "big:7b")) as stub:
        with pytest.raises(UsageError, match=r"--draft-model NAME: .* has small:latest, big:7b"):
            fitted(stub)
        assert "big:7b by text" in fitted(stub, "big:7b").name
        with pytest.raises(NotFound, match="has no model 'huge'; it has small:latest, big:7b"):
            fitted(stub, "huge")


def test_an_ollama_takes_a_name_without_its_tag():
    with stub_of(OllamaHandler, models=("small:latest", "big:7b")) as stub:
        assert "small by text" in fitted(stub, "small").name


AWAY = {"remote_model": "gpt-oss:120b", "remote_host": "https://ollama.com:443"}
TAGS = [  # of an Ollama: models with what their entries tell besides, the wanted one, what comes of it
    ({"gpt-oss:120b-cloud": AWAY}, "", "sends the texts of its models to ollama.com .gpt-oss:120b-cloud"),
    ({"copy": AWAY}, "", "sends the texts"),
    ({"kimi:cloud": {}}, "", "sends the texts"),
    ({"gpt-oss:120b-cloud": AWAY}, "gpt-oss:120b-cloud", "=gpt-oss:120b-cloud"),
    ({"gpt-oss:120b-cloud": AWAY, "small": {}}, "", "=small"),
    ({"all-minilm": {"details": {"family": "bert"}}, "small": {}}, "", "=small"),
    ({"arctic": {"capabilities": ["embedding"]}, "small": {"capabilities": ["completion"]}}, "", "=small"),
]


@pytest.mark.parametrize(("entries", "wanted", "said"), TAGS)
def test_an_ollamas_models_that_write_at_home_are_taken(entries, wanted, said, monkeypatch):
    plain = OllamaHandler._entry
    monkeypatch.setattr(OllamaHandler, "_entry", lambda self, name: {**plain(self, name), **entries[name]})
    with stub_of(OllamaHandler, models=tuple(entries)) as stub:
        if said.startswith("="):
            assert find_server(draft_address(stub.url), wanted).model == said[1:]
            return
        with pytest.raises(UsageError, match=said):
            fitted(stub, wanted)


def test_models_that_only_embed_are_not_offered():
    with stub_of(CompletionsHandler, models=("text-embedding-nomic", "draft")) as stub:
        assert "draft by text" in fitted(stub).name


def test_a_server_without_a_model(kind):
    with stub_of(HANDLERS[kind], models=()) as stub, pytest.raises(UsageError, match="has none"):
        fitted(stub)


def test_what_is_no_draft_server():
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    absent = b"HTTP/1.1 404 Not Found\r\nContent-Length: 31\r\n\r\n<p><Title>Not\n here</Title></p>"
    for answer, said in ((page, "its answer is no JSON"), (absent, "status 404: Not here")):
        with (
            lying(lambda liar, answer=answer: (answer,)) as liar,
            pytest.raises(UsageError, match=rf"neither /props .* /api/version .* nor /v1/models.*{said}$"),
        ):
            ServerFactory("", 0, DrafterOptions(draft_url=liar.url)).fit(tiny_info(), tiny_tokenizer())


def test_a_key_is_wanted_and_goes_nowhere_else(kind, tmp_path):
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    with stub_of(HANDLERS[kind], key="secret", writer=narrator(STORY)) as stub:
        with pytest.raises(
            Unauthorized, match=r"wants a key \(status 401: Invalid API Key\); put it into a file"
        ):
            fitted(stub)
        made = fitted(stub, draft_key=str(key))
        with begun(made) as drafter:
            assert pull(drafter)
        assert set(stub.hosts) == {stub.url.removeprefix("http://")}


def test_a_key_in_clear_text_is_told(tmp_path, caplog):
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        ServerFactory("", 0, DrafterOptions(draft_url="http://192.0.2.1:1", draft_key=str(key)))
    assert "travels to 192.0.2.1:1 in clear text" in caplog.text and "secret" not in caplog.text


def test_over_tls(tmp_path):
    """Its certificate counts, and one of another authority does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    authority = str(written(tmp_path))
    with stub_of(OllamaHandler, writer=narrator(STORY), tls=context) as stub:
        url = stub.url.replace("127.0.0.1", "localhost")
        made = ServerFactory("", 0, DrafterOptions(draft_url=url, draft_ca=authority))
        made.fit(tiny_info(), tiny_tokenizer())
        assert "draft by text" in made.name
        stranger = ServerFactory("", 0, DrafterOptions(draft_url=url))
        stranger.fit(tiny_info(), tiny_tokenizer())
        assert stranger.served is None and "certificate" in stranger.outage.reason


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(outages, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(outages, "LONGEST_PAUSE", 0.05)


def drafted_within(drafter, seconds: float = 20.0) -> list:
    return block_until(lambda: pull(drafter), seconds, "the drafter never comes back")


ROUTED = ("org/alpha-GGUF:Q4_K_M", "beta-05b")


@pytest.mark.parametrize(
    "name", [*ROUTED, "alpha-gguf:q4_k_m", "alias of beta-05b", "hf.co/org/alpha-GGUF:Q4_K_M", "BETA-05B"]
)
def test_a_router_drafts_by_the_named_model(name):
    with stub_of(RouterHandler, models=ROUTED, writer=narrator(STORY)) as stub:
        with begun(fitted(stub, name)) as drafter:
            assert pull(drafter)
        asked = {body.get("model") for path, body in stub.heard if path == "/completion"}
        assert {each.removeprefix("alias of ") for each in asked} == {ROUTED["beta" in name.lower()]}


def test_a_router_is_asked_again_while_it_loads_and_wants_a_name(hurried):
    with stub_of(RouterHandler, models=ROUTED, writer=narrator(STORY), loading={ROUTED[1]}) as stub:
        with pytest.raises(UsageError, match=f"--draft-model NAME: .* has {ROUTED[0]}, {ROUTED[1]}"):
            fitted(stub)
        with pytest.raises(NotFound, match=f"has no model 'gamma'; it has {ROUTED[0]}"):
            fitted(stub, "gamma")
        made = fitted(stub, ROUTED[1])
        assert made.served is None and "Loading model" in made.outage.reason
        with begun(made) as drafter:
            stub.loading.clear()
            assert drafted_within(drafter)


ONE, OWN = [{"id": "draft"}], {"version": "0.6.5"}
LABELLED = [
    {"id": "draft", "labels": ["hot", "reasoning"]},
    *({"id": label, "labels": [label]} for label in ("reranking", "tts", "image", "transcription")),
    {"id": "nomic", "type": "embeddings"},
    {"id": "gte", "capabilities": {"completion_chat": False, "embeddings": True}},
]
FORMS = {  # paths and answers of servers whose models are listed otherwise
    "several kinds of models": {"/v1/models": {"data": [*ONE, {"id": "bge-m3"}, {"id": "nomic-embed-text"}]}},
    "a bare list": {"/v1/models": ONE},
    "names alone": {"/v1/models": {"models": ["draft"]}},
    "another key": {"/v1/models": {"data": [{"name": "draft", "max_model_len": 2048}]}},
    "an answer in one piece": {"/v1/models": {"data": ONE}, "whole": True},
    "a version as Ollama": {"/v1/models": {"data": ONE}, "/api/version": OWN, "/api/tags": {"detail": "?"}},
    "labels of each model": {"/v1/models": LABELLED},
    "adapters of a model": {"/v1/models": [{"id": "lora", "parent": "draft"}, *ONE]},
    "lists as Ollama has them, without its answers": {
        "/api/version": OWN,
        "/api/tags": {"models": [{"name": "draft"}]},
        "/v1/models": {"data": ONE},
    },
    "properties as llama-server has them": {
        "/v1/models": {"data": [{"id": "draft", "owned_by": "koboldcpp"}]},
        "/props": {"default_generation_settings": {"n_ctx": 4096}},
    },
}


@pytest.mark.parametrize(
    "suffix", ["", "/v1", "/v3", "/v1/", "/v1/completions", "/v1/chat/completions", "/v1/models", "/api"]
)
@pytest.mark.parametrize("kind", FORMS)
def test_servers_that_are_like_another(kind, suffix):
    with stub_of(FormsHandler, form=FORMS[kind], base="/engines", writer=narrator(STORY)) as stub:
        made = ServerFactory("", 0, DrafterOptions(draft_url=f"{stub.url}/engines{suffix}"))
        made.fit(tiny_info(), tiny_tokenizer())
        with begun(made) as drafter:
            assert pull(drafter) and "draft by text" in made.name


@pytest.mark.parametrize("base", ["/x", "/x/api"])
@pytest.mark.parametrize(
    ("listed", "wanted", "model"),
    [
        (["docker.io/ai/x:latest"], "ai/X", "docker.io/ai/x:latest"), (["ai/x:360M", "y"], "x", "ai/x:360M"),
        (["C:\\m\\q.gguf"], "m/q.gguf", "C:\\m\\q.gguf"), (["a"], "hid", "hid"), (None, "hid", "hid"),
        (["x:1", "x:2"], "x", "x"), (None, "", "no draft server.* /v1/models with status 404"), ([], "", "has none"),
    ],
)  # fmt: skip
def test_a_model_is_named_as_people_name_it_and_need_not_be_listed(base, listed, wanted, model):
    data = {"object": "list", "data": [{"id": name} for name in listed or ()] or None}
    form = {"whole": True, "/v1/models" if listed is not None else "": data}
    with stub_of(FormsHandler, form=form, base=base, writer=narrator(STORY)) as stub:
        if wanted:
            assert find_server(draft_address(f"{stub.url}/x"), wanted).model == model
            return
        with pytest.raises(UsageError, match=model):
            find_server(draft_address(f"{stub.url}/x"), "")


def test_a_cold_start_is_awaited_in_the_background(kind, hurried, monkeypatch):
    """However long a text is and however it grows meanwhile: its stream stays, and another one drafts after it."""
    monkeypatch.setattr(outages, "COLD_S", 0.05)
    loaded, asked = threading.Event(), []

    def slow(text: str) -> Iterator[str]:
        asked.append(text)
        assert loaded.wait(60)
        yield from narrator(STORY)(text)

    with stub_of(HANDLERS[kind], writer=slow) as stub:
        made = fitted(stub)
        drafter, text = made.create(), list(tiny_tokenizer().encode_rendered(STORY))
        drafter.begin(text[:100], greedy())
        for end in range(100, 130):
            drafter.commit(text[end : end + 1])
            while drafter.read(16):
                pass
            assert pull(drafter) == []
        other = made.create()  # of another answer
        other.begin(text[:50], greedy())
        assert pull(other) == [] and len(asked) == 1 and "has yet to give its first token" in made.note
        loaded.set()
        assert drafted_within(drafter) and drafted_within(other)
        for each in (drafter, other):
            each.close()


# -- which drafter a device has -------------------------------------------------------------------------------------


def test_a_device_with_a_draft_server_looks_up_and_asks_it(kind, stub):
    chosen = FittingFactory(DeviceConfig(draft_url=stub.url))
    chosen.fit(tiny_info(), tiny_tokenizer())
    assert chosen.name.startswith("chain lookup, server ") and "draft by text" in chosen.name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drafter": "server"}, "needs --draft-url"), ({"draft_url": "ftp://mac"}, "is no address"),
        ({"drafter": "llamacpp", "draft_model": "tiny-draft", "draft_url": "http://mac"}, "llamacpp asks no server"),
        ({"drafter": "llamacpp", "draft_url": "http://mac"}, "--drafter llamacpp asks no server"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options, said):
    with pytest.raises(UsageError, match=said):
        FittingFactory(DeviceConfig(**options)).fit(tiny_info(), tiny_tokenizer())


# -- outages --------------------------------------------------------------------------------------------------------


def test_a_server_that_is_away_at_the_start_is_no_error(kind, hurried, caplog):
    with stub_of(HANDLERS[kind], writer=narrator(STORY)) as gone:
        port = int(gone.url.rpartition(":")[2])
    with caplog.at_level(logging.WARNING):
        made = fitted(gone)
        with begun(made) as drafter:
            assert pull(drafter) == [] and not drafter.behind
            with stub_of(HANDLERS[kind], port=port, writer=narrator(STORY)):
                assert drafted_within(drafter)
    said = [record.message for record in caplog.records]
    assert len(said) == 2 and "gives no drafts: it cannot be reached" in said[0] and "drafts again" in said[1]


def test_a_server_that_vanishes_and_returns_with_another_model(kind, hurried):
    with stub_of(HANDLERS[kind], writer=narrator(STORY)) as stub:
        port = int(stub.url.rpartition(":")[2])
        made = fitted(stub)
        drafter = made.create()
        text = list(tiny_tokenizer().encode_rendered(STORY[:40]))
        drafter.begin(text, greedy())
        block = ids(pull(drafter))
    drafter.commit([*block[:2], 7])  # another truth than the stream wrote: the server is asked, and is gone
    assert pull(drafter) == [] and made.served is None and made.outage.reason
    with stub_of(
        HANDLERS[kind], port=port, models=("other",), writer=lambda text: iter(["and ", "so ", "on "])
    ):
        assert drafted_within(drafter) and "other by text" in made.name and not made.outage.reason
    drafter.close()


def test_sequences_begin_while_the_server_is_away(kind, hurried):
    with stub_of(HANDLERS[kind]) as stub:
        made = fitted(stub)
    first, second = made.create(), made.create()
    for drafter in (first, second):
        drafter.begin((1, 2, 3), greedy())
        assert pull(drafter) == []
        drafter.commit((4, 5))
        assert list(drafter.look_ahead((), 3)) == [] and not drafter.read(16) and drafter.ready == 0
        drafter.close()


# -- an answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["server", "chain"])
async def test_the_text_is_the_targets_own(kind, drafter, exact64, monkeypatch):
    """Over links that lose, double and reorder; drafts of the tiny model by text."""
    pytest.importorskip("llama_cpp")
    with stub_of(HANDLERS[kind]) as stub:
        made = FittingFactory(
            DeviceConfig(draft_url=stub.url, drafter="server" if drafter == "server" else "auto")
        )
        made.fit(tiny_info(), tiny_tokenizer())
        monkeypatch.setattr(lossless, "factory", lambda name: made)
        await lossless.brave_a_storm(exact64, drafter)
        assert stub.pieces > 0


async def test_drafts_by_text_stand(kind, exact64, monkeypatch):
    pytest.importorskip("llama_cpp")
    with stub_of(HANDLERS[kind]) as stub:
        made = fitted(stub)
        monkeypatch.setattr(lossless, "factory", lambda name: made)
        answers = await lossless.answer_all(exact64, lossless.cases(), kind)
    lossless.check(lossless.cases(), answers)
    rounds = [round for answer in answers for round in answer.rounds]
    assert sum(round.accepted for round in rounds) > 0.25 * sum(round.drafted for round in rounds) > 0


# -- the doctor -----------------------------------------------------------------------------------------------------


def examined(url: str, model: str = "") -> dict:
    """Findings by check."""
    config = choose_drafter(DoctorConfig(draft_url=url, draft_model=model), "tiny")
    return {each.check: each for each in asyncio.run(check_draft_server(config))}


def test_the_doctor_tells_what_drafts_and_how_far_away(kind, stub):
    found = examined(stub.url)
    assert [(each.check, each.status) for each in found.values()] == [("draft server", "ok")]
    assert re.search(r"draft at 127\.0\.0\.1:\d+, \d+\.\d ms away", found["draft server"].detail)


@pytest.mark.parametrize("words", ["a b ", ""])
def test_the_doctor_times_a_draft_server_alone(kind, stub, words):
    stub.writer = lambda text: iter([words] * 99 if words else ())
    rate, _ = time_server(DeviceConfig(draft_url=stub.url), tiny_info(), tiny_tokenizer())
    assert bool(rate) == bool(words)


def test_the_doctor_and_what_is_no_draft_server(kind, stub):
    assert examined(stub.url, "other")["draft server"].exit_code == NotFound.exit_code
    with stub_of(HANDLERS[kind]) as gone:
        pass
    found = examined(gone.url)
    assert found["draft server"].status == "fail" and "cannot be reached" in found["draft server"].detail
    assert examined("no address")["draft server"].exit_code == UsageError.exit_code
