"""A draft never ends an answer: what spoils a step is taken away, and the text goes on as without drafts."""

import asyncio
import json
import math
import random
import time

import llama_cpp
import pytest
import torch

from edge_client.drafters.base import Drafter
from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from opensled.core.errors import EngineError
from opensled.core.messages import DraftToken, Guide, SamplingParams
from opensled.models.store import model_path
from scheduler.fcfs import Fcfs
from tests.fakes import POISON, FakeEngine, Follower, OracleDrafter, continuation
from tests.system import ask, running
from tests.tiny_gguf import random_gguf
from verify_server.engine.llamacpp import llama_cache
from verify_server.engine.llamacpp import llama_engine as llamacpp
from verify_server.engine.torch.torch_engine import load
from verify_server.round.drafter import ServerDrafter
from verify_server.text import grammar_compiler
from verify_server.text.guide import GrammarRebuilt, GuideCompiler
from verify_server.text.hf_text import HFText

PROMPT = (3, 1, 4, 1, 5)
BAD = 301  # its embedding is no number


class Spoiler(Follower):
    """Drafts `right` tokens of the text, then ids that spoil a step: a chain, or each beside a right one."""

    def __init__(self, text, right, bad) -> None:
        self._text, self._right, self._bad = list(text), right, bad

    def propose(self):
        known = len(self.truth)
        for token in self._text[known : known + self._right]:
            yield DraftToken(token, 0.9)
        while True:
            yield DraftToken(self._bad, 0.9)


async def told(engine, drafter, params, prompt=PROMPT) -> tuple[tuple[int, ...], str]:
    async with running(engine, max_step_tokens=128) as network:
        answer = await ask(network, prompt, drafter, params)
        return answer.tokens, answer.finish_reason


@pytest.fixture(scope="module")
def spoiled():
    """tiny, but one token's embedding is no number; its logit is as ever."""
    engine = load(str(model_path("tiny")), device="cpu", dtype="float64", kv_tokens=2048)
    embedding = engine.network.get_input_embeddings()
    weight = embedding.weight.detach().clone()
    weight[BAD] = float("nan")
    embedding.weight = torch.nn.Parameter(weight, requires_grad=False)
    return engine


LAST = SamplingParams(0.0, max_tokens=1)
SAMPLINGS = [SamplingParams(0.0, max_tokens=24), SamplingParams(0.8, seed=3, max_tokens=24)]


@pytest.mark.parametrize("params", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("right", [0, 1, 3])
async def test_a_token_whose_embedding_is_no_number(right, params, spoiled):
    alone = await told(spoiled, OracleDrafter(1.0, target=lambda context: 7), params)
    assert len(alone[0]) > 10 and BAD not in alone[0]
    assert await told(spoiled, Spoiler((*PROMPT, *alone[0]), right, BAD), params) == alone


@pytest.mark.parametrize("right", [0, 1, 3])
async def test_an_engine_whose_rows_are_no_numbers_behind_a_draft(right):
    text = continuation(list(PROMPT), 40)
    params = SamplingParams(temperature=0, max_tokens=40)
    assert await told(FakeEngine(), Spoiler((*PROMPT, *text), right, POISON), params) == (
        tuple(text),
        "length",
    )


# Prompts of a random model: its likeliest token is ahead by 8 % of the logits' spread or more, 16 times in a row, and
# rounding in other batches changes a logit by a thousandth of that.
ASKED, BESIDE = (252, 207, 211, 117, 262), (288, 240, 208, 98, 182)
SIXTEEN = SamplingParams(0.0, max_tokens=16)


@pytest.fixture(scope="module", params=["flash attention", "plain attention"])
def spoiled_llama(request, tmp_path_factory):
    """A random llama for llama.cpp, whose embedding of one token is no number; as some models and graphics cards have
    it, without flash attention, which multiplies what its mask hides by zero."""
    parameters = llama_cache._parameters

    def plain(cells: int, sequences: int):
        made = parameters(cells, sequences)
        made.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        return made

    path = random_gguf("llama", tmp_path_factory.mktemp("spoiled") / "llama.gguf", spoiled=BAD)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain attention":
            patch.setattr(llama_cache, "_parameters", plain)
        return llamacpp.load(path, threads=1, kv_tokens=512)


@pytest.mark.parametrize("right", [0, 1, 3])
async def test_llama_cpp_with_a_token_whose_embedding_is_no_number(right, spoiled_llama):
    """All sequences share its cells: the one that drafts the token, and one beside it whose prompt comes in chunks."""
    alone = await told(spoiled_llama, OracleDrafter(1.0, target=lambda context: 7), SIXTEEN, ASKED)
    beside = await told(spoiled_llama, OracleDrafter(1.0, target=lambda context: 7), SIXTEEN, BESIDE)
    assert len(alone[0]) == len(beside[0]) == 16 and BAD not in alone[0]
    async with running(spoiled_llama, max_step_tokens=8) as network:
        drafter = Spoiler((*ASKED, *alone[0]), right, BAD)
        first = asyncio.ensure_future(ask(network, ASKED, drafter, SIXTEEN))
        late = asyncio.ensure_future(ask(network, BESIDE, Spoiler((), 0, BAD), SIXTEEN))
        long = asyncio.ensure_future(ask(network, (*BESIDE, *beside[0]), OracleDrafter(0.0), LAST))
        drafted, other, after = [
            (each.tokens, each.finish_reason) for each in await asyncio.gather(first, late, long)
        ]
    assert (drafted, other) == (alone, beside)
    assert len(after[0]) == 1 and after[1] == "length"


async def test_without_a_draft_such_a_row_ends_the_answer():
    async with running(FakeEngine()) as network:
        with pytest.raises(EngineError, match="non-finite"):
            await ask(network, (*PROMPT, POISON), OracleDrafter(0.5))


PATTERN = r"^(([a-z]{0,40}[a-m][a-z]{25}x)|([a-z]*[qwerty][a-z]{22}z))+$"


def start(text) -> object:
    guides = GuideCompiler(text.tokenizer_json, text.vocab_size, text.eos_ids, text.chat_template)
    return guides.start(Guide(json_schema=json.dumps({"type": "string", "pattern": PATTERN})), ())


def asked(constraint, draft=()):
    """The masks, and how often there were none yet."""
    waits = 0
    while True:
        try:
            return constraint.next_masks(draft), waits
        except GrammarRebuilt:
            waits += 1
            draft = ()
            time.sleep(0.001)


def test_drafts_that_use_a_grammar_up_change_no_mask(monkeypatch):
    """A matcher has a bound on its lexer's states, which drafts reach as text does."""
    monkeypatch.setattr(grammar_compiler, "MAX_STATES", 12_000)
    text = HFText(model_path("tiny"))
    drafted, alone = start(text), start(text)
    chance = random.Random(1)
    letters = [text.encode(letter)[0] for letter in "abcdefghijklmnopqrstuvwxyz"]
    waits = 0
    for token in [text.encode('"')[0], *chance.choices(letters, k=20)]:
        for constraint in (drafted, alone):
            constraint.commit((token,))
        for _ in range(3):
            draft = chance.choices(letters, k=32) if drafted.takes_drafts else ()
            masks, waited = asked(drafted, draft)
            waits += waited
            assert masks[0] == alone.next_masks(())[0]
    assert waits and not drafted.takes_drafts


class Letters(Drafter, ServerDrafter):
    """Drafts random letters, on a device or beside the target."""

    def __init__(self, letters) -> None:
        self._letters, self._chance, self.asked = letters, random.Random(2), 0

    def begin(self, prompt, sampler) -> None: ...

    def commit(self, tokens) -> None: ...

    def propose(self, asks=None):
        if asks is None:
            return (DraftToken(letter, 0.9) for letter in self._chance.choices(self._letters, k=32))
        self.asked += len(asks)
        return [
            ask.chain((letter, 0.9) for letter in self._chance.choices(self._letters, k=32)) for ask in asks
        ]


def test_where_a_grammar_takes_no_drafts_any_more_nobody_drafts(monkeypatch):
    """Such drafts were sent, and dropped at the server."""
    monkeypatch.setattr(grammar_compiler, "MAX_STATES", 12_000)
    text, engine = HFText(model_path("tiny")), load(str(model_path("tiny")), device="cpu", kv_tokens=2048)
    letters = [text.encode(letter)[0] for letter in "abcdefghijklmnopqrstuvwxyz"]
    params = SamplingParams(0.0, max_tokens=120)
    guide = Guide(json_schema=json.dumps({"type": "string", "pattern": PATTERN}))

    async def scenario(device, server):
        policy = Fcfs(math.inf, 8)
        async with running(engine, policy=policy, text=text, max_step_tokens=128, drafter=server) as network:
            answer = await ask(network, PROMPT, device, params, stop=FixedLength(16), guide=guide)
            (session,) = network.manager.remembered
            return answer.tokens, session.sources.device.turn.hint, network.manager.loop.machine.stats

    device, server = Letters(letters), Letters(letters)
    alone, hint, _ = asyncio.run(scenario(NoneDrafter(), None))
    assert len(alone) > 100 and hint is None
    drafted, hint, stats = asyncio.run(scenario(device, server))
    assert (drafted, hint) == (alone, 0)
    assert 0 < server.asked < len(alone) / 2 and 0 < stats.drafts.drafts < len(alone) / 2
