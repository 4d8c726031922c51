"""The kinds of faults. A fault lasts some seconds and is healed; the nemesis chooses its time and its victim."""

import asyncio
import json
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hw_profiles import catalog
from lab.testbed.soak import floods
from lab.testbed.soak.account import EDGE_LOST, STARVED, Account, Window
from lab.testbed.soak.cluster_target import GATEWAY, REPLICA_ROLE, ROLL, SCHEDULER_ROLE
from lab.testbed.soak.draft_strike import hand_out_drafts
from lab.testbed.soak.kept_text import delete_kept
from lab.testbed.soak.kinds import TargetKind
from lab.testbed.soak.page_strike import use_page
from lab.testbed.soak.readers import Reader
from lab.testbed.soak.target import EDGE, SoakTarget
from lab.testbed.soak.targets import RELAY, SERVER, WIDE_AREA
from lab.testbed.soak.token_file import edit_token_file
from lab.testbed.soak.victims import paused, without_disk, without_memory
from opensled.core.errors import OpenSledError

HOLD_S = 4.0  # how long most faults last
BAD_LINK = "lte-bad"
STEPS = (120, -120, 86_400, -86_400)  # seconds that the clock is off


@dataclass
class Ground:
    """Where faults strike: a target, its readers, and what is known of them."""

    target: SoakTarget
    readers: Sequence[Reader]
    account: Account
    guest: str  # token of a tenant that means harm
    random: random.Random
    turn: int = 0  # how often each kind has struck here; victims take turns

    def victim(self, choices: Sequence[str]) -> str:
        return choices[self.turn % len(choices)]


Strike = Callable[[Ground, Window], Awaitable[None]]

# Role of the victim at a server, around a relay, and at a cluster, from one turn to the next. Where there is no edge,
# the server.
_AT_SERVER = (SERVER, SERVER, EDGE, SERVER)
_AT_RELAY = (RELAY, SERVER, WIDE_AREA, RELAY)
_ENDED = (REPLICA_ROLE, GATEWAY, SCHEDULER_ROLE, REPLICA_ROLE)
_STOPPED = (GATEWAY, ROLL, GATEWAY, ROLL)
_HELD = (REPLICA_ROLE, GATEWAY, ROLL, SCHEDULER_ROLE)
_STARVED = (REPLICA_ROLE, GATEWAY, REPLICA_ROLE, GATEWAY)


def _victim(ground: Ground, window: Window, at_cluster: Sequence[str]) -> str:
    """Whose turn it is; a device that is struck may break its answers off."""
    kind = ground.target.kind
    role = ground.victim(at_cluster if kind.replicas else _AT_RELAY if kind.relay else _AT_SERVER)
    role = role if role != EDGE or kind.edge else SERVER
    window.victim = role
    if role == EDGE:
        window.tolerated |= {EDGE_LOST}
    return role


async def kill(ground: Ground, window: Window) -> None:
    """SIGKILL, and a new process in its place."""
    role = _victim(ground, window, _ENDED)
    await asyncio.to_thread(ground.target.end, role, signal.SIGKILL)


async def stop(ground: Ground, window: Window) -> None:
    """SIGTERM, and a new process in its place; of replicas a rolling restart."""
    role = _victim(ground, window, _STOPPED)
    await asyncio.to_thread(ground.target.end, role, signal.SIGTERM)


async def pause(ground: Ground, window: Window) -> None:
    """SIGSTOP, and SIGCONT."""
    await _while(paused, ground, window, _HELD)


async def full_disk(ground: Ground, window: Window) -> None:
    """Neither logs nor tables can be written."""
    await _while(without_disk, ground, window, _HELD)


async def memory_pressure(ground: Ground, window: Window) -> None:
    """Allocations fail; a process that does not bear it is started again."""
    window.tolerated |= STARVED
    await _while(without_memory, ground, window, _STARVED)


async def _while(
    suffering: Callable[[Sequence[int]], AbstractContextManager[None]],
    ground: Ground,
    window: Window,
    at_cluster: Sequence[str],
) -> None:
    role = _victim(ground, window, at_cluster)
    with suffering(await asyncio.to_thread(ground.target.pids, role)):
        await asyncio.sleep(HOLD_S)


async def reset(ground: Ground, window: Window) -> None:
    """RST to all connections of all devices, several times."""
    for _ in range(3):
        for reader in ground.readers:
            reader.roads.reset()
        await asyncio.sleep(HOLD_S / 4)


async def bad_link(ground: Ground, window: Window) -> None:
    """All links become slow and lossy."""
    for reader in ground.readers:
        reader.roads.become(catalog.link(BAD_LINK))
    try:
        await asyncio.sleep(2 * HOLD_S)
    finally:
        for reader in ground.readers:
            reader.roads.become(None)


async def blackout(ground: Ground, window: Window) -> None:
    """Nothing arrives for a while, on any link."""
    for reader in ground.readers:
        reader.roads.black_out(HOLD_S)
    await asyncio.sleep(HOLD_S)


async def clock_step(ground: Ground, window: Window) -> None:
    """The wall clock of all processes jumps, and jumps back."""
    clock = ground.target.place.clock
    clock.step(STEPS[ground.turn % len(STEPS)])
    try:
        await asyncio.sleep(HOLD_S)
    finally:
        clock.step(0)


async def token_file(ground: Ground, window: Window) -> None:
    """Tokens come and go in the file that the server reads, and one edit of it is broken."""
    await edit_token_file(ground.target)


async def deletion(ground: Ground, window: Window) -> None:
    """The operator deletes what the server keeps of its fleet."""
    await delete_kept(ground.target)


async def page(ground: Ground, window: Window) -> None:
    """An operator watches the page, and switches the drafts of a device off and on."""
    await use_page(ground.target)


async def drafts(ground: Ground, window: Window) -> None:
    """Drafts are published and taken back, while a tenant fetches them greedily."""
    await hand_out_drafts(ground.target, ground.guest)


def _flood(kind: str) -> Strike:
    async def flood(ground: Ground, window: Window) -> None:
        command = [
            sys.executable,
            "-m",
            floods.__name__,
            kind,
            ground.target.address,
            "--seconds",
            str(HOLD_S),
        ]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate(ground.guest.encode())
        if process.returncode:
            raise OpenSledError(f"the flood of {kind} failed; its errors are above")
        ground.account.notes.update({f"{kind}: {what}": n for what, n in json.loads(said).items()})

    flood.__doc__ = floods.FLOODS[kind].__doc__
    return flood


FAULTS: Mapping[str, Strike] = {
    "kill": kill,
    "stop": stop,
    "pause": pause,
    "reset": reset,
    "bad link": bad_link,
    "blackout": blackout,
    "full disk": full_disk,
    "clock step": clock_step,
    "memory pressure": memory_pressure,
    "token file": token_file,
    "page": page,
    "drafts": drafts,
    "deletion": deletion,
    **{f"flood of {kind}": _flood(kind) for kind in floods.FLOODS},
}


def faults_of(kind: TargetKind, chosen: Mapping[str, Strike]) -> dict[str, Strike]:
    """Those that can strike such a target."""
    return {name: strike for name, strike in chosen.items() if strike is not deletion or kind.keeps}
