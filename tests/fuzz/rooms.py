"""What fuzz targets talk to: a session manager over a fake model, a device's end of a stream, a fake device's API."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from edge_client.link.moves import destination
from edge_client.link.remote import RemoteSession, RetryPolicy
from edge_client.round.commits import Commits
from http_api.app import build_app
from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import OpenSledError
from opensled.core.messages import Draft, DraftBlock, Open
from scheduler.fcfs import Fcfs
from tests.by_hand import HandLoop, Server, Wire
from tests.fake_backend import FakeBackend
from tests.fakes import UNLIMITED, VOCAB, FakeEngine, FakeText
from tests.rounds import looping
from tests.small_tokenizer import small_tokenizer
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.front.fleet import FleetView
from verify_server.front.session_stream import serve_stream
from verify_server.round.draft_stage import DraftStage
from verify_server.round.drafter import ServerDrafter
from verify_server.round.loaded_model import ServedModel
from verify_server.round.loop import VerifyLoop
from verify_server.rules.served import ServedRules

BLOCKS, LINGER = 30, 20.0


class Text(FakeText):
    """With a tokenizer that grammars can be compiled for; answers at once, without threads."""

    tokenizer_json = small_tokenizer()

    def render(self, messages: Any, *more: Any) -> tuple[int, ...]:
        return self.encode("".join(turn.content for turn in messages))


class InlineLoop(HandLoop):
    """What would go to a thread is done at once."""

    def __init__(self) -> None:
        super().__init__()
        asyncio.set_event_loop(self)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future:
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class Room:
    """A session manager that serves every rule, run by hand. One for the whole run: what one input leaves is a leak."""

    def __init__(self, drafter: ServerDrafter | None = None) -> None:
        """`drafter`: beside the target."""
        self.loop, self.drafter = InlineLoop(), drafter
        engine = FakeEngine(num_blocks=BLOCKS, context_length=100)
        stage = DraftStage({"": drafter}, VOCAB) if drafter else None
        loop = looping(engine, Fcfs(3.0, 4), HardwareProfile(24), self.loop.time, stage)
        self.server = Server(self.manager_of(loop, ServedModel("fake", engine, Text())), engine)
        self.wires: list[tuple[Wire, asyncio.Task]] = []

    def manager_of(self, loop: VerifyLoop, target: ServedModel) -> SessionManager:
        limits = SessionLimits(
            max_sessions=4, max_draft=8, linger=LINGER, rules=ServedRules(trust_devices=True)
        )
        return SessionManager(loop, target, limits)

    def connect(self) -> Wire:
        wire = Wire()
        work = serve_stream(
            self.server.manager, "local", wire.server_receive, wire.server_send, None, UNLIMITED
        )
        self.wires.append((wire, self.loop.create_task(work)))
        return wire

    def say(self, wire: Wire, message: bytes) -> None:
        """A message arrives, unless the line is dead."""
        if not wire.broken:
            wire.at_server.put_nowait(message)
            self.loop.settle()

    def step(self) -> None:
        self.server.step(HardwareProfile(24))
        self.loop.settle()

    @contextlib.contextmanager
    def visit(self) -> Iterator[None]:
        """One input: afterwards every stream is gone, nobody is remembered and all memory is free."""
        yield
        for wire, _ in self.wires:
            wire.tear()
        self.loop.settle()
        self.step()
        self.loop.advance(LINGER + 1)
        for _, task in self.wires:
            assert task.done() and not task.exception(), task
        self.wires.clear()
        manager = self.server.manager
        assert (
            not manager.remembered
            and not manager.loop.machine.sessions
            and not manager._expiries
            and not manager._admission._arriving
        )
        assert manager.loop.machine.target.pool.num_free == BLOCKS
        self.require_no_bugs()

    def require_no_bugs(self) -> None:
        manager = self.server.manager
        codes = {*manager.stats.refused, *manager.loop.machine.stats.failures}
        assert not codes & {"internal", "engine"}, "an error that is none of ours; the log says which"


class Desk:
    """A device's end of a sequence: `RemoteSession` and what the edge loop makes of its verdicts."""

    def __init__(self) -> None:
        self.loop = InlineLoop()

    def hear(self, messages: list[bytes], drafted: DraftBlock) -> None:
        """A whole sequence in which a server says these; it may end only by errors of ours, or by a finish reason."""
        wires: list[Wire] = []

        def connect(address: str = "") -> Wire:
            if address:  # as edge_client/link/link.py has it
                destination(address, "hub:7411", secret_in_clear=False)
            wires.append(Wire())
            return wires[-1]

        session = RemoteSession(
            connect, Open((1, 2, 3)), RetryPolicy(silence=5.0, first_open=20.0, give_up=20.0)
        )
        reading = self.loop.create_task(_read(session, drafted))
        self.loop.settle()
        for message in messages:
            wires[-1].at_device.put_nowait(message)
            self.loop.settle()
            if reading.done():
                break
            if wires[-1].broken:
                self.loop.advance(2.0)
        while not reading.done():
            self.loop.advance(10.0)
        with contextlib.suppress(OpenSledError):
            reading.result()
        for wire in wires:
            wire.tear()
        self.loop.settle()


async def _read(session: RemoteSession, drafted: DraftBlock) -> None:
    await session.open()
    truth, commits = session.truth, Commits()
    try:
        await session.submit(Draft(1, drafted))
        while not truth.finish_reason:
            verdict = await session.next_verdict()
            known = truth.confirmed, len(truth)
            news = truth.extend(verdict) or ()
            commit = commits.of(verdict, news, known, drafted if verdict.answers == 1 else None, truth)
            assert 0 <= commit.accepted <= (len(news) if commit.written is None else len(drafted.tokens))
            assert len(news) == len(commit.origins) and known[0] + len(news) == truth.confirmed
            assert len(commit.logprobs) in (0, len(commit.tokens))
    finally:
        await session.close()


class Counter:
    """The API of a fake device, asked without a socket, with the page of a server that knows one device."""

    def __init__(self) -> None:
        manager = Room().server.manager
        self.records = manager.records
        self.kitchen = self.records.of("local", "kitchen")
        self.loop = InlineLoop()
        self.backend = FakeBackend()
        self.app = build_app(self.backend, view=FleetView((), manager))

    def ask(self, path: str, body: bytes) -> int:
        """The status of an answer, which must never be 500; an error must be an error object."""
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
            "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "scheme": "http", "server": ("edge", 80), "client": ("me", 1), "root_path": "",
        }  # fmt: skip
        sent: list[dict[str, Any]] = []
        asking = self.loop.create_task(self._ask(scope, body, sent))
        while not asking.done():
            self.loop.settle()
            self.loop.advance(0.01)
        asking.result()
        status = sent[0]["status"]
        assert status < 500, status
        if status != 200:
            error = json.loads(b"".join(part.get("body", b"") for part in sent[1:]))["error"]
            told = {"message": error} if path.startswith("/api/") else error
            names = {"type", "message"} if "/messages" in path else {"message", "type", "param", "code"}
            assert told["message"] and (told is not error or set(error) - {"details"} == names)
        assert self.backend.closed == len(self.backend.tasks)
        self.backend.tasks.clear()
        self.backend.closed = 0
        return status

    async def _ask(self, scope: dict[str, Any], body: bytes, sent: list[dict[str, Any]]) -> None:
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            return await asyncio.get_running_loop().create_future()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
