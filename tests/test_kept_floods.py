"""A tenant floods a server that keeps its text: the quota holds, old text goes, and no answer waits for a disk."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adapt.kept.keeper import WAITING, TextKeeper
from adapt.kept.kept_store import ROOM, KeptStore
from lab.training.distil.shard_batches import read_shard
from opensled.core.messages import Open, Opened
from tests.fakes import continuation
from tests.kept_texts import AGREED, StuckStore, keeping, text
from tests.loops import cancelled
from tests.serving import GREEDY, PROMPT, finish, linked, serving
from tests.system import until
from verify_server.admission.session_manager import SessionLimits

QUOTA = 12_000  # bytes; a text of these answers has about 800
FLOODING = 8  # streams at the same time
ENOUGH = 100  # answers of a flood
DELETIONS = 20  # in the midst of one
PATIENCE = 60.0  # seconds, for a test to see enough


class Flooded:
    """A server that keeps the text of tenant `a`, who asks without end, while `b` reads."""

    def __init__(self, store: KeptStore) -> None:
        self.store, self.answers, self.read = store, 0, 0
        self.most = 0  # bytes seen on disk

    async def run(self, until_answers: int = ENOUGH, seen_enough: Callable[[], bool] = lambda: True) -> None:
        """Until both hold: there are so many answers, and the test has seen enough."""
        deadline = time.monotonic() + PATIENCE
        limits = SessionLimits(max_sessions=32, max_draft=8, linger=0.05, tenants=AGREED)
        async with serving(AGREED, limits=limits, manager_of=keeping(self.store)) as (manager, address):
            async with linked(address, token="token-a") as hostile, linked(address, token="token-b") as link:
                flood = [asyncio.ensure_future(self._ask_on(hostile)) for _ in range(FLOODING)]
                while self.answers < until_answers or not seen_enough():
                    assert time.monotonic() < deadline, "the test has not seen enough"
                    assert (await finish(link))[1] == continuation(PROMPT, GREEDY.max_tokens)
                    self.read += 1
                    self.most = max(self.most, self.bytes)
                await cancelled(*flood)
            await until(lambda: not manager.loop.machine.sessions)
            manager.keeper.close()
            self.counts = manager.keeper.counts

    async def _ask_on(self, link) -> None:
        while True:
            await finish(link)
            self.answers += 1

    @property
    def bytes(self) -> int:
        return sum(held.bytes for held in self.store.summarize())


def test_the_quota_holds_and_the_neighbour_reads_on(tmp_path):
    flooded = Flooded(KeptStore(tmp_path / "kept", QUOTA))
    asyncio.run(flooded.run())
    # Between a write and the look at the quota there is one text more.
    assert flooded.counts["kept"] > 40 and flooded.most <= QUOTA + 2_000
    assert 0 < flooded.bytes <= QUOTA
    assert flooded.read > 5


def test_old_text_goes_while_new_text_comes(tmp_path):
    store = KeptStore(tmp_path / "kept", seconds=0.2)
    flooded = Flooded(store)
    asyncio.run(flooded.run())
    time.sleep(0.25)
    store.expire()
    assert flooded.counts["kept"] > 40 and store.summarize() == []


def test_a_full_disk_stops_no_answer(tmp_path, monkeypatch):
    """It is full, has room for a moment, and is full again."""
    writes = []

    def some(path: Path, content: bytes, private: bool = False) -> None:
        writes.append(path)
        if len(writes) % 10:
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr("adapt.kept.kept_store.write_whole", some)
    flooded = Flooded(KeptStore(tmp_path / "kept", QUOTA))
    asyncio.run(flooded.run())
    assert flooded.counts["failed"] > 40 and flooded.read > 5


def test_a_deletion_while_it_writes_leaves_nothing_that_had_begun(tmp_path):
    store, flooded = KeptStore(tmp_path / "kept"), Flooded(KeptStore(tmp_path / "kept"))
    over = threading.Event()

    def older(than: float) -> bool:
        return any(held.texts and held.oldest < than for held in store.summarize())

    def delete() -> None:
        """As soon as there is a text, again and again."""
        for _ in range(DELETIONS):
            while not store.summarize():
                if over.wait(0.01):
                    return
            moment = time.time()
            store.delete("a")
            deadline = time.monotonic() + PATIENCE / 3
            while older(moment):  # a text that was just written goes by itself
                assert time.monotonic() < deadline, "a text has outlived the deletion"
                time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(delete)
        try:
            asyncio.run(flooded.run(seen_enough=deleting.done))
        finally:
            over.set()
        deleting.result()
    assert flooded.counts["refused"] > 0 and flooded.counts["failed"] == 0
    store.delete("a")
    assert not list(store.folder.rglob("*.npz"))


def test_what_a_killed_server_had_begun_goes(tmp_path):
    """It is a part of a text: neither a list nor a quota would ever count it."""
    store = KeptStore(tmp_path / "kept")
    asyncio.run(Flooded(store).run(1))
    begun = store.folder_of("a") / ".00000000000000001-00000000.npz-abcdefgh"
    begun.write_bytes(b"a part")
    store.expire()
    assert begun.exists(), "it may just be written"
    os.utime(begun, (1, 1))
    store.expire()
    assert not begun.exists()


async def test_a_reader_that_leaves_at_once_leaves_no_text(tmp_path):
    """A flood of openings whose answers nobody waits for: what the target wrote of them is kept, and no more."""
    store = KeptStore(tmp_path / "kept", QUOTA)
    limits = SessionLimits(max_sessions=32, max_draft=8, linger=0.05, tenants=AGREED)
    async with serving(AGREED, limits=limits, manager_of=keeping(store)) as (manager, address):
        async with linked(address, token="token-a") as link:
            for _ in range(60):
                stream = link.connect()
                await stream.send(Open(PROMPT, GREEDY))
                assert isinstance(await stream.receive(), Opened)
                await stream.close()
        await until(lambda: not manager.loop.machine.sessions)
        manager.keeper.close()
    truth = (*PROMPT, *continuation(PROMPT, GREEDY.max_tokens))
    assert sum(held.bytes for held in store.summarize()) <= QUOTA
    for path in store.folder_of("a").glob("*.npz"):
        [kept] = read_shard(path)
        assert tuple(kept.ids) == truth[: len(kept.ids)]


def test_very_many_small_texts_cost_the_writer_little(tmp_path, monkeypatch):
    """A tenant asks for one token at a time: a look at all its texts must not come with each of them."""
    monkeypatch.setattr("adapt.kept.kept_store.MAX_TEXTS", 640)
    store, looks = KeptStore(tmp_path / "kept", QUOTA * 1000), []
    trim = store._trim
    monkeypatch.setattr(store, "_trim", lambda folder: looks.append(folder) or trim(folder))
    for _ in range(1000):
        store.write(text("a", written=1), "words")
    [held] = store.summarize()
    assert 600 <= held.texts <= 640 and held.bytes <= QUOTA * 1000
    assert len(looks) <= 1 + 360 / (640 / ROOM) + 1


def test_a_flood_costs_its_own_tenant_its_texts(tmp_path, monkeypatch):
    """The disk is slow; one tenant offers a hundred texts for each one of another."""
    store = StuckStore(tmp_path / "kept")
    keeper = TextKeeper(store, "words")
    for number in range(1000):
        keeper.offer(text("hostile"))
        if number % 100 == 0:
            keeper.offer(text("quiet"))
    assert keeper.counts["dropped"] >= 1010 - WAITING - 1
    store.free.set()
    keeper.close()
    kept = {held.tenant: held.texts for held in store.summarize()}
    assert kept["quiet"] == 10 and sum(kept.values()) == keeper.counts["kept"]


def test_old_text_of_others_goes_although_one_tenant_writes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("adapt.kept.keeper.EXPIRE_S", 0.2)
    store = KeptStore(tmp_path / "kept", seconds=0.3)
    store.write(text("b"), "words")
    keeper, deadline = TextKeeper(store, "words"), time.monotonic() + PATIENCE
    while any(held.tenant == "b" for held in store.summarize()):
        assert time.monotonic() < deadline, "the text of b outlives its days"
        keeper.offer(text("a"))
        time.sleep(0.01)
    keeper.close()
