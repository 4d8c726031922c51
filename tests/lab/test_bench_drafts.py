"""`opensled bench drafts`: curves, acceptance and predictions of a made-up server whose time is its own."""

import asyncio
import json
from itertools import accumulate, chain, repeat

import httpx
import pytest

from edge_client.drafters.by_text import Piece
from lab.testbed.bench_drafts import command
from lab.testbed.bench_drafts.agreement import DraftText
from lab.testbed.bench_drafts.config import BenchDraftsConfig
from lab.testbed.bench_drafts.target import find_target
from lab.testbed.bench_drafts.view import table_of
from opensled.cli import main as cli
from tests.draft_stubs import CompletionsHandler, Stub, narrator

WORDS = 8  # of the text that goes round
RIGHT = 4  # of so many draft tokens, one is wrong


def word(place):
    return f" w{place % WORDS}"


class Server:
    """Writes as many texts at once as it has slots, a token of each in steps that last `step_s(rows)` of its own time.

    Drafts, where it has any, are `drafted` tokens long and right but for every `RIGHT`-th place of a text.
    """

    def __init__(self, step_s, slots=64, drafted=0, draft_s=0.0, tells="timings", chat=False):
        self.step_s, self.drafted, self.draft_s, self.tells, self.chat = step_s, drafted, draft_s, tells, chat
        self.now, self.slots, self.bodies = 0.0, asyncio.Semaphore(slots), []
        self.waiting, self.running = [], 0
        self.counts = [0, 0]

    def clock(self):
        return self.now

    async def answer(self, request):
        path = request.url.path
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "made"}]})
        if path == "/metrics" and self.tells == "metrics":
            names = ("draft", "accepted")
            lines = [f'vllm:spec_decode_num_{name}_tokens_total{{a="b"}} {n}.0' for name, n in zip(names, self.counts)]
            return httpx.Response(200, text="\n".join(["vllm:up 1", *lines]))
        if path != ("/v1/chat/completions" if self.chat else "/v1/completions"):
            return httpx.Response(404, json={"error": {"message": "no such path"}})
        body = json.loads(request.content)
        self.bodies.append(body)
        return httpx.Response(200, content=self.stream(body))

    async def stream(self, body):
        async with self.slots:
            self.running += 1
            drafts = self.drafted if body.get("speculative.n_max", 1) else 0
            place, drafted, accepted = 0, 0, 0
            while place < body["max_tokens"]:
                await self.step(1 + drafts)
                right = next(n for n in range(drafts + 1) if n == drafts or (place + n) % RIGHT == RIGHT - 1)
                drafted, accepted = drafted + drafts, accepted + right
                for _ in range(min(right + 1, body["max_tokens"] - place)):
                    yield self.event({"choices": [self.choice(word(place))]})
                    place += 1
            self.counts = [self.counts[0] + drafted, self.counts[1] + accepted]
            self.running -= 1
            self.release()
        told = {"timings": {"draft_n": drafted, "draft_n_accepted": accepted}} if self.tells == "timings" else {}
        yield self.event({"choices": [], "usage": {"completion_tokens": place}, **told})
        yield b"data: [DONE]\n\n"

    def choice(self, text):
        return {"delta": {"content": text}} if self.chat else {"text": text}

    def event(self, document):
        return f"data: {json.dumps(document)}\n\n".encode()

    async def step(self, rows):
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((rows, turn))
        asyncio.ensure_future(self.settle())
        await turn

    async def settle(self):
        for _ in range(50):  # others that are asked at the same time begin
            await asyncio.sleep(0)
        self.release()

    def release(self):
        """The next step, once everybody waits for it."""
        if len(self.waiting) < self.running or not self.waiting:
            return
        rows = sum(rows for rows, _ in self.waiting)
        longest = max(rows for rows, _ in self.waiting) - 1
        self.now += self.step_s(rows) + longest * self.draft_s
        waiting, self.waiting = self.waiting, []
        for _, turn in waiting:
            turn.set_result(None)


def draft(server, draft_s):
    """Knows every text but each `RIGHT`-th place."""

    def after(text):
        written = text.rpartition("Assistant:")[2].count(" w")
        for place in range(written, written + 12):
            server.now += draft_s
            yield Piece((" no" if place % RIGHT == RIGHT - 1 else word(place)).encode())

    return DraftText("made-draft", after)


def measured(server, draft_s=None, **options):
    written = []

    async def run():
        transport = httpx.MockTransport(server.answer)
        async with httpx.AsyncClient(base_url="http://made", transport=transport) as http:
            target = await find_target(http, "", server.clock)
            named = None if draft_s is None else draft(server, draft_s)
            config = BenchDraftsConfig(**{"url": "http://made", "quick": True, "link": "ethernet", **options})
            return await command.measure(target, named, config, lambda d: written.append(dict(d)), server.clock)

    document = asyncio.run(asyncio.wait_for(run(), 60))
    before, after = written
    assert "prediction" in before and "users" not in before and "users" in after
    assert all(len(line) <= 80 for line in table_of(document))
    return document


def flat(rows):
    """A large dense model on a machine that computes much: 64 rows cost as one."""
    return 0.1 + 0.0001 * rows


def steep(rows):
    """Each row costs as much as the first."""
    return 0.05 * rows


@pytest.mark.parametrize(
    ("server", "draft_s", "best"),
    [
        ({"step_s": flat}, 0.001, {"1": "server", "8": "server"}),
        ({"step_s": flat}, 0.09, {"1": "alone", "8": "alone"}),  # the draft itself is too slow
        ({"step_s": steep}, 0.001, {"1": "alone", "8": "alone"}),
    ],
)
def test_x(server, draft_s, best):
    document = measured(Server(**server), draft_s)
    print("\n".join(table_of(document)))
    print(json.dumps({k: v for k, v in document.items() if k != "provenance"}, indent=1))
