"""A server with an emulated accelerator for several tenants, and streams of theirs: who gets what, and when."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_client.link.link import Endpoint, GrpcStream, Link
from lab.testbed.emulation.emulated_accelerator import environment
from lab.testbed.fleet import Server
from lab.testbed.load.server_process import EMULATED, emulation_of
from lab.testbed.processes import Process, settings
from opensled.core.errors import OpenSledError
from opensled.core.messages import Draft, DraftBlock, DraftToken, Failure, Open, Opened, Prefill, Verdict


@contextmanager
def served(
    server: Server, dilation: float, tenants: Sequence[str], *flags: str, **unflagged: object
) -> Iterator[Process]:
    """`opensled serve` with policy goodput, that listens; each tenant's token is its name. `unflagged`: options that
    have no flag."""
    with TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.touch(0o600)
        tokens.write_text("".join(f"{tenant} {tenant}\n" for tenant in tenants))
        command = (
            *("serve", "--model", server.model, "--engine", EMULATED, "--listen", "127.0.0.1:0"),
            *(
                "--policy",
                "goodput",
                "--server-drafter",
                "none",
                "--threads",
                "1",
                "--log-level",
                "error",
                "--tokens",
                str(tokens),
            ),
        )
        variables = {**environment(server, dilation), **settings(**unflagged)}
        with Process((*command, *flags), isolated=True, environment=variables) as process:
            process.wait_ready()
            yield process


def late_share(process: Process) -> float:
    """Of the steps of an emulated server that has ended, those for which this machine was too slow."""
    totals = emulation_of(process)
    return totals["late_steps"] / max(1, totals["steps"])


def links(address: str, tenants: Sequence[str]) -> dict[str, Link]:
    """Each tenant's own connection."""
    return {tenant: Link(Endpoint(address, token=tenant)) for tenant in tenants}


Rounds = list[tuple[float, float]]  # when they ended, and how many seconds they took
# What a device drafts next, after the time that this takes; None = nothing.
Drafts = Callable[["TenantRequest"], Awaitable[Sequence[int] | None]]


@dataclass
class TenantRequest:
    """One request and what became of it. Times in seconds on time.perf_counter."""

    tenant: str
    prompt: int  # its tokens
    at: float
    shed_s: float | None = None  # until the client heard that there is no place
    retry_after: float = 0.0  # seconds that the client was told to wait
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when so many tokens came
    tokens: list[int] = field(default_factory=list)
    finished: bool = False
    hint: int | None = None  # the server's latest
    drafts: int = 0  # sent
    rounds: Rounds = field(default_factory=list)

    @property
    def pace(self) -> float:
        """Tokens/s after the first arrival; 0 = one arrival or none."""
        if len(self.arrivals) < 2:
            return 0.0
        (first, head), (last, _) = self.arrivals[0], self.arrivals[-1]
        return (len(self.tokens) - head) / (last - first)

    def between(self, start: float, end: float) -> int:
        """Tokens that came in that time."""
        return sum(count for moment, count in self.arrivals if start <= moment < end)


async def ask(
    link: Link, tenant: str, request: Open, draft: Drafts | None = None, rounds: Rounds | None = None
) -> TenantRequest:
    """One answer; without `draft` the server decodes alone. Its rounds are added to `rounds` as they end.

    Raises OpenSledError for any failure but a full server.
    """
    asked = TenantRequest(tenant, len(request.prompt), time.perf_counter())
    asked.rounds = asked.rounds if rounds is None else rounds
    stream = link.connect()
    try:
        await stream.send(request)
        if await _let_in(stream, asked):
            while not asked.finished:
                await _round(stream, asked, await draft(asked) if draft else None)
    finally:
        await stream.close()
    return asked


async def _let_in(stream: GrpcStream, asked: TenantRequest) -> bool:
    reply = await stream.receive()
    if isinstance(reply, Opened):
        asked.hint = reply.hint
        return True
    if not isinstance(reply, Failure) or reply.code != "overloaded":
        raise OpenSledError(f"the server answered {reply} to an Open")
    asked.shed_s, asked.retry_after = time.perf_counter() - asked.at, reply.retry_after
    return False


async def _round(stream: GrpcStream, asked: TenantRequest, tokens: Sequence[int] | None) -> None:
    """A draft and its verdict; without a draft, or with an empty one, the next verdict."""
    started = time.perf_counter()
    if tokens is not None:
        asked.drafts += 1
        block = DraftBlock(asked.prompt + len(asked.tokens), tuple(map(DraftToken, tokens)))
        await stream.send(Draft(asked.drafts, block))
    verdict = await _verdict(stream, asked)
    while tokens and verdict.answers != asked.drafts and not asked.finished:
        verdict = await _verdict(stream, asked)
    asked.hint = verdict.hint
    ended = time.perf_counter()
    asked.rounds.append((ended, ended - started))


async def _verdict(stream: GrpcStream, asked: TenantRequest) -> Verdict:
    """The next one; what it brought is taken down. It may begin with tokens that are known."""
    while isinstance(reply := await stream.receive(), Prefill):
        pass
    if not isinstance(reply, Verdict):
        raise OpenSledError(f"the server answered {reply} instead of a verdict")
    news = reply.tokens[asked.prompt + len(asked.tokens) - reply.base :]
    asked.tokens += news
    if news:
        asked.arrivals.append((time.perf_counter(), len(news)))
    asked.finished = bool(reply.finish_reason)
    return reply


def random_prompt(draw: random.Random) -> tuple[int, ...]:
    return tuple(draw.randrange(300, 1300) for _ in range(24))


async def close(all_links: dict[str, Link]) -> None:
    await asyncio.gather(*(link.close() for link in all_links.values()))
