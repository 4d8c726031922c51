"""KV in two tiers and the real engine: bits that come back, texts and rounds that are the same as without the tier."""

from __future__ import annotations

from random import Random

import pytest
import torch

from hw_profiles.step_cost import HardwareProfile
from opensled.messages import Draft, DraftBlock, DraftToken, SamplingParams, Verdict
from scheduler.fcfs import Fcfs
from tests.sessions import made
from tests.system import read_now
from tests.tiered import HeldCopies, host_memory
from tests.tiny_models import VOCABULARY, random_model
from tests.tree_drafts import grown
from verify_server.engine.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.torch_engine import TorchEngine, load
from verify_server.kv.blocks import BlockTable
from verify_server.loop import VerifyLoop
from verify_server.session import DraftLimits, Session
from verify_server.step import run_step

BLOCKS, HOST = 12, 40
LIMITS = DraftLimits(VOCABULARY, 6, 12)
PROMPT, ANSWER = 40, 24  # tokens
SESSIONS = 5  # of up to 5 blocks each: half of them fit


class Keeper:
    """A reader of hidden states with a memory of its own over the same blocks, as draft heads have one."""

    taps = (1,)

    def __init__(self) -> None:
        self.memory = KVMemory(BLOCKS)
        self.memories = (self.memory,)

    def read(self, hidden, positions, slots) -> None:
        self.memory.write(0, slots, hidden, hidden[..., :0])

    def move(self, sources, targets) -> None:
        self.memory.move(sources, targets)


@pytest.fixture(scope="module", params=["float64", "bfloat16"])
def engine(request, tmp_path_factory) -> TorchEngine:
    folder = random_model("llama", tmp_path_factory.mktemp("llama"))
    engine = load(str(folder), device="cpu", dtype=request.param, kv_tokens=BLOCKS * BLOCK_SIZE)
    engine.attach(Keeper())
    own = BLOCK_SIZE * engine._model.memory.bytes_per_token()
    assert engine.reserve_host(HOST) > own, "the reader's memory moves, too"
    return engine


def by_block(tensor):
    """[blocks, numbers], the block that no sequence owns included."""
    return tensor.view(len(tensor) // BLOCK_SIZE, -1)


@torch.inference_mode()
def test_bits_are_the_same_after_a_round_trip(engine):
    """Through scattered blocks of both memories, while what lies beside them stays as it was."""
    stored = [*engine._model.memory.tensors(), engine._reader.memory.tensors()[0]]
    noise = torch.Generator().manual_seed(1)
    for tensor in stored:
        bits = torch.randint(-128, 128, (tensor.numel() * tensor.element_size(),), generator=noise)
        tensor.view(-1).view(torch.int8).copy_(bits.to(torch.int8))
    before = [by_block(tensor).view(torch.int8).clone() for tensor in stored]
    leaving, places, back = (7, 1, 2, 11, 4), (30, 3, 4, 5, 17), (0, 5, 7, 11, 1)
    engine.swap_out(leaving, places)()
    for tensor in stored:
        by_block(tensor)[list(back)] = 0
    engine.swap_in(places, back)()
    for tensor, was in zip(stored, before):
        now = by_block(tensor).view(torch.int8)
        assert torch.equal(now[list(back)], was[list(leaving)])
        others = [block for block in range(BLOCKS) if block not in back]
        assert torch.equal(now[others], was[others])
        tensor.zero_()


class Rounds:
    """Five devices that draft chains and trees of every quality, one round after the other."""

    def __init__(self, engine: TorchEngine, tiered: bool, seed: int = 0, script=None) -> None:
        self.engine, self.now = engine, 0.0
        self.copies = HeldCopies(), HeldCopies()
        options = {"host": host_memory(HOST), "copiers": self.copies} if tiered else {}
        self.loop = VerifyLoop(engine, Fcfs(1e6), HardwareProfile(64), lambda: self.now, **options)
        self.chance, self.drafts, self.script = Random(seed + 1), Random(seed), script
        self.told: list[list[Verdict]] = []
        self.sessions = [self.open(number) for number in range(SESSIONS)]

    def open(self, number: int) -> Session:
        kind = 3 + number % 2  # those of one kind begin alike
        prompt = [kind, *[5 + (kind * place) % 60 for place in range(PROMPT - 2)], 70 + number]
        params = SamplingParams(temperature=0.8 * (number % 2), max_tokens=ANSWER)
        table = BlockTable(self.loop.pool, "t")
        session = made(
            number, prompt, ANSWER, table, LIMITS, eos=VOCABULARY - 1, params=params, key=bytes([number]) * 16
        )
        self.loop.add(session)
        self.loop.attach(session, PROMPT)
        self.told.append([])
        return session

    def draft(self, session: Session, counter: int) -> None:
        base = len(session.sequence)
        coming = self.script[session.id][base : base + 4] if self.script else []
        right = coming[: self.drafts.randint(0, 4)]
        if self.drafts.random() < 0.4 and right:
            block = grown(self.drafts, base, right, self.drafts.randint(1, 10), 60)
        else:
            ids = [*right, *[self.drafts.randrange(60) for _ in range(self.drafts.randint(0, 2))]][:6]
            block = DraftBlock(base, tuple(map(DraftToken, ids or [1])))
        self.loop.submit(session, Draft(counter, block))

    def move(self) -> None:
        """At every opportunity who may leave does, and copies end when chance wants it."""
        tier = self.loop.tier
        if tier is None:
            return
        for session in self.sessions:
            table = session.sequence.table
            if table.swap is None and table.blocks and not session.in_step and self.chance.random() < 0.5:
                tier.park(session, must=True)
        for copies in self.copies:
            while copies.waiting and self.chance.random() < 0.7:
                copies.end()

    def step(self) -> bool:
        self.move()
        self.loop._tend()
        plan = self.loop.policy.plan(self.loop._snapshot(), self.loop.profile, self.now)
        work = self.loop._prepare(plan)
        self.move()
        if work:
            self.loop._commit(work, run_step(self.engine, work))
        self.now += 0.001
        return bool(work)

    def round(self, counter: int) -> None:
        for session in self.sessions:
            if not session.sequence.finish_reason:
                self.draft(session, counter)
        for _ in range(400):
            waiting = [one for one in self.sessions if one.pending is not None]
            if not waiting:
                break
            self.step()
        else:
            raise AssertionError("somebody never gets his turn")
        for session, told in zip(self.sessions, self.told):
            while len(session.outbox):
                told.append(read_now(session.outbox))

    def run(self) -> list[list[Verdict]]:
        for counter in range(1, 40):
            if all(session.sequence.finish_reason for session in self.sessions):
                break
            self.round(counter)
        tier = self.loop.tier
        if tier is not None:
            while tier.travelling:
                for copies in self.copies:
                    while copies.waiting:
                        copies.end()
            assert tier.pool.num_free == HOST
        assert self.loop.pool.num_free == BLOCKS
        return self.told


def texts(rounds: Rounds) -> list[list[int]]:
    return [session.sequence.tokens for session in rounds.sessions]


def test_forced_moves_change_no_text_and_no_round(engine):
    if engine.info.numerics != "exact":
        pytest.skip("bits depend on the batch here, and batches differ with the tier")
    plain = Rounds(engine, tiered=False)
    plain.run()
    for seed in range(2):
        alone = Rounds(engine, tiered=False, seed=seed, script=texts(plain))
        moved = Rounds(engine, tiered=True, seed=seed, script=texts(plain))
        assert moved.run() == alone.run()
        assert texts(moved) == texts(alone) == texts(plain)
        stats = moved.loop.tier.stats
        assert stats.copies["in"] > 20 and stats.copies["out"] > 20
