"""A server that runs already: what it writes and when, for one text and for several at once, and what it tells of its
drafts."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, product
from statistics import median
from typing import Any, NamedTuple

import httpx

from lab.benchmarks.program import say
from lab.testbed.client import StreamedReply, stream_chat, stream_completion
from lab.testbed.load.http_device import first_model, shared
from lab.testbed.load.records import Arrival
from opensled.core.errors import OpenSledError, Unauthorized

APIS = {"completions": stream_completion, "chat": stream_chat}
FIXED = {"ignore_eos": True, "cache_prompt": False}
NO_DRAFTS = {"speculative.n_max": 0}  # a llama-server drafts nothing for this request
WORDS = (
    (*FIXED, *NO_DRAFTS),
    tuple(FIXED),
    ("ignore_eos",),
    (),
)  # servers refuse words that they do not know
VLLM_COUNTS = re.compile(
    r"^vllm:spec_decode_num_(draft|accepted)_tokens_total(?:\{.*\})? (\S+)", re.MULTILINE
)
AMONG = 3  # other texts, beside which a text is asked again
Counts = tuple[int, int]  # draft tokens, and those accepted
_numbers = count(104_729, 7_919)  # of a process: no prompt comes twice


class Text(NamedTuple):
    """One answer."""

    pieces: list[str]  # as they came; of most servers each is a token
    arrivals: list[Arrival]
    counts: Counts | None  # None = its answer tells nothing of drafts


class Batch(NamedTuple):
    """Texts of at most `tokens` tokens that were asked at the same time."""

    texts: list[Text]
    tokens: int
    counts: Counts | None  # None = the server does not tell

    @property
    def step_s(self) -> float:
        """Seconds a token of each text, while all of them were written; 0 = there was no such time."""
        arrivals = [text.arrivals for text in self.texts]
        start, end = max(each[0].time for each in arrivals), min(each[-1].time for each in arrivals)
        tokens = sum(each.tokens for one in arrivals for each in one if start < each.time <= end)
        return (end - start) * len(arrivals) / tokens if tokens and end > start else 0.0


@dataclass(frozen=True)
class Target:
    """One model of a server."""

    http: httpx.AsyncClient
    model: str
    api: str
    words: Collection[str]  # of FIXED and NO_DRAFTS, those that it takes
    clock: Callable[[], float] = time.monotonic

    async def ask(self, prompt: str, tokens: int, **more: Any) -> Text:
        """A greedy answer. `more`: of the request, for a server that takes such words."""
        said = (
            {"messages": [{"role": "user", "content": prompt}]} if self.api == "chat" else {"prompt": prompt}
        )
        taken = {word: value for word, value in {**FIXED, **more}.items() if word in self.words}
        body = {"model": self.model, "max_tokens": tokens, "temperature": 0, **said, **taken}
        pieces, times, whole, reply = list[str](), list[float](), "", StreamedReply()
        async for reply in APIS[self.api](self.http, body):
            if len(piece := (reply.thoughts + reply.text)[len(whole) :]):
                pieces.append(piece)
                times.append(self.clock())
                whole += piece
        if not pieces:
            raise OpenSledError(f"the answer of {self.model} at {self.http.base_url} is empty")
        chunks = list(zip(times, accumulate(map(len, pieces))))
        tokens = int(reply.usage.get("completion_tokens") or len(pieces))
        return Text(pieces, shared(tokens, chunks), _counts_of(reply))

    async def together(self, prompts: Sequence[str], tokens: int, **more: Any) -> Batch:
        """All of them at the same time."""
        before = await self._metrics()
        texts = await asyncio.gather(*(self.ask(prompt, tokens, **more) for prompt in prompts))
        after = await self._metrics()
        told = [text.counts for text in texts if text.counts]
        if before and after:
            told = [(after[0] - before[0], after[1] - before[1])]
        return Batch(
            texts, tokens, (sum(each[0] for each in told), sum(each[1] for each in told)) if told else None
        )

    async def _metrics(self) -> Counts | None:
        """Those of a vLLM; None = another server, or one that shows none."""
        text = await self._fetched("GET", "/metrics")
        found = [(kind, int(float(value))) for kind, value in VLLM_COUNTS.findall(text)]
        drafted, accepted = (sum(n for kind, n in found if kind == name) for name in ("draft", "accepted"))
        return (drafted, accepted) if re.search(r"^vllm:", text, re.MULTILINE) else None

    async def framed(self, question: str) -> str:
        """A question as a text to go on with: by the model's own chat template where the server applies it."""
        said = await self._fetched(
            "POST", "/apply-template", {"messages": [{"role": "user", "content": question}]}
        )
        found = json.loads(said).get("prompt") if said.startswith("{") else None
        return found if isinstance(found, str) else f"User: {question}\n\nAssistant:"

    async def _fetched(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        reply = await self.http.request(method, path, json=body)
        return reply.text if reply.status_code == 200 else ""


def _counts_of(reply: StreamedReply) -> Counts | None:
    if reply.timings:  # of a llama-server, which leaves the numbers out where it does not draft
        return reply.timings.get("draft_n", 0), reply.timings.get("draft_n_accepted", 0)
    told = reply.usage.get("opensled")
    return (int(told.get("drafted", 0)), int(told.get("accepted", 0))) if told else None


async def find_target(
    http: httpx.AsyncClient, wanted: str, clock: Callable[[], float] = time.monotonic
) -> Target:
    """The model `wanted`, "" = the first, by the first API that answers. Raises OpenSledError."""
    model = wanted or await first_model(http)
    for api, words in product(APIS, WORDS):
        target = Target(http, model, api, words, clock)
        try:
            await target.ask("Once upon a time", 4, **NO_DRAFTS)
            return target
        except Unauthorized as error:
            raise Unauthorized(
                f"{http.base_url} wants another key: --token-file FILE, or OPENAI_API_KEY"
            ) from error
        except OpenSledError as error:
            why = " ".join(str(error).split())[:300]
    raise OpenSledError(
        f"{model} at {http.base_url} answers neither /v1/completions nor /v1/chat/completions: {why}"
    )


def stories(number: int) -> list[str]:
    """Prompts that begin unlike all others, so that nothing of them is in a cache."""
    return [f"{next(_numbers)} is the number of a long story. It begins like this:" for _ in range(number)]


async def curve(
    target: Target,
    levels: Sequence[int],
    prompts: Callable[[int], list[str]],
    tokens: int,
    repeats: int,
    **more: Any,
) -> dict[str, Any]:
    """Speeds with so many texts at once, and why it ends early."""
    found: list[dict[str, Any]] = []
    for level in levels:
        say(f"{level} text{'s' * (level > 1)} at once ...")
        try:
            batches = [await target.together(prompts(level), tokens, **more) for _ in range(repeats)]
        except OpenSledError as error:
            if not found:
                raise
            return {"levels": found, "end": f"{level} texts at once fail: {error}"}
        if not all(batch.step_s for batch in batches):
            short = any(
                sum(a.tokens for a in text.arrivals) < tokens for batch in batches for text in batch.texts
            )
            why = (
                "some ended before others began"
                if short
                else "some wait until others end (llama-server: -np 32)"
            )
            return {"levels": found, "end": f"of {level} texts at once {why}"}
        found.append(_level(level, batches))
    return {"levels": found, "end": ""}


def _level(level: int, batches: Sequence[Batch]) -> dict[str, Any]:
    steps, told = [batch.step_s for batch in batches], [batch.counts for batch in batches if batch.counts]
    return {
        "texts": level,
        "ms": round(1000 * median(steps), 3),
        "tokens_per_s": round(level / median(steps), 3),
        "samples_ms": [round(1000 * each, 3) for each in steps],
        "drafted": sum(drafted for drafted, _ in told) if told else None,
        "accepted": sum(accepted for _, accepted in told) if told else None,
    }


async def asked_again(target: Target, tokens: int) -> dict[str, bool]:
    """Whether one text is the same alone, and among others."""
    prompt, *others = stories(1 + AMONG)
    first, again = await target.ask(prompt, tokens), await target.ask(prompt, tokens)
    among = (await target.together([prompt, *others], tokens)).texts[0]
    wanted, *found = ["".join(text.pieces) for text in (first, again, among)]
    return dict(zip(("alone", "among_others"), (text == wanted for text in found)))
