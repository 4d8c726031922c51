"""A server that runs already: what it writes and when, for several texts at once, and what it tells of its drafts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from statistics import fmean, median
from typing import Any

import httpx

from lab.benchmarks.program import say
from lab.testbed.client import StreamedReply, stream_chat, stream_completion
from lab.testbed.load.http_device import first_model
from opensled.core.errors import OpenSledError

Ask = Callable[[int], list[str]]  # so many questions
Found = dict[str, Any]
Words = Mapping[str, Any]
APIS = {"completions": stream_completion, "chat": stream_chat}
# For texts of one length, without tokens that show nothing; by the last one a llama-server drafts nothing
FIXED: Words = {"ignore_eos": True, "min_tokens": 0, "cache_prompt": False, "speculative.n_max": 0}
OWN_ENDS: Words = {"ignore_eos": False, "min_tokens": 0}
AS_IT_IS: Words = {"speculative.n_max": None}
SHARED = 0.05  # of the time of several texts, in which all of them are written: less is none
STEPS = 3  # that are timed at least
_numbers = count(104_729, 7_919)  # of a process: no prompt comes twice


@dataclass(frozen=True)
class Target:
    """One model of a server."""

    http: httpx.AsyncClient
    api: str
    body: dict[str, Any]  # of each request

    async def ask(self, question: str, other: Words) -> StreamedReply:
        """A greedy answer. `other`: of FIXED, where the server takes that."""
        body = {word: other.get(word, value) for word, value in self.body.items()}
        chat = {"messages": [{"role": "user", "content": question}]}
        body |= chat if self.api == "chat" else {"prompt": frame(question)}
        reply = [StreamedReply(), *[each async for each in APIS[self.api](self.http, body)]][-1]
        if not reply.pieces:
            raise OpenSledError(f"the answer of {body['model']} at {self.http.base_url} is empty")
        return reply

    async def together(self, questions: Sequence[str], other: Words) -> tuple[float, list[int]]:
        """Seconds of a step in which all of them are answered, 0 = there was none, and the drafts of all."""
        before = await self._metrics()
        replies = await asyncio.gather(*(self.ask(question, other) for question in questions))
        start, end = max(reply.pieces[0][0] for reply in replies), min(map(_end, replies))
        start += (end - start) / 4  # what was held back at first comes before
        tokens = fmean(_within(reply, start, end) for reply in replies)
        is_timed = tokens >= STEPS and end - start >= SHARED * (end - replies[0].started)
        drafts = [late - early for early, late in zip(before, await self._metrics())]
        return (end - start) / tokens if is_timed else 0.0, drafts or _sums(map(_drafts, replies))

    async def _metrics(self) -> list[int]:
        """The drafts of a vLLM so far; empty: another server, or one that shows none."""
        page = (await self.http.get("/metrics")).text
        lines = r"(?m)^vllm:spec_decode_num_%s_tokens_total.* (\S+)$"
        told = [re.findall(lines % name, page) for name in ("draft", "accepted")]
        return [round(sum(map(float, each))) for each in told] if "vllm:" in page else []


def frame(question: str) -> str:
    """A text that goes on with its answer, also of a model without chats."""
    return f"User: {question}\n\nAssistant:"


def written(reply: StreamedReply) -> list[str]:
    """Its pieces, of most servers each a token."""
    return [piece for _, piece in reply.pieces]


def _end(reply: StreamedReply) -> float:
    return reply.started + reply.seconds


def _within(reply: StreamedReply, start: float, end: float) -> float:
    """Tokens that came in a span of it. Those that show nothing, such as special ones, come evenly."""
    times = [moment for moment, _ in reply.pieces]
    others = int(reply.usage.get("completion_tokens") or len(times)) - len(times)
    shown = sum(start < moment <= end for moment in times)
    return shown + others * (end - start) / (_end(reply) - times[0] or 1.0)


def _drafts(reply: StreamedReply) -> list[int]:
    if reply.timings:  # of a llama-server, which leaves the numbers out where it does not draft
        return [reply.timings.get(name, 0) for name in ("draft_n", "draft_n_accepted")]
    told = reply.usage.get("opensled")
    return [told.get(name, 0) for name in ("drafted", "accepted")] if told else []


def _sums(drafts: Iterable[Sequence[int]]) -> list[int]:
    """Of several texts; empty where one tells nothing."""
    return [sum(each) for each in zip(*drafts)]


async def find(http: httpx.AsyncClient, wanted: str, tokens: int) -> Target:
    """The model `wanted`, "" = the first, by the first API that answers; it is warm then. Raises OpenSledError."""
    model, why = wanted or await first_model(http), ""
    for api, words in product(APIS, ({**FIXED, "min_tokens": tokens}, {"ignore_eos": True}, {})):
        target = Target(http, api, {"model": model, "max_tokens": tokens, "temperature": 0, **words})
        try:
            await target.ask(stories(1)[0], {})
            return target
        except OpenSledError as error:
            why = " ".join(str(error).split())[:300]
    raise OpenSledError(f"{model} at {http.base_url}: {why}; --model names another one, --token-file its key")


def stories(number: int) -> list[str]:
    """Questions that begin unlike all others, so that nothing of them is in a cache."""
    return [f"{next(_numbers)} is the number of a long story. Tell it." for _ in range(number)]


async def curve(target: Target, levels: Sequence[int], ask: Ask, repeats: int, other: Words) -> Found:
    """Speeds with so many texts at once, and why it ends early."""
    found, end = list[Found](), ""
    for level in levels:
        say(f"{level} text{'s' * (level > 1)} at once ...")
        try:
            seconds, drafts = zip(*[await target.together(ask(level), other) for _ in range(repeats)])
        except (OpenSledError, httpx.HTTPError) as error:
            end = f"of {level} texts at once some fail: {error}"
            if not found:
                raise OpenSledError(end) from error
            break
        timed = [each for each in seconds if each]
        if 2 * len(timed) <= repeats:
            end = f"of {level} texts at once some end before all are under way (llama-server: -np 32)"
            break
        step = median(timed)
        samples = [round(1000 * each, 3) for each in timed]
        entry = {"texts": level, "ms": round(1000 * step, 3), "tokens_per_s": round(level / step, 3)}
        told = dict(zip(("drafted", "accepted"), _sums(drafts) or (None, None)))
        found.append({**entry, "samples_ms": samples, **told})
    return {"levels": found, "end": end}


async def asked_again(target: Target) -> dict[str, bool]:
    """Whether one text is the same alone, and among three others."""
    first, *others = stories(4)
    alone = [await target.ask(first, AS_IT_IS) for _ in range(2)]
    among = await asyncio.gather(*(target.ask(each, AS_IT_IS) for each in (first, *others)))
    wanted, *found = ("".join(written(reply)) for reply in (*alone, among[0]))
    return {name: text == wanted for name, text in zip(("alone", "among_others"), found)}
