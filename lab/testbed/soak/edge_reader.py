"""A reader of a real `opensled edge` over its OpenAI API: the text must be the truth's, event by event."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from lab.testbed.soak.account import EDGE_LOST, Account, TextSuspect
from lab.testbed.soak.check import Damage
from lab.testbed.soak.questions import Course
from lab.testbed.soak.readers import Reader
from lab.testbed.soak.roads import Roads
from opensled.core.errors import OpenSledError, from_code

TIMEOUT_S = 60.0  # without a byte of an answer; the edge sends heartbeats every 5 s
REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


class EdgeLost(OpenSledError):
    """The device's API is not there, or broke off."""

    code = EDGE_LOST


class EdgeReader(Reader):
    """`url`: of the API, asked for before each request, for the device may be started again."""

    def __init__(
        self,
        url: Callable[[], str],
        roads: Roads,
        course: Course,
        account: Account,
        seed: int,
        key: str = "none",
    ) -> None:
        """`roads`: on which the device reaches its server."""
        super().__init__(roads, course, account, seed)
        self._url = url
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, headers=headers)

    async def _ask(self, number: int) -> None:
        body = {
            **self._course.questions[number].body,
            "model": self._course.info.model_id,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply = _Reply(self._course.truths[number].text)
        try:
            await self._read(body, reply)
        except httpx.HTTPError as error:
            raise EdgeLost(f"the device's API broke off: {type(error).__name__}") from error
        finally:
            self._settle(number, reply)

    async def _read(self, body: dict[str, Any], reply: _Reply) -> None:
        latest = self._account.clock()
        async with self._http.stream("POST", f"{self._url()}/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise _error(json.loads(await response.aread())["error"])
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    reply.done = True
                elif line.startswith("data: "):
                    reply.absorb(json.loads(line[6:]))
                    latest = self._heard(latest)

    def _settle(self, number: int, reply: _Reply) -> None:
        truth, account = self._course.truths[number], self._account
        if not reply.right:
            account.text_suspects.append(TextSuspect(number, reply.text, reply.done, reply.damage))
        if not reply.done:
            return
        account.answers, account.texts = account.answers + 1, account.texts + 1
        account.tokens += reply.tokens
        if reply.right and reply.finish_reason != REASONS[truth.finish_reason]:
            account.wrong(f"an answer over the API ends by {reply.finish_reason!r}")

    async def close(self) -> None:
        await self._http.aclose()
        await self.roads.close()


class _Reply:
    """One streamed answer as it grows, beside the text that it must become."""

    def __init__(self, expected: str) -> None:
        self._expected = expected
        self.text, self.finish_reason, self.tokens, self.done = "", "", 0, False

    def absorb(self, event: dict[str, Any]) -> None:
        """One event; raises what it says went wrong."""
        if "error" in event:
            raise _error(event["error"])
        for choice in event["choices"]:
            self.text += choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.tokens = (event.get("usage") or {}).get("completion_tokens", self.tokens)

    @property
    def right(self) -> bool:
        """Whether the text is the expected one, or its beginning while it grows."""
        return self.text == self._expected[: None if self.done else len(self.text)]

    @property
    def damage(self) -> Damage:
        """Characters stand for tokens: a text does not say where they end."""
        return Damage(wrong=max(1, abs(len(self._expected) - len(self.text))))


def _error(said: dict[str, Any]) -> OpenSledError:
    return from_code(said["code"] or "", said["message"])
