"""A rolling restart of the production server under load: real processes, probed, balanced and ended as by a cluster.

    python -m tests.rolling_restart [--http N] [--devices N] [--max-tokens N] [--json]

Each pod is the server of deploy/server with the tiny target; times are those of deploy/kubernetes. It gets connections
while its readiness probe succeeds. One after the other is replaced: a new one becomes ready, then the old one is
deleted. Its preStop hook runs while the cluster's nodes learn that it ends; then come SIGTERM, and SIGKILL after the
grace period. Users stream meanwhile, over HTTP and through devices, each on a connection that it keeps. Exit code 0
only if every answer came whole and is what the target alone writes, and nothing was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from lab.testbed.client import StreamedReply, stream_chat
from lab.testbed.prompts import TARGET, prompts_of
from opensled.core.errors import OpenSledError
from opensled.models.store import model_path
from tests.balancer import balancer
from tests.crowd import Crowd, judge, questions
from tests.loops import cancelled
from tests.manifests import TOKEN, Pod, container, manifest, pod_spec, write_access

# For which connections still come to a pod that is deleted: chosen, what nodes take to hear of it.
LAG_S = 1.0
START_S = 240.0


class Member:
    """A pod, and what its cluster knows of it."""

    def __init__(self, pod: Pod) -> None:
        self.pod, self.ready = pod, False
        self.deleted_at: float | None = None
        self.said = Counter[str]()  # by its readiness probe, once it was ready

    @property
    def takes_connections(self) -> bool:
        return self.ready and (self.deleted_at is None or time.monotonic() < self.deleted_at + LAG_S)

    async def watch(self) -> None:
        """Probe it as the manifests say, until cancelled."""
        probe = container()["readinessProbe"]
        misses = 0
        while True:
            status, body = await asyncio.to_thread(self.pod.probe)
            misses = 0 if status == 200 else misses + 1
            if self.ready:
                self.said[f"{status} {body[:80]}".strip()] += 1
            self.ready = not misses or (self.ready and misses < probe["failureThreshold"])
            await asyncio.sleep(probe["periodSeconds"] if self.ready else 0.2)

    async def until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.ready:
            if self.pod.process.process.poll() is not None or time.monotonic() > deadline:
                raise OpenSledError("a pod does not become ready")
            await asyncio.sleep(0.05)


class Cluster:
    """Two pods or more that are replaced one after the other; use it in an `async with`."""

    def __init__(self, access: Path, replicas: int, pre_stop: float) -> None:
        self._access, self._replicas, self._pre_stop = access, replicas, pre_stop
        self.members = list[Member]()
        self.killed = 0
        self.seconds_to_end = list[float]()  # of each pod, from SIGTERM on
        self._ends = AsyncExitStack()

    async def __aenter__(self) -> Cluster:
        try:
            members = [self._start() for _ in range(self._replicas)]
            await asyncio.gather(*(member.until_ready() for member in members))
        except BaseException:
            await self._ends.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._ends.aclose()

    def ready(self, port: str) -> list[str]:
        return [member.pod.address(port) for member in self.members if member.takes_connections]

    async def roll(self, count: int) -> None:
        """Replace so many of the pods."""
        for old in self.members[:count]:
            await self._start().until_ready()
            await self._delete(old)

    def _start(self) -> Member:
        member = Member(self._ends.enter_context(Pod(self._access)))
        self.members.append(member)
        watching = asyncio.ensure_future(member.watch())
        self._ends.push_async_callback(cancelled, watching)
        return member

    async def _delete(self, member: Member) -> None:
        member.deleted_at = time.monotonic()
        await asyncio.sleep(self._pre_stop)
        grace = pod_spec()["terminationGracePeriodSeconds"] - (time.monotonic() - member.deleted_at)
        process, asked_at = member.pod.process.process, time.monotonic()
        process.terminate()
        while process.poll() is None and time.monotonic() < asked_at + grace:
            await asyncio.sleep(0.05)
        if process.poll() is None:
            self.killed += 1
            process.kill()
        self.seconds_to_end.append(time.monotonic() - asked_at)
        self.members.remove(member)


@dataclass
class HttpUser:
    """A client that asks one question after another on one connection, and never asks twice."""

    bodies: list[dict[str, Any]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    replies: list[StreamedReply | None] = field(default_factory=list)  # None: it broke off
    errors: list[str] = field(default_factory=list)

    async def ask(self, http: httpx.AsyncClient, enough: asyncio.Event) -> None:
        while not enough.is_set():
            body = self.bodies[len(self.asked) % len(self.bodies)]
            self.asked.append(body)
            try:
                self.replies.append([reply async for reply in stream_chat(http, body)][-1])
            except OpenSledError as error:
                self.errors.append(str(error))
                self.replies.append(None)

    async def another_answer(self) -> None:
        """Until it has begun an answer after now, and has got all of it."""
        enough = len(self.replies) + 2
        while len(self.replies) < enough:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def clients(
    address: str, users: Sequence[HttpUser], trusted: ssl.SSLContext
) -> AsyncIterator[asyncio.Event]:
    """While inside, these users ask; set what this yields, and they end after the answer under way."""
    enough = asyncio.Event()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with AsyncExitStack() as ends:
        asking = []
        for user in users:
            http = httpx.AsyncClient(
                base_url=f"https://{address}", headers=headers, verify=trusted, timeout=120, trust_env=False
            )
            asking.append(asyncio.ensure_future(user.ask(await ends.enter_async_context(http), enough)))
        try:
            yield enough
            enough.set()
            await asyncio.gather(*asking)
        finally:
            await cancelled(*asking)


async def roll_under_load(
    http: int, devices: int, max_tokens: int, replicas: int, rolled: int, pre_stop: float
) -> dict[str, Any]:
    """Replace `rolled` of `replicas` pods under so many users; what became of all answers.

    `pre_stop`: seconds of the hook, -1 = those of the manifests. `max_tokens`: of an answer.
    """
    wait = pre_stop if pre_stop >= 0 else container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    users = [HttpUser(prompts_of(number, 4, max_tokens)) for number in range(http)]
    with tempfile.TemporaryDirectory() as name:
        access = Path(name)
        write_access(access)
        trusted = ssl.create_default_context(cafile=str(access / "ca.crt"))
        async with (
            Cluster(access, replicas, wait) as cluster,
            balancer(lambda: cluster.ready("grpc")) as grpc,
            balancer(lambda: cluster.ready("http")) as web,
            Crowd(
                grpc, devices, questions(8, max_tokens), token=TOKEN, tls=True, tls_ca=access / "ca.crt"
            ) as crowd,
            clients(web, users, trusted) as enough,
        ):
            everybody = [crowd.another_answer, *(user.another_answer for user in users)]
            await asyncio.gather(crowd.live(), *(answered() for answered in everybody))
            watched = cluster.members[:rolled]
            await cluster.roll(rolled)
            await asyncio.gather(*(answered() for answered in everybody))
            enough.set()
            await crowd.finish()
    await asyncio.to_thread(judge, crowd.users)
    right = await asyncio.to_thread(_right, users)
    return {
        "pods replaced": rolled,
        "seconds from SIGTERM to the end": [round(each, 1) for each in cluster.seconds_to_end],
        "killed": cluster.killed,
        "readiness said": [dict(member.said) for member in watched],
        "http": {
            "answers": sum(len(user.asked) for user in users),
            "right": right,
            "errors": [error for user in users for error in user.errors],
        },
        "devices": {
            "answers": sum(len(user.asked) for user in crowd.users),
            "right": sum(sum(user.right) for user in crowd.users),
            "errors": [error for user in crowd.users for error in user.errors],
            "moved": sum(len(user.resumptions) for user in crowd.users),
        },
    }


def _right(users: Sequence[HttpUser]) -> int:
    """Answers over HTTP that are whole and, token for token, what the target alone writes."""
    from lab.testbed.forcing import follow
    from lab.testbed.reference import Reference

    reference, known = Reference(model_path(TARGET), dtype="float64"), dict[str, bool]()
    count = 0
    for user in users:
        for body, reply in zip(user.asked, user.replies):
            if reply is None or reply.finish_reason is None:
                continue
            key = json.dumps([body, reply.text])
            if key not in known:
                known[key] = follow(reference, body, reply.text, 0.0) is not None
            count += known[key]
    return count


def nothing_lost(found: dict[str, Any]) -> bool:
    """Whether every answer came, and came right."""
    sides = found["http"], found["devices"]
    return not found["killed"] and all(
        side["answers"] == side["right"] > 0 and not side["errors"] for side in sides
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.rolling_restart", description=__doc__)
    parser.add_argument("--http", type=int, default=6, metavar="N", help="users over HTTP")
    parser.add_argument("--devices", type=int, default=6, metavar="N", help="users through devices")
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help="most tokens of an answer")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(arguments)
    replicas = manifest("Deployment")["spec"]["replicas"]
    found = asyncio.run(roll_under_load(given.http, given.devices, given.max_tokens, replicas, replicas, -1))
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name}: {value}")
    return 0 if nothing_lost(found) else 1


if __name__ == "__main__":
    sys.exit(main())
