"""An operator at the page: watches a server or gateway, and takes a device's drafts away while its answers are read."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx

from lab.testbed.soak.target import EDGE, SoakTarget
from opensled.core.errors import OpenSledError

SEEN_S = 20.0  # within which the page shows what is waited for
PERIODS = 3  # looks through which a device that is switched off stays without drafts
EVENTS, SWITCH = "/page/events", "/page/devices"

Look = dict[str, Any]
Row = dict[str, Any]


async def use_page(target: SoakTarget) -> None:
    """Where a page is served: strangers are refused, looks come, and drafts of a device are off and on again.

    Raises OpenSledError for anything else.
    """
    if EDGE in target.parts:
        async with _client(target.parts[EDGE].address) as device, looks(device) as shown:
            _require((await anext(shown))["kind"] == "device", "a device shows no page of a device")
    if target.kind.http:
        await _refuses_strangers(target)
        async with _client(target.http, target.operator) as server:
            if target.kind.replicas:
                await _watch_gateway(server, target.kind.replicas)
            else:
                await _switch_one(server)


async def _refuses_strangers(target: SoakTarget) -> None:
    async with _client(target.http, "no-operator") as stranger:
        status = (await stranger.post(SWITCH, json={"device": "a", "drafting": False})).status_code
        _require(status == 401, f"a stranger's switch is answered {status}")
    async with _client(target.http, target.operator) as page:
        foreign = {"Origin": "https://evil.example"}
        status = (await page.get(EVENTS, headers=foreign)).status_code
        _require(status == 403, f"a foreign page is answered {status}")


async def _watch_gateway(server: httpx.AsyncClient, replicas: int) -> None:
    async with looks(server) as shown:
        await _until(shown, lambda look: len(look["replicas"]) == replicas, "not all replicas are shown")


async def _switch_one(server: httpx.AsyncClient) -> None:
    """The device that drafted last; its drafts are on again afterwards, whatever happens."""
    async with looks(server) as shown:
        look = await _until(shown, lambda look: any(map(_drafts, look["devices"])), "no device drafts")
        chosen = next(row for row in look["devices"] if _drafts(row))
        try:
            await _switch(server, chosen, False)
            await _stays_without(shown, chosen)
        finally:
            await _switch(server, chosen, True)
        await _until(shown, lambda look: _row(look, chosen)["drafting"], "a device's drafts stay off")


def _drafts(row: Row) -> bool:
    return bool(row["device"] and row["drafts"] and row["sessions"])


async def _stays_without(shown: AsyncIterator[Look], chosen: Row) -> None:
    await _until(shown, lambda look: not _row(look, chosen)["drafting"], "a device's drafts stay on")
    before = _row(await anext(shown), chosen)["drafts"]  # a step that was under way is over by now
    for _ in range(PERIODS):
        row = _row(await anext(shown), chosen)
        _require(row["drafts"] == before, "drafts of a device are verified while they are switched off")
        _require(not row["hint"], f"a device without drafts is told to draft {row['hint']} tokens")


async def _switch(server: httpx.AsyncClient, row: Row, drafting: bool) -> None:
    body = {"tenant": row["tenant"], "device": row["device"], "drafting": drafting}
    reply = await server.post(SWITCH, json=body)
    _require(reply.status_code == 200, f"a switch is answered {reply.status_code}: {reply.text[:200]}")


def _row(look: Look, chosen: Row) -> Row:
    same = [
        row
        for row in look["devices"]
        if (row["tenant"], row["device"]) == (chosen["tenant"], chosen["device"])
    ]
    _require(bool(same), "a device has left the page")
    return same[0]


async def _until(shown: AsyncIterator[Look], condition: Callable[[Look], bool], otherwise: str) -> Look:
    """The first look of which it holds. Raises OpenSledError with the words of `otherwise` if it never does."""
    deadline = asyncio.get_running_loop().time() + SEEN_S
    async for look in shown:
        if condition(look):
            return look
        _require(asyncio.get_running_loop().time() < deadline, f"{otherwise} after {SEEN_S:g} s")
    raise OpenSledError("the looks have ended")


@asynccontextmanager
async def looks(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[Look]]:
    """What the page shows, look by look."""
    async with client.stream("GET", EVENTS) as response:
        _require(response.status_code == 200, f"{EVENTS} is answered {response.status_code}")
        async with aclosing(_looks(response)) as found:
            yield found


async def _looks(response: httpx.Response) -> AsyncGenerator[Look, None]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


@asynccontextmanager
async def _client(address: str, key: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """Raises OpenSledError for a page that is not there: nothing else is broken now."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{address}", headers=headers, timeout=SEEN_S, trust_env=False
        ) as client:
            yield client
    except httpx.HTTPError as error:
        raise OpenSledError(f"the page at {address} broke off: {type(error).__name__}") from error


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise OpenSledError(otherwise)
