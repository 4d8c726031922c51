"""Mode `local-only`: the draft model's own words, and nowhere without saying that they are."""

import asyncio
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edge_client.device.device import connect
from edge_client.device.prompt_config import GenerateConfig
from edge_client.device.served_target import TargetMemory
from edge_client.offline import local_only
from edge_client.offline.local_only import own_key, own_prompt, render
from opensled.core.answer import LOCAL_ONLY, Task
from opensled.core.errors import EngineError, InvalidRequest, Overloaded, Unreachable, Unsupported
from opensled.core.messages import ChatMessage, Guide, SamplingParams, ToolCall
from opensled.core.noise import noise_key
from opensled.models.store import model_file, model_path
from tests.devices import TOKENIZER, read
from tests.fake_target import _Text as TinyText
from tests.fakes import POISON, Made, OracleDrafter, Silent, continuation, next_token
from tests.loops import in_loop
from tests.outages import INFO, LONG, QUICK, Reader, device_that_loses
from tests.serving import GREEDY, PROMPT, serving

NO_MEMORY = SimpleNamespace(recall=lambda: None)
BRIEF = replace(QUICK, give_up=0.02)
TEMPLATE = (model_path("tiny") / "chat_template.jinja").read_text()
TALK = (ChatMessage("system", "Be kind."), ChatMessage("user", "Hi"), ChatMessage("assistant", "Yes?"))


OWN_MIND = Made(lambda: OracleDrafter(0.0))  # its drafters never say what the target says


def own_words(context, count):
    tokens = list(context)
    for _ in range(count):
        tokens.append(1 + next_token(tokens) % (POISON - 1))
    return tokens[len(context) :]


@in_loop
async def local_answer(task=LONG, factory=OWN_MIND, lost_at_first=True, seed=1):
    reader = Reader(seed, chance=0.0 if lost_at_first else 0.2, longest=10**6)
    options = {"factory": factory, "memory": NO_MEMORY, "patience": BRIEF}
    async with device_that_loses(LOCAL_ONLY, **options) as (device, network):
        if lost_at_first:
            network.down, reader._away_for = True, 10**6
        await reader.read(device, network, task)
        return reader


# -- answers ---------------------------------------------------------------------------------------------


def test_without_a_server_the_draft_model_answers_and_every_token_says_so():
    reader = local_answer()
    assert reader.ids == own_words(PROMPT, 60)
    assert {origin for chunk in reader.chunks for origin in chunk.origins} == {"local"}
    stats = reader.chunks[-1].stats
    assert (stats.local_tokens, stats.completion_tokens, stats.server_decoded, stats.drafted) == (
        60,
        60,
        0,
        0,
    )


@pytest.mark.parametrize("seed", range(5))
def test_in_mid_answer_the_draft_model_finishes_what_the_target_began(seed):
    reader = local_answer(lost_at_first=False, seed=seed)
    origins = [origin for chunk in reader.chunks for origin in chunk.origins]
    known = origins.index("local")
    assert set(origins[known:]) == {"local"} and 0 < known < 60
    assert reader.ids[:known] == continuation(PROMPT, known)
    assert reader.ids[known:] == own_words([*PROMPT, *reader.ids[:known]], 60 - known)
    assert reader.chunks[-1].stats.local_tokens == 60 - known


async def test_the_draft_model_alone_can_be_asked_while_the_server_is_there():
    async def scenario(task, memory):
        async with device_that_loses(LOCAL_ONLY, OWN_MIND, memory=memory) as (device, network):
            chunks = [chunk async for chunk in device.answer(task)]
            assert not network.manager.stats.opened["new"]
            return [token for chunk in chunks for token in chunk.token_ids]

    alone = replace(LONG, alone=True)
    assert await scenario(alone, NO_MEMORY) == own_words(PROMPT, 60)
    with pytest.raises(Unreachable, match="log-probabilities"):
        await scenario(replace(alone, top_logprobs=1), NO_MEMORY)
    with pytest.raises(Unreachable, match="the draft model alone"):
        await scenario(alone, None)  # a device without that mode


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"top_logprobs": 1}, "only the target can give log-probabilities"),
        ({"guide": Guide("{}")}, "formats of answers"),
    ],
)
def test_what_only_a_target_can_do_is_refused(wanted, said):
    with pytest.raises(Unreachable, match=said):
        local_answer(replace(LONG, **wanted))


def test_an_answer_that_takes_the_target_does_not_go_on_without_it():
    with pytest.raises(Unreachable, match="only the target can give log-probabilities"):
        local_answer(replace(LONG, top_logprobs=1), lost_at_first=False)


def test_a_drafter_without_words_of_its_own_is_an_error():
    with pytest.raises(EngineError, match="use a draft model"):
        local_answer(factory=Made(Silent))


async def test_where_every_drafter_is_busy_the_answer_comes_later():
    options = {"factory": OWN_MIND, "memory": NO_MEMORY, "patience": BRIEF}
    async with device_that_loses(LOCAL_ONLY, **options) as (device, network):
        network.down = True
        first, second = device.answer(LONG), device.answer(LONG)
        await anext(first)
        with pytest.raises(Overloaded, match="all drafters are busy"):
            await anext(second)
        await first.aclose()


def test_a_seed_gives_the_same_words_again():
    assert own_key(SamplingParams(seed=5)) == noise_key(5)
    assert own_key(SamplingParams()) != own_key(SamplingParams())


# -- prompts that no server has read -----------------------------------------------------------------------


def test_texts_and_ids_are_prompts_as_they_are():
    assert own_prompt(Task("one two", LONG.params), INFO, TOKENIZER, "") == TOKENIZER.encode("one two")
    assert own_prompt(LONG, INFO, TOKENIZER, "") == PROMPT
    with pytest.raises(Unreachable, match="201 tokens"):
        own_prompt(Task((1,) * 201, LONG.params), INFO, TOKENIZER, "")


def test_a_chat_is_rendered_as_the_server_would():
    from verify_server.text.gguf_text import GgufText

    server = GgufText(model_file("tiny", "*.gguf"))
    assert render((*TALK, ChatMessage("user", "2+2?")), TEMPLATE, INFO, TOKENIZER) == server.render(
        (*TALK, ChatMessage("user", "2+2?"))
    )


def test_a_chat_that_cannot_be_rendered_is_refused(monkeypatch):
    called = ChatMessage("assistant", "", (ToolCall("1", "f", "{}"),))
    for messages, template, error, said in (
        (TALK, "", Unsupported, "no chat template"),
        ((called,), TEMPLATE, Unsupported, "tools"),
        (TALK, "{{ raise_exception('no system, please') }}", InvalidRequest, "no system, please"),
        (TALK, "{{ ''.__class__.__mro__ }}", InvalidRequest, "unsafe"),
    ):
        with pytest.raises(error, match=said):
            render(messages, template, INFO, TOKENIZER)
    local_only._renderer.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(Unsupported, match="pip install jinja2"):
        render(TALK, TEMPLATE, INFO, TOKENIZER)


# -- what is remembered ----------------------------------------------------------------------------------


class Teller:
    """A link to a server that has a template."""

    asked = 0

    async def chat_template(self):
        self.asked += 1
        return "template"


def test_a_target_is_remembered_by_server_and_asked_for_once(tmp_path):
    memory, link = TargetMemory(tmp_path, "a:1"), Teller()
    info = replace(INFO, has_chat_template=True, capabilities=("guide",))
    assert memory.recall() is None
    for _ in range(2):
        asyncio.run(memory.keep(link, info))
        assert (memory.recall().info, memory.recall().chat_template, link.asked) == (info, "template", 1)
    asyncio.run(memory.keep(link, replace(info, version="2")))
    assert link.asked == 2 and TargetMemory(tmp_path, "b:1").recall() is None


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{}", b'{"info": {}}', b"\xff", b'{"info": 3}', b"[" * 100_000]
)
def test_a_damaged_memory_is_none(tmp_path, damage):
    memory = TargetMemory(tmp_path, "a:1")
    asyncio.run(memory.keep(Teller(), INFO))
    memory._path.write_bytes(damage)
    assert memory.recall() is None


async def test_a_device_starts_without_its_server_once_it_has_met_it(tmp_path):
    prompt = (5, 6, 7) * 4
    options = {"drafter": "lookup", "cache_dir": str(tmp_path), "offline": LOCAL_ONLY}
    async with serving(text=TinyText()) as (_, address):
        config = GenerateConfig(server=address, **options)
        met = await connect(config)
        await met.close()
    device = await connect(config)
    assert device.info == met.info
    with pytest.raises(EngineError, match="cannot answer alone; use a draft model"):  # copies are no answer
        await read(device, Task(prompt, GREEDY))
    await device.close()
    with pytest.raises(Unreachable, match="has never connected to a server there"):
        await connect(replace(config, server="127.0.0.1:9"))
    for file in tmp_path.glob("*.json"):
        file.unlink()
    with pytest.raises(Unreachable, match="its tokenizer is not in"):
        await connect(config)


def test_a_memory_is_plain_json(tmp_path):
    asyncio.run(TargetMemory(tmp_path, "a:1").keep(Teller(), INFO))
    (file,) = (tmp_path / "servers").iterdir()
    assert json.loads(file.read_text())["info"]["model_id"] == "fake"
