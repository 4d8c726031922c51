"""The KV of a draft model is a guest in the target's memory: it takes none from users, and is the first to go."""

import random

import pytest

from opensled.core.protocol import EndRules
from opensled.models.store import model_file
from tests.drafters_beside import Recorder, counted, fresh_engine, texts_as_asked
from tests.fakes import FakeEngine, continuation
from verify_server.drafting.guests import Guest, GuestPool
from verify_server.drafting.model import ServerModel
from verify_server.engine.torch import torch_engine
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.kv.memory import SequenceMemory
from verify_server.round.sequence import Sequence

SIZE = 4
PROMPTS = [[id, 2, 3] for id in range(1, 5)]
EXPECTED = [tuple(continuation(prompt, 40)) for prompt in PROMPTS]
FULL = len(PROMPTS) * 11  # KV blocks that hold all of them to their ends


def lodged(share: int = 1) -> ServerModel:
    """A perfect draft model in the target's memory, of which `share` blocks are in one of the target's."""
    return ServerModel(FakeEngine(num_blocks=400, facts={"lodged": share}))


def pools(blocks: int, share: int = 1) -> tuple[BlockPool, GuestPool]:
    host = BlockPool(blocks, SIZE, prefix_key=b"key")
    return host, GuestPool(host, share * SIZE)


def drafted(kv: Guest, tokens: list[int], most: int = 4) -> tuple[int, int] | None:
    """A draft model reads a text, and drafts; its blocks, and what it had computed before."""
    prepared = kv.prepare(a_text(tokens), most)
    if prepared is None:
        return None
    kv.write(len(tokens) - prepared[1], (7,) * (most - 1))
    return len(prepared[0]), prepared[1]


def a_text(tokens: list[int]) -> Sequence:
    return Sequence(tokens, len(tokens), EndRules(frozenset(), frozenset(), 1000), SequenceMemory())


# -- who gives way -----------------------------------------------------------------------------------------------


def test_a_sequence_takes_guests_blocks_before_a_prefix_is_lost():
    host, guests = pools(8)
    reader, kv = BlockTable(host), guests.place("")
    reader.grow(8)
    reader.publish([1] * 8, 8)
    reader.clear()  # two blocks can be found
    assert drafted(kv, [5] * 20) == (6, 0) and host.num_free == 8
    reader.grow(24)
    assert host.evictions == 0 and host.num_free == 2
    assert drafted(kv, [5] * 20) is None and kv.read == 0


def test_the_guest_that_was_drafted_for_longest_ago_goes_first():
    host, guests = pools(9)
    kvs = [guests.place("") for _ in range(3)]
    for number, kv in enumerate(kvs):
        assert drafted(kv, [number + 1] * 8)[0] == 3
    drafted(kvs[0], [1] * 8)
    BlockTable(host).grow(SIZE)
    assert [kv.read for kv in kvs] == [8, 0, 8]


def test_one_that_rests_makes_room_for_others_and_one_that_is_drafted_for_does_not():
    _, guests = pools(4)
    first, second = guests.place(""), guests.place("")
    assert drafted(first, [1] * 12)[0] == 4
    assert drafted(second, [2] * 12) is None and first.read == 12
    first.rest(a_text([1] * 12))
    assert drafted(second, [2] * 12)[0] == 4 and drafted(first, [1] * 12) is None


def test_what_is_lost_is_read_again_where_there_is_room():
    host, guests = pools(6)
    kv, reader, text = guests.place(""), BlockTable(host), [3] * 10
    drafted(kv, text)
    reader.grow(6 * SIZE)
    assert drafted(kv, text) is None
    reader.clear()
    assert drafted(kv, text) == (4, 0)
    assert drafted(kv, [*text, 7, 7]) == (4, 11)


@pytest.mark.parametrize("seed", range(20))
def test_no_block_is_lost_or_in_two_places(seed):
    rng, text, lengths = random.Random(seed), [place % 3 for place in range(900)], [2, 2, 2]
    host, guests = pools(12, share=2)
    tables, kvs = [BlockTable(host) for _ in range(3)], [guests.place("") for _ in range(3)]
    for _ in range(200):
        number = rng.randrange(3)
        table, kv = tables[number], kvs[number]
        act = rng.randrange(5)
        if act == 0:
            table.clear()
        elif act == 1:
            table.grow(min(table.reach(), rng.randrange(40)))
        elif act == 2:
            kv.clear()
        elif act == 3:
            kv.rest(a_text(text[: lengths[number]]))
        else:
            lengths[number] += rng.randrange(6)
            drafted(kv, text[: lengths[number]])
        held = [block for each in tables for block in each.blocks]
        lent = {block for each in kvs for block in each._table.blocks} | {*guests._unused, *guests._cached}
        assert len(held) == len(set(held)) and not lent & set(held)
        assert len(lent) == host.lent and host.num_free == 12 - len(held)


# -- a server ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1, 3])
def test_no_sequence_loses_its_memory_to_a_draft_model(share):
    """In memory that all of them just fit in, as without a draft model."""
    texts, stats = counted(lodged(share), FakeEngine(num_blocks=FULL), PROMPTS)
    assert texts == EXPECTED and stats.own.accepted > 20 and stats.preempted == 0


def test_with_memory_full_of_users_nobody_is_drafted_for():
    """A text of 60 to 100 positions, for which 30 blocks of four leave no room to be read once more."""
    model, prompt = lodged(), [1 + place % 40 for place in range(60)]
    texts, stats = counted(model, FakeEngine(num_blocks=30), [prompt])
    assert texts == [tuple(continuation(prompt, 40))] and stats.steps >= 40
    assert model._engine.computed == 0


# -- engine torch ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights() -> str:
    return str(model_file("tiny-draft", "*.gguf"))


@pytest.mark.parametrize(("dtype", "share"), [("float64", 4), ("float32", 8)])
def test_a_draft_model_in_the_targets_tensors_drafts_what_it_drafts_in_its_own(
    reference, weights, dtype, share
):
    """With sequences that lose their KV and blocks that change hands, and at no cost to a text."""
    target, options = fresh_engine(240), {"device": "cpu", "dtype": dtype, "numerics": "fast"}
    draft = torch_engine.load(weights, host=target, **options)
    assert (draft.info.lodged, draft.info.num_blocks) == (share, share * target.info.num_blocks)
    [storage] = {tensor.untyped_storage().data_ptr() for tensor in draft._model.memory._tensors()[:1]}
    assert storage == target._model.memory._tensors()[0].untyped_storage().data_ptr()
    recorder = Recorder(ServerModel(draft))
    texts_as_asked(target, recorder, reference, 0.8, preempted=0)  # KV is taken from them by hand
    alone = ServerModel(torch_engine.load(weights, kv_tokens=320, **options))
    whole = [
        (ask._replace(blocks=tuple(range(20)), computed=0), made)
        for ask, made in recorder.seen
        if made.block.tokens
    ]
    assert len(whole) > 20
    for ask, made in whole[:: len(whole) // 20]:
        assert alone.propose([ask])[0].block.ids == made.block.ids


def test_a_draft_model_that_is_larger_for_a_token_has_memory_of_its_own(weights):
    small = torch_engine.load(weights, device="cpu", dtype="float32", kv_tokens=64, numerics="fast")
    draft = torch_engine.load(weights, device="cpu", dtype="float64", numerics="fast", host=small)
    assert (draft.info.lodged, draft.info.num_blocks) == (0, 4)
