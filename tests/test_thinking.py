"""Models that think: what comes apart, over each API, whole and streamed, with drafts and without."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import httpx
import pytest

from edge_client.device.device import Device
from edge_client.device.served_target import TargetMemory
from edge_client.lengths.fixed import FixedLength
from edge_client.offline.local_only import render
from http_api.app import build_app
from opensled.core.messages import ChatMessage, ThoughtTags
from opensled.core.template_variables import read_variables
from opensled.text.tokenizer import TargetTokenizer
from tests.fakes import IMPATIENT, MemoryNetwork, Weather
from tests.thinking_world import (
    CALLED,
    TAGS,
    TOOLS,
    asked,
    asks,
    chat,
    folder,
    messages,
    ollama,
    responses,
    template,
    thinking,
)
from tests.tiny_drafts import tiny_info
from verify_server.text.hf_text import HFText

CALL = '<tool_call>\n{"name": "light", "arguments": {"on": true}}\n</tool_call>'
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {
    "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
    "additionalProperties": False}}}  # fmt: skip

# Behind the start tag and "\n", which the prompt or the model writes: what is written, what of it is thought, the
# text, the calls, and what is asked for besides.
CASES: list[tuple[str, str, str, list[Any], dict[str, Any]]] = [
    ("Two and two.\nFour.\n|\n\nIt is 4.", "Two and two.\nFour.", "It is 4.", [], {}),
    ("|Ja.", "", "Ja.", [], {}),
    (" \n \n|\n\nJa.", "", "Ja.", [], {}),
    ("Ümläut 漢字 👍 <b> </thin|漢字 </think", "Ümläut 漢字 👍 <b> </thin", "漢字 </think", [], {}),
    ("a\n\n\n b  |c\n|", "a\n\n\n b", "c\n|", [], {}),
    ("<think> again ◁think▷ [THINK]|Ja.", "<think> again ◁think▷ [THINK]", "Ja.", [], {}),
    ("Only thoughts.\n|", "Only thoughts.", "", [], {}),
    ("a 漢|字 </think> 👍", "a 漢", "字 </think> 👍", [], {}),
    (f"Both.|{CALL}\n{CALL}", "Both.", "", CALLED * 2, {"tools": TOOLS}),
    (f"I call {CALL} later|\nNo.", f"I call {CALL} later", "No.", [], {"tools": TOOLS}),
    (f"Light.\n|\n\n{CALL}", "Light.", "", CALLED, {"tools": TOOLS}),
    (f"{CALL}\n|\n\nWell. {CALL}", CALL, "Well. ", CALLED, {"tools": TOOLS}),
    (f"Hm.|{CALL}", "Hm.", "", CALLED, {"tools": TOOLS, "tool_choice": "required"}),
    ('{"a": 1} or so\n|\n\n{"a": true}', '{"a": 1} or so', '{"a": true}', [], {"response_format": FORM}),
    ('Never ends {"a": true}' + " and on" * 40, "", "", [], {"max_tokens": 18}),
]  # fmt: skip


APIS = (chat, responses, ollama)


def written(kind: str, prompt_opens: bool, script: str) -> str:
    """What the target writes for a case."""
    start, end = TAGS[kind]
    text = script.replace("|", end, 1)
    return text if prompt_opens else f"{start}\n{text}"


KINDS = list(itertools.product(("added", "special", "spelled"), (True, False)))


@pytest.mark.parametrize(("kind", "prompt_opens"), KINDS)
async def test_thoughts_come_apart(kind, prompt_opens, tmp_path):
    async def check(number, api, client, at, stream):
        script, thoughts, text, calls, more = CASES[number]
        told = await api(client, asked(written(kind, prompt_opens, script), **more), stream)
        where = (number, api.__name__, at, stream, told)
        if "max_tokens" in more:  # cut somewhere
            assert told.thoughts and script.startswith(told.thoughts), where
            assert (told.text, told.calls, told.reason) == ("", [], "length"), where
            return
        assert (told.thoughts, told.text, told.calls) == (thoughts, text, calls), where
        assert told.reason == ("tool_calls" if calls and api is chat else "stop"), where
        assert told.counted is None or (told.counted > 0), where

    async with thinking(tmp_path / "m", kind, prompt_opens) as (server, edge, _):
        apis = APIS if kind == "added" else APIS[:1]  # behind the reader all is the same
        clients, streams = ((server, "server"), (edge, "edge")), (False, True)
        for number in range(len(CASES)):  # what is asked of a case is asked at once
            kinds = itertools.product(apis, clients, streams)
            await asyncio.gather(*(check(number, api, *client, stream) for api, client, stream in kinds))


@pytest.mark.parametrize("prompt_opens", [True, False])
async def test_drafts_change_nothing_at_a_temperature(prompt_opens, tmp_path):
    """Also across the end of thoughts, where the grammar begins: the drafts know no grammar."""

    async def answers(server, edge, script, more, seed):
        body = asked(written("added", prompt_opens, script), 0.8, **{**more, "seed": seed})
        undrafted = {**body, "opensled": {"drafts": False}}
        asking = [chat(client, body, False) for client in (server, edge, edge)]
        told = await asyncio.gather(*asking, chat(edge, undrafted, True))
        assert told[0] == told[1] == told[2] == told[3], (script, seed)

    async with thinking(tmp_path / "m", "added", prompt_opens) as (server, edge, _):
        for script, _thoughts, _text, _calls, more in CASES:
            await asyncio.gather(*(answers(server, edge, script, more, seed) for seed in range(4)))


@pytest.mark.parametrize("prompt_opens", [True, False])
async def test_thinking_switched_off(prompt_opens, tmp_path):
    switches = [
        {"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"},
        {"reasoning": {"effort": "none"}}, {"reasoning": {"enabled": False}}, {"thinking": {"type": "disabled"}},
        {"thinking": False}, {"chat_template_kwargs": {"thinking": False}},
    ]  # fmt: skip
    async with thinking(tmp_path / "m", "added", prompt_opens) as (server, edge, _):
        for switch in switches:
            for api in APIS[:2]:
                told = await api(edge, asked("No <think> here", **switch), True)
                assert (told.thoughts, told.text, told.counted) == ("", "No <think> here", 0), switch
        told = await ollama(server, asked("No </think> here", enable_thinking=False), False)
        assert (told.thoughts, told.text) == ("", "No </think> here")
        guided = asked('{"a": true}', response_format=FORM, enable_thinking=False)
        assert (await chat(edge, guided, False)).text == '{"a": true}'


async def test_switches_that_nothing_reads(tmp_path):
    """Off is refused by name, on and an effort are hints, and two that differ are a mistake."""
    async with thinking(tmp_path / "m", switch=False) as (server, edge, _):
        for client in (server, edge):
            for switch, field in (
                ({"enable_thinking": False}, "enable_thinking"),
                (
                    {"chat_template_kwargs": {"enable_thinking": False}},
                    "chat_template_kwargs.enable_thinking",
                ),
                ({"reasoning_effort": "none"}, "reasoning_effort"),
                ({"thinking": {"type": "disabled"}}, "thinking"),
            ):
                refused = await client.post("/v1/chat/completions", json=asked("a", **switch))
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
                assert "always thinks" in refused.json()["error"]["message"]
            refused = await client.post("/api/chat", json={"messages": [], "think": False})
            assert refused.status_code == 200  # of no prompt
            body = {"messages": [{"role": "user", "content": "a"}], "think": False}
            refused = await client.post("/api/chat", json=body)
            assert refused.status_code == 400 and refused.json()["error"].startswith("think asks for no")
            taken = await client.post(
                "/v1/chat/completions",
                json=asked("a</think>b", reasoning_effort="high", chat_template_kwargs={"new": 1}),
            )
            assert taken.headers["OpenSLED-Ignored"] == "chat_template_kwargs.new, reasoning_effort"
            differ = asked("a", enable_thinking=True, thinking={"type": "disabled"})
            refused = await client.post("/v1/chat/completions", json=differ)
            assert refused.status_code == 400 and "differ" in refused.json()["error"]["message"]


async def test_variables_reach_the_template(tmp_path):
    async def prompt_tokens(client, **more):
        response = await client.post("/v1/chat/completions", json=asked("a</think>b", **more))
        assert response.status_code == 200 and "OpenSLED-Ignored" not in response.headers, response.text
        return response.json()["usage"]["prompt_tokens"]

    async with thinking(tmp_path / "m") as (server, edge, _):
        for client in (server, edge):
            plain = await prompt_tokens(client)
            assert await prompt_tokens(client, reasoning_effort="low") > plain
            assert (
                await prompt_tokens(client, chat_template_kwargs={"reasoning_effort": "very " * 9})
                > plain + 9
            )
            assert await prompt_tokens(client, enable_thinking=True) == plain
            for kwargs in ({"messages": []}, {"eos_token": "x"}, {"chat_template": "a"}):
                body = asked("a", chat_template_kwargs=kwargs)
                refused = await client.post("/v1/chat/completions", json=body)
                assert refused.status_code == 400, refused.text
                assert refused.json()["error"]["param"] == f"chat_template_kwargs.{next(iter(kwargs))}"
            body = asked("a", chat_template_kwargs={"reasoning_effort": "x" * 20_000})
            refused = await client.post("/v1/chat/completions", json=body)
            assert refused.json()["error"]["param"] == "chat_template_kwargs"


async def test_thoughts_that_are_not_wanted(tmp_path):
    async with thinking(tmp_path / "m") as (_, edge, _):
        for more in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
            for api in APIS[:2]:
                for stream in (False, True):
                    told = await api(edge, asked("hm</think>Yes.", **more), stream)
                    assert (told.thoughts, told.text) == ("", "Yes.") and told.counted > 0


async def test_earlier_thoughts_come_back(tmp_path):
    """By the key that the template reads, however a client spells them."""
    first = {"role": "user", "content": "Why?"}
    last = {"role": "user", "content": asks("a</think>b")}
    parts = [{"type": "thinking", "thinking": "I think so"}, {"type": "text", "text": "So."}]
    spelled = [{key: "I think so"} for key in ("reasoning_content", "reasoning", "thinking")]
    spelled.append({"content": parts})

    async def prompt_tokens(client, path, **body):
        response = await client.post(path, json={"temperature": 0, **body})
        assert response.status_code == 200, response.text
        usage = response.json()["usage"]
        return usage.get("prompt_tokens", usage.get("input_tokens"))

    async with thinking(tmp_path / "m") as (server, edge, _):
        for client in (server, edge):
            said = {"role": "assistant", "content": "So."}
            plain = await prompt_tokens(client, "/v1/chat/completions", messages=[first, said, last])
            found = set()
            for extra in spelled:
                turns = [first, {**said, **extra}, last]
                found.add(await prompt_tokens(client, "/v1/chat/completions", messages=turns))
            for content in ({"content": [{"type": "reasoning_text", "text": "I think so"}], "summary": []},
                            {"summary": [{"type": "summary_text", "text": "I think so"}]}):  # fmt: skip
                items = [first, {"type": "reasoning", "id": "rs_1", **content}, said, last]
                found.add(await prompt_tokens(client, "/v1/responses", input=items))
            assert len(found) == 1 and found.pop() > plain + 2
            reply = await client.post(
                "/api/chat",
                json={"messages": [first, {**said, "thinking": "I think so"}, last], "stream": False},
            )
            assert reply.json()["prompt_eval_count"] > plain + 2


async def test_ollama_knows_what_thinks(tmp_path):
    async with thinking(tmp_path / "m") as (server, edge, _):
        for client in (server, edge):
            assert "thinking" in (await client.post("/api/show", json={})).json()["capabilities"]
            body = {"prompt": asks("hm\n</think>\n\nYes."), "stream": False, "think": True}
            reply = (await client.post("/api/generate", json=body)).json()
            assert (reply["thinking"], reply["response"]) == ("hm", "Yes.")
            raw = {"prompt": f"<|assistant|>{asks('x')}", "stream": False, "raw": True}
            assert "thinking" not in (await client.post("/api/generate", json=raw)).json()
            level = await client.post("/api/generate", json={**body, "think": "low"})
            assert level.status_code == 200 and "OpenSLED-Ignored" not in level.headers


@pytest.mark.parametrize("prompt_opens", [True, False])
async def test_stop_strings_count_in_the_answer_alone(prompt_opens, tmp_path):
    async def check(client, api, stream):
        body = asked(written("added", prompt_opens, "one two three|four two five"))
        body = {**body, "options": {"stop": ["two"]}} if api is ollama else {**body, "stop": ["two"]}
        told = await api(client, body, stream)
        assert (told.thoughts, told.text, told.reason) == ("one two three", "four ", "stop"), (api, stream)

    async with thinking(tmp_path / "m", "added", prompt_opens) as (server, edge, _):
        for kind in itertools.product((server, edge), (chat, ollama, messages), (False, True)):
            await check(*kind)
        cut = asked(written("added", prompt_opens, "two " * 40), max_tokens=9, stop=["two"])
        assert (await chat(server, cut, False)).reason == "length"


class ForgetfulNetwork(MemoryNetwork):
    """Of a server that has forgotten all sessions whenever a stream is opened again."""

    def connect(self, *more):
        for session in list(self.manager.remembered):
            self.manager.forget(session)
        return super().connect()


@pytest.mark.parametrize("temperature", [0, 0.8])
async def test_a_lost_sequence_goes_on_in_its_thoughts(temperature, tmp_path):
    """The server learns from the ids alone where the answer stands, and the grammar with it."""
    async with thinking(tmp_path / "m") as (server, edge, manager):
        info, script = edge.device.info, edge.device._factory
        reopened = 0
        for number, (script_text, _thoughts, _text, _calls, more) in enumerate(CASES):
            body = asked(written("added", True, script_text), temperature, **more)
            expected = await chat(server, body, False)
            network = ForgetfulNetwork(manager, Weather(loss=0.12, seed=number))
            device = Device(network, info, edge.device.tokenizer, script, FixedLength(4), 1, IMPATIENT)
            transport = httpx.ASGITransport(build_app(device))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", timeout=60
            ) as client:
                assert await chat(client, body, True) == expected, number
            reopened += device.telemetry.reopened
            await device.close()
        assert reopened > 5


def test_a_device_alone_renders_as_the_server_would(tmp_path):
    text = HFText(folder(tmp_path / "m", "added", template(TAGS["added"], True)))
    tokenizer = TargetTokenizer(text.tokenizer_json)
    info = tiny_info(thoughts=ThoughtTags(*TAGS["added"]), template_variables=text.template_variables)
    turns = (
        ChatMessage("user", "a"),
        ChatMessage("assistant", "b", reasoning="So I think"),
        ChatMessage("user", "c"),
    )
    found = set()
    for variables in ("", '{"enable_thinking": false}', '{"reasoning_effort": "low"}'):
        found.add(rendered := render(turns, text.chat_template, info, tokenizer, variables))
        assert rendered == text.render(turns, (), read_variables(variables))
    assert len(found) == 3
    memory = TargetMemory(tmp_path, "a:1")
    told = replace(info, has_chat_template=False)
    asyncio.run(memory.keep(None, told))
    assert memory.recall().info == told
