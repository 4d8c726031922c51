"""The verification server of a fleet: a real process, slowed down to its accelerator, and its counters."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from lab.testbed.emulation.emulated_accelerator import TOTALS, environment
from lab.testbed.fleet import Server
from lab.testbed.load.records import ServerTotals
from lab.testbed.processes import Process, settings
from lab.testbed.traces import TraceSet, write_traces
from opensled.core.errors import OpenSledError, UsageError
from opensled.metrics.registry import PREFIX
from opensled.models.store import cache_folder

EMULATED = "lab.testbed.emulation.emulated_accelerator:load"
RECORDED = "lab.testbed.emulation.recorded_drafter:load"
DRAFTS = "drafts.jsonl.gz"
MAX_SESSIONS = 1024  # of any server here: one process plays all devices
METRICS = "metrics on "
MAX_LATE = 0.05  # of all emulated time: no figure may be distorted by more

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    process: Process
    address: str  # HOST:PORT
    metrics: str  # URL
    dilation: float

    async def totals(self) -> ServerTotals:
        """What it has done since its start, in emulated seconds."""
        try:
            async with httpx.AsyncClient(trust_env=False) as http:
                reply = await http.get(self.metrics)
        except httpx.HTTPError as error:
            raise OpenSledError(f"the server's metrics at {self.metrics} cannot be read: {error}") from error
        return _totals(_readings(reply.text), self.dilation)


def emulation_of(process: Process) -> dict[str, float]:
    """What the emulated accelerator says at its end of the whole run; {} for a real one, or one that was killed."""
    said = (line.removeprefix(TOTALS) for line in process.lines if line.startswith(TOTALS))
    totals: dict[str, float] = json.loads(next(said, "{}"))
    return totals


@asynccontextmanager
async def serving(
    server: Server, dilation: float = 1.0, traces: TraceSet | None = None
) -> AsyncIterator[Running]:
    """Run `opensled serve` for `server` while inside; raises UsageError when its target does not fit.

    A draft beside an emulated target replays `traces`; beside a real one it is the model, or the head, that belongs to
    the target.
    """
    if server.others:
        raise UsageError(
            "`others` of [server] are simulated alone: give them a [[device]] with direct = true"
        )
    with TemporaryDirectory() as folder:
        told = _told(server, dilation, traces, Path(folder)) if server.accelerator else {}
        told |= unflagged(server)
        told["OPENSLED_CACHE_DIR"] = str(cache_folder())  # fetched models are found; all else is isolated
        process = Process(command(server, dilation), isolated=True, environment=told)
        try:
            running = await asyncio.to_thread(ready, process, dilation)
            yield running
        finally:
            await asyncio.to_thread(process.stop)
    _warn(running)


def _told(server: Server, dilation: float, traces: TraceSet | None, folder: Path) -> dict[str, str]:
    """The environment of a server with an emulated accelerator."""
    if not server.draft:
        return environment(server, dilation)
    if traces is None:
        raise UsageError(
            "a draft beside an emulated target replays recorded drafts, and nothing is recorded for this workload: "
            "take the recorded one, or a baseline whose server has no draft (centralized, sled-continuous, "
            "opensled-device)"
        )
    write_traces(folder / DRAFTS, traces)
    return environment(server, dilation, str(folder / DRAFTS))


def ready(process: Process, dilation: float) -> Running:
    """Wait until a server process of `command` listens; raises OpenSledError when it ends instead."""
    address = process.wait_ready()
    url = next(line for line in process.lines if line.startswith(METRICS)).removeprefix(METRICS)
    return Running(process, address, url, dilation)


def _warn(running: Running) -> None:
    """Say so when this machine was too slow for what it stood for."""
    totals = emulation_of(running.process)
    late = totals.get("late_s", 0.0) + totals.get("overshot_s", 0.0)
    if late > MAX_LATE * totals.get("due_s", 0.0):
        longer = 100 * late / totals["due_s"]
        log.warning("steps took %.0f %% longer than the accelerator's profile says; raise --dilation", longer)


def command(server: Server, dilation: float) -> list[str]:
    """The words after `opensled`. What the product waits for is stretched like everything else."""
    return [
        *("serve", "--model", server.model, "--engine", EMULATED if server.accelerator else server.engine),
        *("--policy", server.policy, "--draft-wait", str(dilation * server.draft_wait)),
        *("--max-sessions", str(sessions(server))),
        *_drafter(server),
        *("--threads", "1", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--log-level", "error"),
    ]


def unflagged(server: Server) -> dict[str, str]:
    """The variables that set what has no flag."""
    return settings(batch=server.batch, server_draft=server.draft_length)


def _drafter(server: Server) -> tuple[str, ...]:
    if not server.draft:
        return "--server-drafter", "none"
    real = server.draft if server.has_head else "model"
    return "--server-drafter", RECORDED if server.accelerator else real


def sessions(server: Server) -> int:
    """How many sequences it may hold: those whose KV the accelerator has room for."""
    if not server.accelerator:
        return MAX_SESSIONS
    fit = server.sessions_that_fit
    if not fit:
        raise UsageError(
            f"{server.target} at {server.weight_bits:g} bits leaves no room on {server.accelerator} for a session of "
            f"{server.context} positions; take fewer bits, a shorter context or a larger accelerator"
        )
    return min(fit, MAX_SESSIONS)


def _readings(text: str) -> dict[str, float]:
    """Numbers by name of a Prometheus exposition; those with labels are left out."""
    words = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {pair[0].removeprefix(PREFIX): float(pair[1]) for pair in words if "{" not in pair[0]}


def _totals(readings: Mapping[str, float], dilation: float) -> ServerTotals:
    return ServerTotals(
        steps=int(readings["steps_total"]),
        step_sessions=int(readings["step_sessions_sum"]),
        positions=int(readings["positions_computed_total"]),
        tokens=int(readings["tokens_committed_total"]),
        stale_drafts=int(readings["stale_drafts_total"]),
        busy_s=readings["step_seconds_sum"] / dilation,
        drafting_s=readings["server_drafting_seconds_total"] / dilation,
    )
