"""A device, or any other server, that runs already, asked over its OpenAI API."""

import re
from typing import Any

import httpx

from lab.testbed.client import StreamedReply, stream_chat, stream_completion
from lab.testbed.load.load import Item
from lab.testbed.load.records import Arrival, Clock, RequestRecord
from opensled.core.errors import OpenSledError, Unreachable, UsageError
from opensled.core.messages import ChatMessage

KEY = "it wants a key; name the file that holds it"
REMEDIES = {401: KEY, 403: KEY, 503: "it is not ready; try again in a moment"}
REMEDY = "is it the address of an API like OpenAI's? Where it lists no models, --model names one"
SILENCE_S = 120.0  # an API that says nothing for so long has failed
Usages = list[tuple[RequestRecord, dict[str, Any]]]  # `usage.opensled` of each request


def client(url: str, key: str = "") -> httpx.AsyncClient:
    """Of the API at `url`, with or without its /v1 or a request's path; raises UsageError for what is no URL."""
    base = re.sub(r"(/v1)?(/(chat/completions|completions|models))?/*$", "", url.strip())
    if not base.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no address of an API; write it as http://HOST:PORT/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=base, headers=headers, timeout=SILENCE_S, trust_env=False)


async def first_model(http: httpx.AsyncClient) -> str:
    """The first model it lists; raises Unreachable, and OpenSledError for an answer of another kind."""
    try:
        reply = await http.get("/v1/models")
        reply.raise_for_status()
        return str(reply.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise OpenSledError(
            f"{http.base_url} answers HTTP {status} to /v1/models: {REMEDIES.get(status, REMEDY)}"
        ) from error
    except httpx.HTTPError as error:
        raise Unreachable(f"no API answers at {http.base_url}: {error}; is it running?") from error
    except (ValueError, LookupError, TypeError) as error:
        raise OpenSledError(f"{http.base_url} lists no model; name one with --model") from error


class HttpDevice:
    """Asks one API. Tokens of an answer are known in all only: each chunk is given its share by characters."""

    def __init__(self, http: httpx.AsyncClient, model: str, clock: Clock, usages: Usages) -> None:
        """`usages` gets what the API tells of the drafts of each request."""
        self._http, self._model, self._clock, self._usages = http, model, clock, usages

    async def ask(self, item: Item, record: RequestRecord) -> None:
        chat = isinstance(item.prompt, tuple) and isinstance(item.prompt[0], ChatMessage)
        stream = stream_chat if chat else stream_completion
        chunks: list[tuple[float, int]] = []  # when a chunk came, and how many characters there are by then
        reply = StreamedReply()
        async for reply in stream(self._http, self._body(item)):
            if len(reply.text) > len(record.text):
                chunks.append((self._clock.now(), len(reply.text)))
                record.text = reply.text
        self._conclude(record, reply, chunks)

    def _body(self, item: Item) -> dict[str, Any]:
        same = ("max_tokens", "temperature", "seed")
        settings = {"model": self._model, **{name: getattr(item, name) for name in same}}
        if isinstance(item.prompt, str):
            return {**settings, "prompt": item.prompt}
        said = [part for part in item.prompt if isinstance(part, ChatMessage)]
        if not said:
            return {**settings, "prompt": list(item.prompt)}
        return {**settings, "messages": [{"role": each.role, "content": each.content} for each in said]}

    def _conclude(self, record: RequestRecord, reply: StreamedReply, chunks: list[tuple[float, int]]) -> None:
        if not chunks:
            raise OpenSledError("the answer is empty")
        tokens = int(reply.usage.get("completion_tokens", len(chunks)))
        record.prompt_tokens = int(reply.usage.get("prompt_tokens", 0))
        record.arrivals = shared(tokens, chunks)
        record.finish_reason = reply.finish_reason or "stop"
        self._usages.append((record, reply.usage.get("opensled") or {}))


def shared(tokens: int, chunks: list[tuple[float, int]]) -> list[Arrival]:
    """`tokens` over chunks of (time, characters so far); every token arrives, and none before its characters."""
    whole = chunks[-1][1]
    totals = [tokens * characters // whole for _, characters in chunks]
    steps = [later - earlier for earlier, later in zip([0, *totals], totals)]
    return [Arrival(time, step) for (time, _), step in zip(chunks, steps)]
