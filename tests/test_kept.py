"""Text that a server keeps: of whom, and what; and that no sequence waits for it."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from adapt.kept.command import keeper_of, require_keepable
from adapt.kept.keeper import WAITING, TextKeeper
from adapt.kept.kept_store import ROOM, TOP, KeptStore
from adapt.kept.text_trace import MAX_TOKENS, LikeliestReading, TextTrace
from edge_client.lengths.fixed import FixedLength
from lab.training.distil.shard_batches import batch_of, read_shard
from opensled.core.errors import UsageError
from opensled.core.messages import DraftToken, Guide, Open, Opened, SamplingParams, TreeNode
from tests.fakes import FakeEngine, OracleDrafter, continuation
from tests.kept_texts import AGREED, WORDS, StuckStore, keeping, text
from tests.loops import block_until, cancelled, in_loop
from tests.serving import GREEDY, PROMPT, finish, linked, serving
from tests.system import ask, running, until
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.front.server_metrics import metrics
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.rules.base import AcceptanceResult

# -- of whom, and what --------------------------------------------------------------------------------------------


@in_loop
async def served(store: KeptStore, token: str) -> list[int]:
    """What a real server answers a device with this token; it has ended when this returns."""
    limits = SessionLimits(max_sessions=3, max_draft=8, linger=0.05, tenants=AGREED)
    async with serving(AGREED, limits=limits, manager_of=keeping(store)) as (manager, address):
        async with linked(address, token=token) as link:
            _, tokens = await finish(link)
        await until(lambda: not manager.loop.machine.sessions)
        manager.keeper.close()
        return tokens


def test_a_text_of_a_tenant_that_agreed_is_kept_and_can_be_learned_from(tmp_path):
    store = KeptStore(tmp_path / "kept")
    tokens = served(store, "token-a")
    [path] = store.folder_of("a").glob("*.npz")
    [kept] = read_shard(path)
    assert kept.ids.tolist() == [*PROMPT, *continuation(PROMPT, GREEDY.max_tokens)]
    assert kept.roles.tolist() == [0] * len(PROMPT) + [2] * GREEDY.max_tokens
    assert kept.top_ids.shape == (len(tokens), TOP)
    assert kept.top_log_probs[0].tolist() == [-1.0 - id for id in range(TOP)]
    assert int(batch_of([kept]).asked.sum()) == GREEDY.max_tokens


def test_nothing_is_written_for_a_tenant_that_did_not_agree(tmp_path):
    store = KeptStore(tmp_path / "kept")
    served(store, "token-b")
    assert list(store.folder.rglob("*")) == []


def test_drafts_do_not_change_what_is_kept(tmp_path):
    """Accepted chains and single tokens, rejected drafts: one row for each committed token, in their order."""
    store = KeptStore(tmp_path / "kept")

    async def main(drafter):
        limits = SessionLimits(linger=0.2, tenants=Tenants(default=TenantLimits(keep=1)))
        async with running(FakeEngine(), limits=limits) as network:
            network.manager.keeper = TextKeeper(store, WORDS)
            await ask(network, PROMPT, drafter)
            await until(lambda: not network.manager.loop.machine.sessions)
            network.manager.keeper.close()

    asyncio.run(main(OracleDrafter(0.6)))
    [path] = store.folder_of("local").glob("*.npz")
    [kept] = read_shard(path)
    assert kept.ids.tolist() == [*PROMPT, *continuation(PROMPT, 40)]
    assert len(kept.top_ids) == 40


@pytest.fixture(scope="module")
def tiny():
    return ENGINES.get("torch")(ServeConfig(model="tiny", numerics="fast", kv_tokens=2048, threads=1))


async def test_guided_answers_are_not_kept_and_others_hold_the_targets_probabilities(tmp_path, tiny):
    store = KeptStore(tmp_path / "kept")
    prompt = tiny.text.encode("def area(")
    params = SamplingParams(temperature=0.0, max_tokens=6)
    limits = SessionLimits(linger=0.2, tenants=Tenants(default=TenantLimits(keep=1)))
    async with running(tiny.engine, limits=limits, text=tiny.text) as network:
        network.manager.keeper = TextKeeper(store, tiny.text.fingerprint)
        wrong = OracleDrafter(1.0, target=lambda context: 5)
        await ask(network, prompt, wrong, params, guide=Guide(json_schema='{"type": "object"}'))
        answer = await ask(network, prompt, wrong, params, top_logprobs=20)
        await until(lambda: not network.manager.loop.machine.sessions)
        network.manager.keeper.close()
    [path] = store.folder_of("local").glob("*.npz")
    [kept] = read_shard(path)
    assert kept.ids.tolist() == [*prompt, *answer.tokens]
    told = np.array([entry[1:] for entry in answer.logprobs])
    assert np.array_equal(kept.top_ids[:, :20], told[..., 0])
    assert np.allclose(kept.top_log_probs[:, :20], told[..., 1], atol=0.02)


class KnowingTree(OracleDrafter):
    """Knows the answer, and hides its tokens among branches that the target rejects, each with tokens behind it."""

    def __init__(self, known: list[int]) -> None:
        super().__init__(1.0)
        self._known = known

    def propose_tree(self) -> Iterator[TreeNode]:
        parent, count, place = -1, 0, len(self.truth)
        while True:
            right = self._known[place]
            wrong = [(right + 1 + offset) % 2000 for offset in (place % 7, 11 + place % 5)]
            # Here before the right one, there behind it; now and then the right one is not there at all.
            for id in (wrong[0], right, wrong[1]) if place % 6 else wrong:
                yield TreeNode(DraftToken(id, 0.5), parent)
                at, count = count, count + 1
                if id == right:
                    continue
                # What would be right one place on
                yield TreeNode(DraftToken(self._known[place + 1], 0.5), at)
                count += 1
            parent, place = (count - 3 if place % 6 else count - 4), place + 1


def knowing_chain(known: list[int]) -> OracleDrafter:
    return OracleDrafter(0.7, target=lambda context: known[len(context)])


@pytest.mark.parametrize(
    ("drafter", "tree", "temperature"),
    [(knowing_chain, 0, 0.0), (KnowingTree, 12, 0.0), (KnowingTree, 12, 0.8)],
)
async def test_accepted_drafts_have_the_rows_that_plain_decoding_has(
    tmp_path, tiny, drafter, tree, temperature
):
    """And not those of a rejected branch: context ids and probabilities are the same."""
    store = KeptStore(tmp_path / "kept")
    prompt = tiny.text.encode("import os\n")
    params = SamplingParams(temperature=temperature, max_tokens=24, seed=3)
    limits = SessionLimits(linger=0.2, tenants=Tenants(default=TenantLimits(keep=1)))
    async with running(tiny.engine, limits=limits, text=tiny.text) as network:
        network.manager.keeper = TextKeeper(store, WORDS)
        plain = await ask(network, prompt, OracleDrafter(1.0, target=lambda context: 5), params)
        known = drafter([*prompt, *plain.tokens, *[5] * 20])
        stop = FixedLength(4, tree=tree)
        drafted = await ask(network, prompt, known, params, device="another one", stop=stop)
        await until(lambda: not network.manager.loop.machine.sessions)
        network.manager.keeper.close()
    assert drafted.tokens == plain.tokens
    assert sum(commit.accepted for commit in drafted.rounds) > (8 if tree else 5)
    one, other = (read_shard(path)[0] for path in sorted(store.folder_of("local").glob("*.npz")))
    assert one.ids.tolist() == other.ids.tolist() == [*prompt, *plain.tokens]
    assert np.array_equal(one.top_ids[:, :3], other.top_ids[:, :3])
    assert np.allclose(one.top_log_probs, other.top_log_probs, atol=0.02)


def test_a_long_text_is_cut():
    ended = []
    trace = TextTrace("a", 0.0, 2, ended.append)
    row = tuple((id, -1.0) for id in range(TOP))
    for count in (MAX_TOKENS - 1, 5):
        result = AcceptanceResult(count - 1, 9, read={LikeliestReading: [row] * (count + 3)})
        trace.committed(2, (9,) * count, result)
    trace.ended(range(2 + MAX_TOKENS + 4))
    trace.ended(range(2 + MAX_TOKENS + 4))
    [kept] = ended
    assert len(kept.top_ids) == MAX_TOKENS
    assert len(kept.ids) == 2 + MAX_TOKENS


# -- the loop never waits -----------------------------------------------------------------------------------------


def test_a_slow_disk_loses_texts_and_delays_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("adapt.kept.keeper.WAITING", 4)
    store = StuckStore(tmp_path)
    keeper = TextKeeper(store, WORDS)
    began = time.monotonic()
    for _ in range(50):
        keeper.offer(text())
    assert time.monotonic() - began < 5
    assert keeper.counts["dropped"] >= 45
    store.free.set()
    keeper.close()
    assert keeper.counts["kept"] == 50 - keeper.counts["dropped"]


async def test_the_metric_is_there_without_a_keeper(tmp_path):
    async with serving() as (manager, _):
        [found] = [each for each in metrics(manager) if each.name == "kept_texts_total"]
        assert found.read() == {}
        manager.keeper = TextKeeper(KeptStore(tmp_path), WORDS)
        assert found.read() == {"kept": 0, "dropped": 0, "refused": 0, "failed": 0}
        manager.keeper.close()


# -- what serve requires ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ServeConfig(keep_text="kept"), "needs --tokens FILE"),
        (ServeConfig(keep_text="kept", tokens="t", replicas=2), "with replicas"),
    ],
)
def test_serve_refuses_what_would_keep_nothing_or_could_not_be_deleted(config, said):
    with pytest.raises(UsageError, match=said):
        require_keepable(config)


def test_a_folder_that_cannot_be_made_or_that_others_read_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        keeper_of(ServeConfig(keep_text=str(tmp_path / "file"), tokens="t"), WORDS)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(UsageError, match="chmod 700"):
        keeper_of(ServeConfig(keep_text=str(tmp_path / "open"), tokens="t"), WORDS)
    keeper = keeper_of(ServeConfig(keep_text=str(tmp_path / "new"), tokens="t"), WORDS)
    assert keeper is not None
    keeper.close()
    assert keeper_of(ServeConfig(), WORDS) is None
    require_keepable(ServeConfig())


# -- floods, full disks, deletions --------------------------------------------------------------------------------


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
            # A text that was just written goes by itself
            block_until(
                lambda moment=moment: not older(moment), PATIENCE / 3, "a text has outlived the deletion"
            )

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
