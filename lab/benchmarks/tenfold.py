"""Ten times the users that a server has places for: real processes with the tiny target, over HTTP and through devices.

    python -m lab.benchmarks.tenfold [--quick] [--seconds S] [--out FILE]

Four tenants. At 1x each has an equal part of as many users as there are places. At 10x one of them has eight tenths of
all users, and each other one still more than its part of the places. A user asks again after each answer; one who is
sent away comes back when it is told to. Each answer is compared with the one that the idle server gave.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from lab.benchmarks.program import exit_code, parser_of, pinned, say, write_json
from lab.testbed.processes import QUIET, Process, free_port
from lab.testbed.provenance import provenance
from opensled.core.files import write_whole

PLACES, TIMES = 8, 10
TENANTS = ("greedy", "a", "b", "c")
SHARE_OF_GREEDY = 0.8  # of the users at 10x
TOKENS, SHORT = 48, 8  # of an answer, and of one that looks whether the server has recovered
PROMPTS = ("def area(", "Turn on the kitchen light.", "The sum of 3 and 4 is", "import json\n", "Once", "{")
SERVER_CORE, OTHERS_CORE = 0, 1
RECOVERED = 1.5  # times the idle latency
PATIENCE_S = 60.0
ROADS = ("http", "devices")
Texts = Mapping[str, str]


@dataclass
class Tally:
    """What the users of one phase saw."""

    seconds: float
    tokens: Counter[str] = field(default_factory=Counter)  # of whole answers, by tenant
    latencies: list[float] = field(default_factory=list)
    sent_away: int = 0  # 429 with a time to come back
    faults: Counter[str] = field(default_factory=Counter)  # everything else

    def figures(self) -> dict[str, Any]:
        each = {tenant: round(self.tokens[tenant] / self.seconds, 1) for tenant in TENANTS}
        cuts = statistics.quantiles(self.latencies, n=20) if len(self.latencies) > 1 else [0.0] * 19
        return {
            "tokens/s": round(self.tokens.total() / self.seconds, 1),
            "tokens/s of tenants": each,
            "most over least": round(max(each.values()) / max(0.1, min(each.values())), 2),
            "answers": len(self.latencies),
            "seconds of an answer, p50": round(cuts[9], 3),
            "seconds of an answer, p95": round(cuts[18], 3),
            "sent away with a time": self.sent_away,
            "faults": dict(self.faults),
        }


def users(times: int) -> dict[str, int]:
    """How many users each tenant has at so many times the places."""
    if times == 1:
        return dict.fromkeys(TENANTS, PLACES // len(TENANTS))
    others = round(PLACES * times * (1 - SHARE_OF_GREEDY) / (len(TENANTS) - 1))
    return {"greedy": PLACES * times - 3 * others, "a": others, "b": others, "c": others}


class Road:
    """The ways on which the tenants' users reach one server, each from an address of its own."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        """`addresses`: of the API that each tenant asks, HOST:PORT."""
        self._http = {
            tenant: httpx.AsyncClient(
                base_url=f"http://{addresses[tenant]}",
                headers={"authorization": f"Bearer {tenant}"},
                transport=httpx.AsyncHTTPTransport(
                    local_address=f"127.0.0.{number}", limits=httpx.Limits(max_connections=None)
                ),
                timeout=PATIENCE_S,
            )
            for number, tenant in enumerate(TENANTS, 2)
        }

    async def ask(self, tenant: str, prompt: str, tokens: int = TOKENS) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return await self._http[tenant].post("/v1/completions", json=body)

    async def close(self) -> None:
        for http in self._http.values():
            await http.aclose()


async def under_load(road: Road, known: Texts, times: int, seconds: float) -> Tally:
    """The users of one phase, from their first question to their last one; then they leave, whatever runs."""
    tally = Tally(seconds)
    count = users(times)
    every = [
        asyncio.ensure_future(_user(road, known, tenant, number, tally))
        for tenant in TENANTS
        for number in range(count[tenant])
    ]
    await asyncio.sleep(seconds)
    for task in every:
        task.cancel()
    for ended in await asyncio.gather(*every, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            tally.faults[type(ended).__name__] += 1
    return tally


async def _user(road: Road, known: Texts, tenant: str, number: int, tally: Tally) -> None:
    while True:
        prompt = PROMPTS[number % len(PROMPTS)]
        number += 1
        began = time.monotonic()
        try:
            response = await road.ask(tenant, prompt)
        except httpx.HTTPError as error:
            tally.faults[type(error).__name__] += 1
            await asyncio.sleep(1)
            continue
        if response.status_code == 429 and "retry-after" in response.headers:
            tally.sent_away += 1
            await asyncio.sleep(float(response.headers["retry-after"]))
        elif response.status_code != 200:
            tally.faults[f"{response.status_code} {response.text[:80]}"] += 1
            await asyncio.sleep(1)
        elif response.json()["choices"][0]["text"] != known[prompt]:
            tally.faults["another text"] += 1
        else:
            tally.latencies.append(time.monotonic() - began)
            tally.tokens[tenant] += response.json()["usage"]["completion_tokens"]


async def idle_latency(road: Road) -> float:
    """Median seconds of a short answer of an idle server."""
    return statistics.median([await _short(road) for _ in range(10)])


async def _short(road: Road) -> float:
    """Seconds of a short answer; PATIENCE_S for none."""
    began = time.monotonic()
    response = await road.ask("a", PROMPTS[0], SHORT)
    return time.monotonic() - began if response.status_code == 200 else PATIENCE_S


async def recovery(road: Road, idle: float) -> float:
    """Seconds until two answers in a row take no more than RECOVERED times what they took on the idle server."""
    began, good = time.monotonic(), 0
    while good < 2 and time.monotonic() < began + PATIENCE_S:
        good = good + 1 if await _short(road) <= RECOVERED * idle else 0
    return time.monotonic() - began


async def measured(road: Road, seconds: float) -> dict[str, Any]:
    """1x, 10x, what comes after it, and 1x again."""
    try:
        known = {}
        for prompt in PROMPTS:
            response = await road.ask("a", prompt)
            response.raise_for_status()
            known[prompt] = response.json()["choices"][0]["text"]
        idle = await idle_latency(road)
        found: dict[str, Any] = {"idle latency, s": round(idle, 4)}
        for name, times in (("1x", 1), ("10x", TIMES)):
            found[name] = (await under_load(road, known, times, seconds)).figures()
            found[f"recovery after {name}, s"] = round(await recovery(road, idle), 3)
            say(f"{name}: {json.dumps(found[name])}; recovery {found[f'recovery after {name}, s']} s")
        found["goodput at 10x over 1x"] = round(found["10x"]["tokens/s"] / found["1x"]["tokens/s"], 3)
        return found
    finally:
        await road.close()


def served(stack: ExitStack, folder: Path) -> tuple[str, str]:
    """A server with tenants whose tokens are their names: addresses of gRPC and of HTTP."""
    write_whole(folder / "tokens", "".join(f"{name} {name}\n" for name in TENANTS).encode(), private=True)
    api = f"127.0.0.1:{free_port()}"
    command = ("serve", "--model", "tiny", "--threads", "1", "--listen", "127.0.0.1:0", "--http", api, *QUIET)
    limits = ("--max-sessions", str(PLACES), "--tokens", str(folder / "tokens"))
    with pinned(SERVER_CORE):
        server = stack.enter_context(Process((*command, *limits), isolated=True))
    return server.wait_ready(), api


def devices(stack: ExitStack, folder: Path, server: str) -> dict[str, str]:
    """A device for each tenant, by its API's address."""
    found = {}
    for tenant in TENANTS:
        write_whole(folder / tenant, tenant.encode(), private=True)
        words = ("--server", server, "--token-file", str(folder / tenant), "--drafter", "lookup", *QUIET)
        edge = ("edge", "--http", "127.0.0.1:0", *words)
        found[tenant] = stack.enter_context(Process(edge, isolated=True)).wait_ready()
    return found


def run(road: str, seconds: float) -> dict[str, Any]:
    """One server of its own for each road."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        server, api = served(stack, Path(name))
        with pinned(OTHERS_CORE):
            addresses = dict.fromkeys(TENANTS, api) if road == "http" else devices(stack, Path(name), server)
            say(f"== {road}")
            return asyncio.run(measured(Road(addresses), seconds))


def main(words: list[str] | None = None) -> int:
    parser = parser_of("tenfold", __doc__)
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that it works")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase; default %(default)s")
    parser.add_argument("--out", type=Path, help="JSON file")
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(3.0 if arguments.quick else arguments.seconds, arguments.out))


def _measure(seconds: float, out: Path | None) -> int:
    origin = provenance()
    found = {road: run(road, seconds) for road in ROADS}
    document = {
        "figure": "tenfold",
        "label": "real",
        "places": PLACES,
        "seconds of a phase": seconds,
        "users at 1x": users(1),
        "users at 10x": users(TIMES),
        **found,
        "provenance": origin,
    }
    print(json.dumps(document, indent=1))
    if out:
        write_json(out, document)
    faults = [road for road in ROADS if found[road]["1x"]["faults"] or found[road]["10x"]["faults"]]
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
