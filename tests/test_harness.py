"""What evaluation harnesses ask: scores of multiple choice, of continuations and of whole texts, by log-probabilities.

The reference is plain transformers on the same folder; it shares no code with the product.
"""

import json
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from edge_client.device.config import DeviceConfig
from edge_client.device.device import connect
from http_api.app import build_app
from opensled.core.messages import Open, SamplingParams
from tests.http_serving import asking, http_serving
from tests.loops import in_loop
from tests.system import running, through
from tests.vision_models import picture
from tests.vision_world import fixtures, question
from verify_server.admission.session_manager import SessionLimits
from verify_server.options.serve_config import ServeConfig
from verify_server.start.load_target import load_llamacpp, load_torch

TINY = Path(__file__).parents[1] / "models" / "tiny"
EXACT, ROUNDED = 1e-4, 0.05  # nats; between a model and its rounded weights
TEXTS = (
    "The rabbit saw a carrot.",
    "def add(a, b):\n    return a + b",
    "Größe, naïve café – 東京 🙂 end",
    " leading and  double spaces\t\n",
    "x",
    "The answer is 42. " * 30,
)
CHOICES = (
    ("The answer is", (" 42.", " a rabbit.", " Größe 🙂")),
    ("One, two, three,", (" four", " seven", " cat", " x")),
    ("Hello", (" there", " is", "!")),
)
folder, engine, text, reference = fixtures()


class Plain:
    """A model of a folder as transformers run it."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def rows(self, ids):
        """[positions, vocabulary] log-probabilities of what follows each position, in float64."""
        return self.model(torch.tensor([list(ids)])).logits[0].double().log_softmax(-1)

    def scores(self, ids):
        """Of each token but the first."""
        rows = self.rows(ids)[:-1]
        return rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    def encode(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def plain():
    return Plain(TINY)


@cache
def _loaded(load):
    return load(ServeConfig(model="tiny", kv_tokens=8192, threads=1))


@asynccontextmanager
async def server(load=load_torch):
    """A client of the API of a server of `tiny`."""
    target = _loaded(load)
    limits = SessionLimits(max_sessions=8, linger=0.2)
    async with (
        http_serving(engine=target.engine, text=target.text, limits=limits) as (_, grpc, address),
        asking(address) as client,
    ):
        client.grpc = grpc
        yield client


@asynccontextmanager
async def device():
    """A client of the API of a device that drafts for that server."""
    async with server() as behind:
        one = await connect(DeviceConfig(server=behind.grpc, drafter="lookup"))
        try:
            transport = httpx.ASGITransport(build_app(one))
            async with httpx.AsyncClient(transport=transport, base_url="http://edge", timeout=60) as client:
                yield client
        finally:
            await one.close()


@in_loop
async def asked(way, path, **body):
    async with way() as client:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()


ways = pytest.mark.parametrize("way", [server, device])


@ways
@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_has_the_scores_of_transformers(way, max_tokens, as_ids, plain):
    prompts = [plain.encode(text) for text in TEXTS]
    body = {"prompt": prompts if as_ids else list(TEXTS), "echo": True, "logprobs": 1}
    answer = asked(way, "/v1/completions", max_tokens=max_tokens, temperature=0, seed=1, **body)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(TEXTS)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    for choice, text, ids in zip(answer["choices"], TEXTS, prompts, strict=True):
        lists, shown = choice["logprobs"], choice["text"]
        assert shown.startswith(text) and (max_tokens or shown == text)
        assert {name: len(values) for name, values in lists.items()} == dict.fromkeys(
            lists, len(ids) + max_tokens
        )
        scores = lists["token_logprobs"]
        assert scores[0] is None and lists["top_logprobs"][0] is None
        assert scores[1 : len(ids)] == pytest.approx(plain.scores(ids), abs=EXACT)
        likeliest = [max(top.values()) for top in lists["top_logprobs"][1 : len(ids)]]
        assert likeliest == pytest.approx(plain.rows(ids)[:-1].amax(-1).tolist(), abs=EXACT)
        _check_spelling(lists, shown)


def _check_spelling(lists, shown):
    """Tokens stand where their offsets say, and are their text but for parts of characters."""
    offsets = lists["text_offset"]
    assert offsets[0] == 0 and offsets == sorted(offsets)
    for token, offset in zip(lists["tokens"], offsets):
        assert token.startswith("bytes:") or shown.startswith(token, offset) or token == "<|end|>"


@ways
def test_vllms_form_ranks_the_tokens_of_prompts_and_of_chats(way, plain):
    ids = plain.encode(TEXTS[1])
    answer = asked(way, "/v1/completions", prompt=ids, max_tokens=1, prompt_logprobs=2)
    _check_ranked(answer["choices"][0]["prompt_logprobs"], ids, plain, 2)
    turns = [{"role": "user", "content": TEXTS[2]}, {"role": "assistant", "content": "Yes."}]
    turns.append({"role": "user", "content": TEXTS[0]})
    rendered = plain.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    for limit in ({"max_tokens": 0}, {"max_completion_tokens": 2, "logprobs": True, "n": 2}):
        answer = asked(way, "/v1/chat/completions", messages=turns, prompt_logprobs=20, **limit)
        _check_ranked(answer["prompt_logprobs"], plain.encode(rendered), plain, 20)
        for choice in answer["choices"]:
            assert bool(choice["message"]["content"]) is ("n" in limit)


def _check_ranked(places, ids, plain, count):
    rows = plain.rows(ids)
    assert places[0] is None and len(places) == len(ids)
    for place, row, id in zip(places[1:], rows, ids[1:]):
        own, *_ = place
        assert own == str(id) and len(place) in (count, count + 1)
        ranked = [int(other) for other in place if place[other]["rank"] <= count]
        assert sorted(place[str(other)]["rank"] for other in ranked) == list(range(1, count + 1))
        assert place[own]["rank"] == pytest.approx(int((row >= row[id]).sum()), abs=1)
        for other, entry in place.items():
            assert entry["logprob"] == pytest.approx(row[int(other)].item(), abs=EXACT)
            assert entry["decoded_token"] == plain.tokenizer.decode([int(other)])


@ways
def test_tasks_of_a_harness_score_as_by_transformers(way, plain):
    """Multiple choice and rolling texts, asked as lm-evaluation-harness asks: ids in batches, and one token more."""
    pairs = [(plain.encode(q), plain.encode(q + end)) for q, ends in CHOICES for end in ends]
    rolling = [plain.encode(text)[:200] for text in (TEXTS[5], TEXTS[2] * 8)]
    prompts = [whole for _, whole in pairs] + rolling
    answer = asked(
        way, "/v1/completions", prompt=prompts, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True
    )
    starts = [len(context) for context, _ in pairs] + [1, 1]
    found = [
        _scored(choice["logprobs"], start) for choice, start in zip(answer["choices"], starts, strict=True)
    ]
    expected = [_reference(plain, ids, start) for ids, start in zip(prompts, starts)]
    for (score, greedy), (own, likeliest) in zip(found, expected):
        assert score == pytest.approx(own, abs=EXACT * max(1, abs(own))) and greedy == likeliest
    sums, reference = ([score for score, _ in scored] for scored in (found, expected))
    at = 0
    for _, ends in CHOICES:
        own, theirs = sums[at : at + len(ends)], reference[at : at + len(ends)]
        assert own.index(max(own)) == theirs.index(max(theirs))
        at += len(ends)


def _scored(logprobs, start):
    """(sum, whether greedy) of the tokens from `start` on, as lm-evaluation-harness reads a choice."""
    scores, tops = logprobs["token_logprobs"][start:-1], logprobs["top_logprobs"][start:-1]
    return sum(scores), all(score == max(top.values()) for score, top in zip(scores, tops))


def _reference(plain, ids, start):
    rows = plain.rows(ids)[start - 1 : -1]
    chosen = torch.tensor(ids[start:])
    return rows.gather(1, chosen[:, None]).sum().item(), bool((rows.argmax(-1) == chosen).all())


@ways
def test_a_token_that_ends_the_answer_is_counted_behind_an_echo(way, plain):
    """Harnesses cut the lists by their lengths."""
    ids, eos = plain.encode(TEXTS[0]), plain.tokenizer.eos_token_id
    body = {"prompt": ids, "logprobs": 1, "max_tokens": 5, "logit_bias": {str(eos): 100}}
    answer = asked(way, "/v1/completions", echo=True, **body)["choices"][0]
    assert answer["finish_reason"] == "stop" and answer["text"] == TEXTS[0]
    assert answer["logprobs"]["tokens"][len(ids) :] == [plain.tokenizer.eos_token]
    assert asked(way, "/v1/completions", **body)["choices"][0]["logprobs"]["tokens"] == []


@ways
async def test_a_stream_has_the_same_lists(way, plain):
    body = {"prompt": TEXTS[5], "echo": True, "logprobs": 2, "max_tokens": 4, "temperature": 0}
    async with way() as client:
        whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]
        stream = await client.post("/v1/completions", json={**body, "stream": True})
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert values == [one for piece in pieces if piece["logprobs"] for one in piece["logprobs"][name]]


def test_engine_llamacpp_scores_the_same_model(plain):
    ids = plain.encode(TEXTS[5])
    answer = asked(
        lambda: server(load_llamacpp), "/v1/completions", prompt=ids, max_tokens=0, prompt_logprobs=0
    )
    places = answer["choices"][0]["prompt_logprobs"][1:]
    found = [place[str(id)]["logprob"] for place, id in zip(places, ids[1:], strict=True)]
    assert found == pytest.approx(plain.scores(ids), abs=ROUNDED)


async def test_tokens_around_a_picture_score_as_by_transformers(engine, text, reference):
    asked = question("What is it?", 1)
    images = tuple(placed.image for placed in asked[0].images)
    parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    ids = reference.show([{"role": "user", "content": parts}], [picture(1)])
    rows = torch.tensor(reference.logits(ids, last=len(ids))).log_softmax(-1)
    async with running(engine, text=text, max_step_tokens=8) as network:
        params = SamplingParams(temperature=0, max_tokens=0)
        tokens, _ = await through(network, Open(asked, params, prompt_logprobs=0, images=images))
    assert [token.id for token in tokens] == ids
    found = [token.logprobs[0][1] for token in tokens[1:]]
    assert found == pytest.approx([row[id].item() for row, id in zip(rows, ids[1:])], abs=EXACT)
