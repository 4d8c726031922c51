"""The self-test of the plug-in finds each way in which drafts could change texts; its vLLM is a table here."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from opensled.core.errors import SelfTestFailed
from vllm_plugin import selftest
from vllm_plugin.messages import read_tick, terms_of

CONFIG = SimpleNamespace(dtype="torch.float32", max_logprobs=20, get_vocab_size=lambda: 100)
PROMPTS = [(1, 2, 3), (4, 5)]


class Vllm:
    """Writes ids that follow from places; `fault`: its way to treat drafts."""

    def __init__(self, fault: str, lead: float) -> None:
        self.fault, self.lead, self.engine_core = fault, lead, self
        self._news: dict[str, asyncio.Queue] = {}

    async def call_utility_async(self, method: str, data: bytes) -> None:
        for news in read_tick(data):
            self._news[news.session].put_nowait(news)

    async def generate(self, prompt, params, request_id):
        name, start = terms_of(params).session, len(prompt["prompt_token_ids"])
        self._news[name], length, plain = asyncio.Queue(), start, params.logprobs is not None
        answer = self._answer(start, plain or self.fault != "text")
        news = None
        while length < start + params.max_tokens:
            right = answer[length - start :]
            agreed = 0
            if news is not None and news.base == length and self.fault != "no drafts":
                while agreed < min(len(news.ids), len(right) - 1) and news.ids[agreed] == right[agreed]:
                    agreed += 1
            ids = right[: agreed + 1]
            if news is not None and news.ids and self.fault == "takes all":
                ids = [*news.ids, *right[len(news.ids) :][:1]]
            length += len(ids)
            if self.fault == "dies" and not plain:
                raise RuntimeError("out of memory")
            reason = "error" if self.fault == "ends" and not plain else None
            scores = [
                {id: SimpleNamespace(logprob=0.0), 99: SimpleNamespace(logprob=-self.lead)} for id in ids
            ]
            yield SimpleNamespace(
                outputs=[
                    SimpleNamespace(token_ids=ids, logprobs=scores if plain else None, finish_reason=reason)
                ]
            )
            news = await self._news[name].get() if length < start + params.max_tokens else None

    def _answer(self, start: int, right: bool) -> list[int]:
        found = [(7 * start + 3 * place) % 50 for place in range(selftest.TOKENS)]
        if not right:
            found[5] = 99
        return found


def run(fault: str, lead: float = 5.0) -> None:
    asyncio.run(selftest.run(Vllm(fault, lead), CONFIG, PROMPTS))


def test_a_target_that_verifies_passes():
    run("")


def test_a_near_tie_that_rounding_turns_round_is_no_fault(monkeypatch):
    monkeypatch.setattr(selftest, "TEMPERATURES", (0.0,))
    run("text", lead=1e-4)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("text", "writes another text with right drafts than without, at T = 0.0: token 6 is 99"),
        ("takes all", "another text with wrong drafts"),
        ("no drafts", "it verifies no drafts"),
        ("ends", "ended an answer with right drafts: error"),
        ("dies", "does not write a device's answers: RuntimeError"),
    ],
)
def test_each_fault_is_found(fault, says):
    with pytest.raises(SelfTestFailed, match=says):
        run(fault)
