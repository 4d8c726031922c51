"""A device that says the same words to everybody, and one way to ask it."""

import asyncio
import json

import httpx

from http_api.app import build_app
from opensled.core.answer import Chunk, Stats, Task
from opensled.drafting.status import DraftStatus
from tests.loops import in_loop
from tests.tiny_drafts import tiny_info, tiny_tokenizer

WORDS = ("Hello", "", " wörld", " 👍")
STATS = Stats(7, 4, cached_tokens=3, rounds=2, drafted=5, accepted=2, round_tokens=4)
HELLO = [{"role": "user", "content": "Hi"}]
# Optional fields at the values that change nothing.
USUAL = {
    "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "top_logprobs": None,
    "logit_bias": {}, "response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "store": False,
    "parallel_tool_calls": True, "modalities": ["text"], "functions": [], "function_call": "none",
    "user": "me", "metadata": {"a": "b"}, "seed": None, "stop": None, "temperature": None, "stream": None,
    "stream_options": None, "max_tokens": None, "service_tier": "auto",
}  # fmt: skip


class FakeBackend:
    """Says `words` whatever it is asked; remembers what that was, and whether it was let go."""

    rule, server_away, writes_alone, refusal = "match", False, False, ""
    status = DraftStatus(True, "drafts of 4 tokens; the server asks for them", 4, 31.0, 18.0, 200)

    def __init__(
        self, error=None, fail_after=10**6, reason="eos", endless=False, words=WORDS, fails=None, **info
    ) -> None:
        self.info = tiny_info(**{"capabilities": ("guide", "penalties"), **info})
        self.tokenizer = tiny_tokenizer()
        self.error, self.fail_after, self.reason, self.endless = error, fail_after, reason, endless
        self.words = words
        self.coarse_tools: tuple[str, ...] = ()
        self.fails = fails  # the number of the one answer that fails; None: all of them
        self.tasks: list[Task] = []
        self.closed = 0

    @property
    def unready(self) -> str:
        return "the verification server is away" if self.server_away else ""

    @property
    def asked(self) -> list[tuple]:
        return [(task.prompt, task.params, task.stop) for task in self.tasks]

    def answering(self, scope):
        return self.answer

    async def answer(self, task):
        number = len(self.tasks)
        self.tasks.append(task)
        try:
            async for chunk in self._chunks(number, task.top_logprobs):
                yield chunk
        finally:
            self.closed += 1

    async def _chunks(self, number, top):
        if self.coarse_tools:
            yield Chunk("", (), coarse_tools=self.coarse_tools)
        for index, word in enumerate(self.words):
            if index >= self.fail_after and self.fails in (None, number):
                raise self.error
            await asyncio.sleep(0)
            yield self._chunk(word, index + 40, top)
        while self.endless:
            await asyncio.sleep(0.01)
            yield Chunk(".", (9,))
        yield self._chunk("", 0, top, self.reason, STATS)

    def _chunk(self, word, id, top, *end):
        logprobs = () if top is None else (((id, -0.5), *((50 + rank, -1.0 - rank) for rank in range(top))),)
        return Chunk(word, (id,), *end, logprobs=logprobs)


@in_loop
async def through(app, method, path, base_url="http://edge", **request):
    """One request through an app without a socket."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=base_url) as client:
        return await client.request(method, path, **request)


def call(
    backend, path="/v1/chat/completions", body=None, method="POST", content=None, headers=None, lenient=False
):
    kind = {"json": body} if content is None else {"content": content}
    sent = kind if method == "POST" else {}
    return through(build_app(backend, lenient=lenient), method, path, headers=headers, **sent)


def chat(**fields):
    return {"model": "tiny", "messages": HELLO, **fields}


def refusal(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[len("data: ") :] for line in lines]


def named_events(response):
    """The events of a stream, each of which is named as its data says."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in response.text.split("\n\n") if block]
    found = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in found]
    return found


PATH = "/v1/chat/completions"


class AwayBackend(FakeBackend):
    """Says "Hello", lets its reader wait `looks` times with a guess of what may follow, and goes on."""

    def __init__(self, looks=6, local=(), **options):
        super().__init__(**options)
        self.looks, self.local = looks, local

    async def _chunks(self, number, top):
        yield Chunk("Hello", (7,), origins=("local",) if 0 in self.local else ("server",))
        for look in range(1, self.looks + 1):
            await asyncio.sleep(0.02)
            yield Chunk("", (), waiting=10.0 * look, provisional=" guess")
        yield Chunk(" there", (8,), origins=("local",) if 1 in self.local else ("server",))
        stats = Stats(**{**vars(STATS), "local_tokens": len(self.local)})
        yield Chunk("", (9,), "eos", stats, origins=("server",))


def post(backend, path, body, heartbeat=0.05):
    return through(build_app(backend, heartbeat=heartbeat), "POST", path, json=body)


def ask(backend, heartbeat=0.05, **fields):
    return post(backend, PATH, chat(**fields), heartbeat)


def comments_of(response):
    return [line for line in response.text.splitlines() if line.startswith(":")]
