"""What a request may ask of its answers: several of them, log-probabilities, an echo, biases, the whole history."""

import json
import math
from contextlib import aclosing

import pytest

from opensled.core.answer import Chunk
from opensled.core.errors import InvalidRequest, Overloaded, Unreachable
from opensled.core.messages import ChatMessage, PromptToken, ToolCall
from tests.fake_backend import STATS, WORDS, FakeBackend, call, chat, events, refusal

TEXT = "".join(WORDS)
RAW = "/v1/completions"


def raw(**fields):
    return {"model": "tiny", "prompt": "Once", **fields}


def payloads(response):
    *chunks, done = events(response)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


@pytest.fixture
def backend():
    return FakeBackend()


def test_several_answers_each_have_an_index_and_a_seed(backend):
    reply = call(backend, body=chat(n=3, seed=5)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in reply["choices"]} == {TEXT}
    seeds = [task.params.seed for task in backend.tasks]
    assert seeds[0] == 5 and len(set(seeds)) == 3
    assert backend.closed == 3


def test_without_a_seed_the_server_draws_each(backend):
    call(backend, body=chat(n=2))
    assert [task.params.seed for task in backend.tasks] == [None, None]


def test_seeds_go_round_at_64_bits(backend):
    assert call(backend, body=chat(n=2, seed=2**63 - 1)).status_code == 200
    assert call(backend, body=chat(n=2, seed=-(2**63) - 1)).status_code == 200
    seeds = [task.params.seed for task in backend.tasks]
    assert seeds[0] == 2**63 - 1 and seeds[:2] == seeds[2:]


def test_usage_counts_a_prompt_once_and_every_answer():
    usage = call(FakeBackend(), RAW, raw(prompt=["a", "b"], n=2)).json()["usage"]
    assert usage["prompt_tokens"] == 2 * STATS.prompt_tokens
    assert usage["completion_tokens"] == 4 * STATS.completion_tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["opensled"]["drafted"] == 4 * STATS.drafted


def test_prompts_times_answers_come_in_the_order_of_the_prompts(backend):
    reply = call(backend, RAW, raw(prompt=["a", "b"], n=2, best_of=2, seed=1)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert [task.prompt for task in backend.tasks] == ["a", "a", "b", "b"]
    seeds = [task.params.seed for task in backend.tasks]
    assert seeds[0] == 1 != seeds[1] and seeds[:2] == seeds[2:]


@pytest.mark.parametrize("path", ["/v1/chat/completions", RAW])
def test_several_answers_stream_side_by_side(path):
    body = (chat if "chat" in path else raw)(n=2, stream=True, stream_options={"include_usage": True})
    *pieces, last = payloads(call(FakeBackend(), path, body))
    texts = {0: "", 1: ""}
    for piece in pieces:
        (choice,) = piece["choices"]
        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content", "")
    assert texts == {0: TEXT, 1: TEXT}
    order = [piece["choices"][0]["index"] for piece in pieces]
    assert order != sorted(order), "neither waits for the other"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 2 * STATS.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_begin_fails_the_request(stream):
    backend = FakeBackend(Unreachable("lost"), fail_after=0, fails=1)
    response = call(backend, body=chat(n=2, stream=stream))
    assert refusal(response, 503)["message"] == "lost" and backend.closed == 2


class FewPlaces(FakeBackend):
    """A server of two places."""

    most = 0

    async def answer(self, task):
        if len(self.tasks) - self.closed == 2:
            raise Overloaded("all taken")
        self.most = max(self.most, len(self.tasks) - self.closed + 1)
        async with aclosing(super().answer(task)) as chunks:
            async for chunk in chunks:
                yield chunk


@pytest.mark.parametrize("stream", [False, True])
def test_answers_wait_for_places_that_others_of_the_same_request_free(stream):
    backend = FewPlaces()
    response = call(backend, "/v1/completions", raw(prompt=["a"] * 64, n=32, stream=stream))
    assert response.status_code == 200 and backend.most == 2
    if stream:
        ended = [piece["choices"][0] for piece in payloads(response) if piece["choices"][0]["finish_reason"]]
    else:
        ended = response.json()["choices"]
    assert sorted(choice["index"] for choice in ended) == list(range(64 * 32))


def test_a_request_that_finds_no_place_at_all_is_refused():
    backend = FakeBackend(Overloaded("full", retry_after=3), fail_after=0)
    response = call(backend, body=chat(n=3))
    assert refusal(response, 429)["code"] == "overloaded" and response.headers["retry-after"] == "3"
    assert backend.closed == 3


def test_an_answer_that_fails_midway_ends_the_others():
    backend = FakeBackend(Unreachable("lost"), fail_after=2, fails=1, endless=True)
    *_, last = events(call(backend, body=chat(n=3, stream=True)))
    assert json.loads(last)["error"]["message"] == "lost"
    assert backend.closed == 3


def test_log_probabilities_of_a_chat():
    reply = call(FakeBackend(words=(" a", "b")), body=chat(logprobs=True, top_logprobs=2)).json()
    entries = reply["choices"][0]["logprobs"]["content"]
    assert len(entries) == 2, "the end-of-sequence token is not listed"
    backend = FakeBackend()
    for id, entry in zip((40, 41), entries, strict=True):
        raw_bytes = backend.tokenizer.token_bytes(id)
        assert entry["bytes"] == list(raw_bytes) and entry["logprob"] == -0.5
        assert entry["token"] == raw_bytes.decode(errors="replace")
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-1.0, -2.0]
        assert [bytes(top["bytes"]) for top in entry["top_logprobs"]] == [
            backend.tokenizer.token_bytes(top) for top in (50, 51)
        ]


def test_log_probabilities_without_alternatives(backend):
    entries = call(backend, body=chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert backend.tasks[0].top_logprobs == 0 and all(entry["top_logprobs"] == [] for entry in entries)
    assert call(backend, body=chat()).json()["choices"][0]["logprobs"] is None
    assert backend.tasks[1].top_logprobs is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", RAW])
def test_streamed_log_probabilities_are_those_of_the_whole(path):
    body = chat(logprobs=True, top_logprobs=1) if "chat" in path else raw(logprobs=1)
    whole = call(FakeBackend(), path, body).json()["choices"][0]["logprobs"]
    joined: dict[str, list] = {name: [] for name, value in whole.items() if value is not None}
    for piece in payloads(call(FakeBackend(), path, {**body, "stream": True})):
        for name, values in (piece["choices"][0]["logprobs"] or {}).items():
            if values:
                joined[name] += values
    assert joined == {name: value for name, value in whole.items() if value is not None}


def test_log_probabilities_of_a_completion():
    logprobs = call(FakeBackend(), RAW, raw(logprobs=2)).json()["choices"][0]["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert all(len(top) == 3 for top in logprobs["top_logprobs"]), "the likeliest and the committed one"
    assert all(token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))


def test_offsets_count_whole_characters(backend):
    ids = backend.tokenizer.encode("a 👍 b")

    async def spell(task):
        for id in ids:
            yield Chunk("", (id,), logprobs=(((id, -1e9),),))
        yield Chunk("", (0,), "eos", STATS, logprobs=(((0, -1.0),),))

    backend.answer = spell
    logprobs = call(backend, RAW, raw(logprobs=0)).json()["choices"][0]["logprobs"]
    text, seen = "a 👍 b", 0
    for id, token, offset in zip(ids, logprobs["tokens"], logprobs["text_offset"], strict=True):
        spelled = backend.tokenizer.token_bytes(id)
        whole = (
            b"".join(map(backend.tokenizer.token_bytes, ids[: ids.index(id)])) if ids.count(id) == 1 else None
        )
        assert whole is None or offset == len(whole.decode(errors="ignore"))
        assert token == spelled.decode() if not token.startswith("bytes:") else b"\\x" in token.encode()
        assert seen <= offset <= len(text)
        seen = offset
    assert any(token.startswith("bytes:\\x") for token in logprobs["tokens"]), "a half character is no text"
    assert logprobs["token_logprobs"][0] == -9999.0, "JSON has no infinity"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "shown"), [("Once", "Once"), ([76, 75], None)])
def test_an_echo_puts_the_prompt_before_the_answer(prompt, shown, stream, backend):
    shown = shown or backend.tokenizer.decode(prompt)
    response = call(backend, RAW, raw(prompt=prompt, echo=True, stream=stream))
    if stream:
        assert "".join(piece["choices"][0]["text"] for piece in payloads(response)) == shown + TEXT
    else:
        assert response.json()["choices"][0]["text"] == shown + TEXT


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"echo": True, "logprobs": 3}, 3),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 7}, 7),
        ({"echo": True, "max_tokens": 0}, 0),
        ({"prompt_logprobs": 2, "max_tokens": 0}, 2),
        ({"logprobs": 3}, None),
        ({"echo": True}, None),
    ],
)
def test_what_is_asked_of_a_prompt(fields, wanted, backend):
    assert call(backend, RAW, raw(prompt=[[5, 6], [7]], **fields)).status_code == 200
    assert [task.prompt_logprobs for task in backend.tasks] == [wanted] * 2


PLACES = (
    PromptToken(0, ((76, 0.0),)),
    PromptToken(3, ((75, -2.0), (9, -0.5), (8, -1.0))),
    PromptToken(1, ((8, -math.inf), (8, -math.inf), (9, -math.inf))),
)


def test_each_form_shows_as_many_of_the_likeliest_as_it_is_asked_for(backend):

    async def say(task):
        yield Chunk("", (), prompt=PLACES[:2])
        yield Chunk("b", (40,), logprobs=(((40, -0.5), (9, -1.0)),), prompt=PLACES[2:])
        yield Chunk("", (), "length", STATS)

    backend.answer = say
    fields = {"prompt": [76, 75, 8], "echo": True, "logprobs": 1, "prompt_logprobs": 2, "max_tokens": 1}
    choice = call(backend, RAW, raw(**fields)).json()["choices"][0]
    spell = [backend.tokenizer.token_bytes(id).decode() for id in (76, 75, 8, 40, 9)]
    lists = choice["logprobs"]
    assert lists["tokens"] == spell[:4] and lists["token_logprobs"] == [None, -2.0, -9999.0, -0.5]
    assert lists["top_logprobs"] == [
        None, {spell[4]: -0.5, spell[1]: -2.0}, {spell[2]: -9999.0}, {spell[4]: -1.0, spell[3]: -0.5},
    ]  # fmt: skip
    places = choice["prompt_logprobs"]
    assert places[0] is None and [*places[1]] == ["75", "9", "8"] and [*places[2]] == ["8", "9"]
    assert [entry["rank"] for entry in places[1].values()] == [3, 1, 2]
    assert places[2]["8"] == {"logprob": -9999.0, "rank": 1, "decoded_token": spell[2]}


def test_offsets_count_special_tokens_where_the_prompt_spells_them(backend):
    prompt = "<|user|>Hi"
    ids = backend.tokenizer.encode(prompt)

    async def say(task):
        yield Chunk("", (), prompt=tuple(PromptToken(0, ((id, 0.0),)) for id in ids))
        yield Chunk("", (), "length", STATS)

    backend.answer = say
    for asked, offsets in ((prompt, [0, 8]), (list(ids), [0, 0])):
        choice = call(backend, RAW, raw(prompt=asked, echo=True, logprobs=0, max_tokens=0)).json()["choices"][
            0
        ]
        assert choice["logprobs"]["text_offset"] == offsets, choice


def test_biases_reach_the_backend(backend):
    call(backend, body=chat(logit_bias={"7": -100, "2047": 0.5}))
    assert backend.tasks[0].params.logit_bias == ((7, -100.0), (2047, 0.5))


CALL = {"id": "call_1", "type": "function", "function": {"name": "lamp", "arguments": '{"on":true}'}}


def test_turns_with_calls_and_their_results(backend):
    messages = [
        {"role": "user", "content": "Light!", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": [{"type": "text", "text": "ok"}],
            "name": "lamp",
        },
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "Done.", "tool_calls": [CALL]},
    ]
    assert call(backend, body=chat(messages=messages)).status_code == 200
    lamp = (ToolCall("call_1", "lamp", '{"on":true}'),)
    assert backend.tasks[0].prompt == (
        ChatMessage("user", "Light!", name="Ann"),
        ChatMessage("assistant", "", lamp),
        ChatMessage("tool", "ok", tool_call_id="call_1", name="lamp"),
        ChatMessage("assistant", "", lamp),
        ChatMessage("assistant", "Done.", lamp),
    )


def test_a_field_of_the_server_is_told_in_the_client_s_words():
    backend = FakeBackend(InvalidRequest("bad", "top_logprobs"), fail_after=0)
    assert refusal(call(backend, RAW, raw(logprobs=1)))["param"] == "logprobs"
    assert refusal(call(backend, body=chat(logprobs=True)))["param"] == "top_logprobs"
    backend = FakeBackend(InvalidRequest("bad", "max_tokens"), fail_after=0)
    assert refusal(call(backend, body=chat(max_tokens=3)))["param"] == "max_tokens"
