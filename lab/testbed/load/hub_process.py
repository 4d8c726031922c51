"""The hubs of a fleet: real relays, slowed down to their accelerators, each behind a link of its own to the server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields

from hw_profiles import catalog
from lab.testbed.emulation.emulated_accelerator import environment
from lab.testbed.fleet import Fleet, Hub, Server
from lab.testbed.link_relay import Relay
from lab.testbed.load.server_process import EMULATED, Running, emulation_of, ready, sessions
from lab.testbed.processes import Process
from opensled.models.store import cache_folder

FIRST_SEED = 1000  # of the hubs' links: devices have those below


@asynccontextmanager
async def hubs(fleet: Fleet, server: Running | None) -> AsyncIterator[list[Running]]:
    """Run `opensled relay` for each hub of `fleet` while inside; none where it has no hub."""
    found: list[Running] = []
    async with AsyncExitStack() as stack:
        if fleet.hub is not None and server is not None:
            for number in range(fleet.hub.count):
                found.append(await _hub(fleet.hub, number, server.address, fleet.dilation, stack))
        yield found


async def _hub(hub: Hub, number: int, server: str, dilation: float, stack: AsyncExitStack) -> Running:
    seed = FIRST_SEED + number
    upstream = await linked(hub.link, server, dilation, seed, stack)
    told = environment(_as_server(hub), dilation) if hub.accelerator else {}
    told["OPENSLED_CACHE_DIR"] = str(cache_folder())  # fetched models are found; all else is isolated
    words = command(hub, f"{hub.name}-{number}", upstream.address if upstream else server, dilation)
    process = Process(words, isolated=True, environment=told)
    stack.push_async_callback(asyncio.to_thread, process.stop)
    return await asyncio.to_thread(ready, process, dilation)


async def linked(link: str, to: str, dilation: float, seed: int, stack: AsyncExitStack) -> Relay | None:
    """The first of the links named, with + between, on the way to an address; None without any."""
    first = None
    for name in reversed(link.split("+") if link else []):
        relay = Relay(catalog.link(name), first.address if first else to, dilation=dilation, seed=seed)
        first = await stack.enter_async_context(relay)
    return first


def _as_server(hub: Hub) -> Server:
    """What an emulated accelerator is told of a hub."""
    return Server(**{each.name: getattr(hub, each.name) for each in fields(Server)})


def command(hub: Hub, name: str, upstream: str, dilation: float) -> list[str]:
    """The words after `opensled`. What the product waits for is stretched like everything else."""
    return [
        *("relay", "--model", hub.model, "--engine", EMULATED if hub.accelerator else hub.engine),
        *("--upstream", upstream, "--name", name, "--block", str(hub.block), "--bound", str(hub.bound)),
        *("--policy", hub.policy, "--draft-wait", str(dilation * hub.draft_wait)),
        *("--max-sessions", str(sessions(hub)), "--threads", "1", "--listen", "127.0.0.1:0"),
        *("--metrics", "127.0.0.1:0", "--log-level", "error"),
    ]


def emulated(several: list[Running]) -> Mapping[str, float]:
    """What the emulated accelerators of hubs that have ended say of their steps, summed."""
    said = [emulation_of(each.process) for each in several]
    return {key: sum(each.get(key, 0.0) for each in said) for each in said for key in each}
