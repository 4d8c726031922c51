"""A server that runs already: which of its APIs answers, what it writes and when, and what it tells of its drafts."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import httpx

from lab.testbed.client import StreamedReply, stream_chat, stream_completion
from lab.testbed.load.http_device import first_model, shared
from lab.testbed.load.records import Arrival
from opensled.core.errors import OpenSledError, Unauthorized

APIS = {"completions": stream_completion, "chat": stream_chat}
# Fixed lengths and no cache, where a server knows the words; others refuse them, or leave them out
FIXED = {"ignore_eos": True, "cache_prompt": False}
NO_DRAFTS = {"speculative.n_max": 0}  # a llama-server drafts no token of this request
VLLM_COUNTS = re.compile(
    r"^vllm:spec_decode_num_(draft|accepted)_tokens_total(?:\{.*\})? (\S+)", re.MULTILINE
)


class Counts(NamedTuple):
    """Draft tokens so far."""

    drafted: int
    accepted: int


class Text(NamedTuple):
    """One answer."""

    pieces: list[str]  # as they came; of most servers each is a token
    arrivals: list[Arrival]
    asked: int  # tokens
    counts: Counts | None  # None = its answer tells nothing of drafts

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Batch(NamedTuple):
    """Texts that were written at the same time."""

    texts: list[Text]
    counts: Counts | None  # None = the server does not tell

    @property
    def step_s(self) -> float:
        """Seconds a token of each text, while all of them were written; 0 = there was no such time."""
        arrivals = [text.arrivals for text in self.texts]
        start, end = max(each[0].time for each in arrivals), min(each[-1].time for each in arrivals)
        tokens = sum(each.tokens for one in arrivals for each in one if start < each.time <= end)
        return (end - start) * len(arrivals) / tokens if tokens and end > start else 0.0

    @property
    def is_short(self) -> bool:
        """Whether a text ended by itself before its length."""
        return any(sum(each.tokens for each in text.arrivals) < text.asked for text in self.texts)


@dataclass(frozen=True)
class Target:
    """One model of a server."""

    http: httpx.AsyncClient
    model: str
    api: str
    fixed: dict[str, Any]
    clock: Callable[[], float] = time.monotonic

    async def ask(self, prompt: str, tokens: int, **more: Any) -> Text:
        """A greedy answer. `more`: of the request, for servers that take such words."""
        said = (
            {"messages": [{"role": "user", "content": prompt}]} if self.api == "chat" else {"prompt": prompt}
        )
        same = {"model": self.model, "max_tokens": tokens, "temperature": 0, "seed": 0}
        body = {**same, **said, **self.fixed, **(more if self.fixed else {})}
        pieces, times, known, reply = list[str](), list[float](), 0, StreamedReply()
        async for reply in APIS[self.api](self.http, body):
            whole = reply.thoughts + reply.text
            if len(whole) > known:
                pieces.append(whole[known:])
                times.append(self.clock())
                known = len(whole)
        if not pieces:
            raise OpenSledError(f"the answer of {self.model} at {self.http.base_url} is empty")
        counted = int(reply.usage.get("completion_tokens") or len(pieces))
        chunks = list(zip(times, accumulate(map(len, pieces))))
        return Text(pieces, shared(counted, chunks), tokens, _counts_of(reply))

    async def together(self, prompts: Sequence[str], tokens: int, **more: Any) -> Batch:
        """All of them at the same time."""
        before = await self._metrics()
        texts = await asyncio.gather(*(self.ask(prompt, tokens, **more) for prompt in prompts))
        if counts := [text.counts for text in texts if text.counts]:
            return Batch(texts, Counts(*map(sum, zip(*counts))))
        after = await self._metrics()
        return Batch(texts, Counts(*(b - a for a, b in zip(before, after))) if before and after else None)

    async def _metrics(self) -> Counts | None:
        """Those of a vLLM; None = another server, or one that shows none."""
        text = await self._fetched("GET", "/metrics")
        if not re.search(r"^vllm:", text, re.MULTILINE):
            return None
        found = [(kind, int(float(value))) for kind, value in VLLM_COUNTS.findall(text)]
        return Counts(
            *(sum(value for kind, value in found if kind == name) for name in ("draft", "accepted"))
        )

    async def framed(self, question: str) -> str:
        """A question as a text to go on with: by the model's own chat template where the server applies it."""
        messages = {"messages": [{"role": "user", "content": question}]}
        said = await self._fetched("POST", "/apply-template", messages)
        found = json.loads(said).get("prompt") if said.startswith("{") else None
        return found if isinstance(found, str) else f"User: {question}\n\nAssistant:"

    async def _fetched(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        """ "" = it has nothing there."""
        try:
            reply = await self.http.request(method, path, json=body)
        except httpx.HTTPError:
            return ""
        return reply.text if reply.status_code == 200 else ""


def _counts_of(reply: StreamedReply) -> Counts | None:
    if reply.timings:  # of a llama-server, which leaves the numbers out where it does not draft
        return Counts(reply.timings.get("draft_n", 0), reply.timings.get("draft_n_accepted", 0))
    told = reply.usage.get("opensled")
    return Counts(int(told.get("drafted", 0)), int(told.get("accepted", 0))) if told else None


async def find_target(
    http: httpx.AsyncClient, wanted: str, clock: Callable[[], float] = time.monotonic
) -> Target:
    """The model `wanted`, "" = the first, by the first API that answers. Raises OpenSledError."""
    model = wanted or await first_model(http)
    for api, fixed in itertools.product(APIS, (FIXED, {})):
        target = Target(http, model, api, fixed, clock)
        try:
            await target.ask("Once upon a time", 4)
            return target
        except Unauthorized as error:
            raise Unauthorized(
                f"{http.base_url} wants a key: --token-file FILE, or OPENAI_API_KEY"
            ) from error
        except OpenSledError as error:
            why = " ".join(str(error).split())[:300]
    raise OpenSledError(
        f"{model} at {http.base_url} answers neither /v1/completions nor /v1/chat/completions: {why}"
    )
