"""Cacheback: what its tables draft, how it grows, how sure it is, how fast, and that the text stays the target's."""

import random
from itertools import islice

import pytest

from edge_client.device.config import DeviceConfig
from edge_client.device.drafter_choice import make_factory
from edge_client.drafters.base import DrafterOptions
from edge_client.drafters.cacheback import CachebackDrafter, CachebackFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import _shorten
from opensled.core.errors import NotFound, UsageError, VocabularyMismatch
from opensled.core.messages import Draft, DraftBlock, DraftToken, Limits, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler, SparseSampler
from opensled.drafting import table_file
from opensled.drafting.followers import Followers
from opensled.drafting.growth import BOTH, DEEPEST, FROZEN, MAX_NODES, Calibration
from opensled.drafting.table_file import TableFile
from opensled.drafting.tables import FrozenTable, LruTable, TableShape, as_rows
from tests.drafter_contract import DrafterContract, ids, pull
from tests.lossless import brave_a_storm
from tests.pace import units
from tests.tiny_drafts import TEXT, TINY_DRAFT, TRACE, some_table, tiny_info, tiny_tokenizer

GREEDY = Sampler(SamplingParams(temperature=0), noise_key(1))
TREES = FixedLength(6, tree=24)


def learned(text, shape: TableShape = TableShape(1, 2, 2, 100)) -> LruTable:
    table = LruTable(shape)
    table.update((), text)
    return table


def frozen_of(text, shape: TableShape = TableShape(1, 2, 2, 100)) -> FrozenTable:
    return FrozenTable(as_rows(learned(text, shape).items(), shape), 100)


def drafter_of(dynamic: LruTable, frozen: FrozenTable | None = None, ends=frozenset()) -> CachebackDrafter:
    drafter = CachebackDrafter(frozen, ends)
    drafter._sampler = GREEDY
    drafter._followers = Followers(dynamic, frozen, ends, drafter._calibration)
    return drafter


def nodes_of(drafter: CachebackDrafter, tail) -> list[tuple[int, int]]:
    drafter._followers._tail = tuple(tail)
    return [(node.token.id, node.parent) for node in drafter.propose_tree()]


class TestCacheback(DrafterContract):
    @pytest.fixture(scope="class", params=["beside", "off"])
    @classmethod
    def factory(cls, request):
        factory = CachebackFactory("tiny-draft" if request.param == "beside" else "", threads=3)
        factory.fit(tiny_info())
        return factory

    def test_its_chain_are_the_first_children_of_its_tree(self, drafter):
        drafter.begin(self.prompt, self.sampler())
        tree = list(drafter.propose_tree())
        first = {node.parent: number for number, node in reversed(list(enumerate(tree)))}
        chain, at = [], -1
        while at in first:
            at = first[at]
            chain.append(tree[at].token)
        assert chain == list(drafter.propose())
        assert 1 < len(chain) <= DEEPEST

    def test_a_tree_has_parents_before_children_and_no_twins(self, drafter):
        drafter.begin(self.prompt * 3, self.sampler())
        tree = list(drafter.propose_tree())
        assert all(-1 <= node.parent < number for number, node in enumerate(tree))
        assert len({(node.parent, node.token.id) for node in tree}) == len(tree) <= MAX_NODES
        assert all(0 < node.token.confidence < 1 for node in tree)

    def test_every_token_says_what_it_was_drawn_from_under_rule_ratio(self, drafter):
        sampler = SparseSampler(SamplingParams(temperature=1), noise_key(1))
        drafter.begin(self.prompt, sampler)
        tokens = pull(drafter, 9) + [node.token for node in drafter.propose_tree()]
        assert tokens and all(
            token.drawn_from and token.drawn_from.ids == (token.id,) and token.drawn_from.probs == (1.0,)
            for token in tokens
        )


class TestGrowth:
    def test_the_trace_of_the_paper(self):
        """From 5: 7 -> {8, 9}; leaf 9 adds 5 -> 7, and so on; leaf 8 has no row."""
        drafter = drafter_of(learned(TRACE))
        tree = nodes_of(drafter, TRACE)
        assert tree[:3] == [(7, -1), (8, 0), (9, 0)]
        assert tree[3:5] == [(5, 2), (7, 3)]
        assert [token for token, _ in drafter.guess(TRACE)] == [7, 8]

    def test_the_dynamic_table_comes_first_and_no_follower_twice(self):
        drafter = drafter_of(learned((1, 2, 3)), frozen_of((1, 4, 5, 8, 1, 2, 3)))
        assert drafter._followers._row((1,)) == (((2, 3), BOTH), ((4, 5), FROZEN))
        assert [token for token, _ in drafter.guess((1,))] == [2, 3]

    def test_the_frozen_table_drafts_where_the_other_one_is_silent(self):
        drafter = drafter_of(LruTable(), frozen_of((1, 2, 3, 4, 5)))
        assert [token for token, _ in drafter.guess((1,))] == [2, 3, 4, 5]

    def test_a_repeated_pattern_goes_on_to_the_depth_limit(self):
        drafter = drafter_of(learned((1, 2, 3) * 3))
        assert [token for token, _ in drafter.guess((3,))] == [1, 2, 3] * 3
        depth = {-1: 0}
        for number, (_, parent) in enumerate(nodes_of(drafter, (3,))):
            depth[number] = depth[parent] + 1
        assert max(depth.values()) == DEEPEST

    def test_the_likeliest_grow_first(self):
        """By the sum of ranks on the way, then by depth: the first followers' chain, then what has one second rank."""
        text = (1, 2, 3, 1, 4, 5, 1, 6, 7, 2, 3, 8, 4, 5, 9, 1)
        tree = nodes_of(drafter_of(learned(text, TableShape(1, 2, 8, 100))), text)
        assert [token for token, parent in tree if parent == -1] == [6, 4, 2]
        assert tree[:4] == [(6, -1), (7, 0), (2, 1), (3, 2)]

    def test_a_tree_ends_with_its_nodes(self):
        draw = random.Random(1)
        text = [draw.randrange(6) for _ in range(500)]
        assert len(nodes_of(drafter_of(learned(text, TableShape())), text)) == MAX_NODES

    def test_nothing_follows_the_end(self):
        text = (1, 2, 0, 3, 1, 2, 0, 5, 1)
        drafter = drafter_of(learned(text, TableShape()), None, frozenset({0}))
        assert [token for token, _ in drafter.guess(text)] == [2, 0]
        tree = nodes_of(drafter, text)
        ends = {number for number, (token, _) in enumerate(tree) if token == 0}
        assert ends and not any(parent in ends for _, parent in tree)


class TestCalibration:
    def test_begins_with_less_for_later_ranks(self):
        calibration = Calibration()
        assert [calibration.confidence(0, rank, 0) for rank in range(3)] == [1 / 2, 1 / 3, 1 / 4]

    def test_is_the_share_that_was_right_given_the_tokens_before(self):
        calibration = Calibration()
        row = (((1, 2, 3), 0), ((1, 5, 6), FROZEN))
        for tokens in ((1, 2, 9), (1, 2), (4,)):
            calibration.learn(row, tokens)
        calibration.begin()
        assert calibration.confidence(0, 0, 0) == 3 / 5  # right twice of three times
        assert calibration.confidence(0, 0, 1) == 3 / 4
        assert calibration.confidence(0, 0, 2) == 1 / 3
        assert calibration.confidence(FROZEN, 1, 1) == 1 / 5  # its first token was right, its second never

    def test_what_this_sequence_shows_weighs_more(self):
        calibration, row = Calibration(), (((1,), 0),)
        for token in (1,) * 98 + (2,) * 48:
            calibration.learn(row, (token,))
        calibration.begin()
        before = calibration.confidence(0, 0, 0)
        for _ in range(8):
            calibration.learn(row, (1,))
        assert before == 99 / 148
        assert calibration.confidence(0, 0, 0) == pytest.approx((8 + 4 * 107 / 156) / 12)

    def test_a_new_sequence_begins_with_what_all_have_shown(self):
        drafter = CachebackDrafter()
        for text in ([1, 2, 3, 4] * 5, [1, 9, 1, 8, 1, 7, 1, 6] * 3):
            drafter.begin(text[:4], GREEDY)
            drafter.commit(text[4:])
        right, seen = drafter._calibration._all[0, 0, 0]
        drafter.begin([1, 2, 3, 4, 1], GREEDY)
        assert pull(drafter, 1)[0].confidence == pytest.approx((right + 1) / (seen + 2))

    def test_a_drafter_learns_from_what_is_committed_not_from_the_prompt(self):
        drafter = CachebackDrafter()
        drafter.begin([1, 2, 3, 4] * 5, GREEDY)
        assert pull(drafter, 1)[0].confidence == 1 / 2
        drafter.commit([1, 2, 3, 4] * 5)
        sure = pull(drafter, 1)[0].confidence
        drafter.commit([9, 8, 1, 9, 7, 6, 1])
        assert sure > 0.9 and pull(drafter, 1)[0].confidence < sure


class TestTables:
    def test_finds_the_table_beside_the_model(self):
        for model in ("tiny-draft", str(TINY_DRAFT), str(TINY_DRAFT / "tiny-draft-q8_0.gguf")):
            assert CachebackFactory(model).name == "cacheback tiny-draft.table"
        for model in ("", "tiny", "nothing.gguf"):
            assert CachebackFactory(model).name == "cacheback"

    def test_a_named_one_of_another_vocabulary_is_refused(self, tmp_path):
        path = tmp_path / "other.table"
        table_file.write(path, some_table())
        factory = CachebackFactory("tiny-draft", options=DrafterOptions(draft_table=str(path)))
        with pytest.raises(VocabularyMismatch, match=r"other\.table.*'tiny'"):
            factory.fit(tiny_info())

    def test_an_unnamed_one_of_another_vocabulary_is_left_out(self, caplog):
        factory = CachebackFactory("tiny-draft")
        factory.fit(tiny_info(model_id="big", fingerprint="another"))
        assert "without a frozen table" in caplog.text and factory.name == "cacheback"
        drafter = factory.create()
        drafter.begin([1, 2, 3], GREEDY)
        assert pull(drafter) == []

    def test_a_missing_one_is_told_before_anything_is_drafted(self, tmp_path):
        factory = CachebackFactory(options=DrafterOptions(draft_table=str(tmp_path / "none.table")))
        with pytest.raises(NotFound, match=r"none\.table"):
            factory.fit(tiny_info())

    def test_tables_are_for_drafters_that_have_them(self):
        for files in ({}, {"draft_table": "off"}, {"personal_table": "off"}):
            make_factory(DeviceConfig(**files), "lookup", "")
        for files in ({"draft_table": "x"}, {"personal_table": "x"}):
            with pytest.raises(UsageError, match="draft-table and --personal-table"):
                make_factory(DeviceConfig(**files), "lookup", "")

    def test_a_personal_table_remembers_the_sequence_before(self, tmp_path):
        path, text = tmp_path / "mine.table", tiny_tokenizer().encode("My cat is called Minerva.")
        for remembered in (False, True):
            factory = CachebackFactory(options=DrafterOptions(personal_table=str(path)))
            factory.fit(tiny_info())
            drafter = factory.create()
            drafter.begin(text[:1], GREEDY)
            assert (ids(pull(drafter, 3)) == list(text[1:4])) == remembered
            drafter.commit(text[1:])
            other = factory.create()
            other.begin(text[:1], GREEDY)
            assert ids(pull(other, 3)) == list(text[1:4])  # drafters of one device share it
            drafter.close()
            drafter.close()

    def test_without_one_a_sequence_is_forgotten(self):
        drafter = CachebackDrafter()
        drafter.begin([1, 2, 3, 4, 1], GREEDY)
        assert pull(drafter)
        drafter.begin([1], GREEDY)
        assert pull(drafter) == []
        drafter.commit([2, 3, 4, 1])
        assert pull(drafter)
        drafter.close()
        drafter.begin([1], GREEDY)
        assert pull(drafter) == []


@pytest.mark.timed
def test_sixty_nodes_take_far_less_than_a_verdict():
    """The quickest here; docs/benchmarks/cacheback.json has the p99."""
    prompt = tiny_tokenizer().encode(TEXT) * 3
    factory = CachebackFactory("tiny-draft")
    factory.fit(tiny_info())
    drafter, draw = factory.create(), random.Random(5)
    drafter.begin(prompt, GREEDY)

    def propose():
        drafter.commit([draw.choice(prompt)])
        assert len(list(drafter.propose_tree())) <= MAX_NODES

    assert units(propose, 200) < 4


@pytest.mark.parametrize("stop", [FixedLength(4), TREES], ids=["chains", "trees"])
async def test_sixteen_mixed_sessions_in_a_storm(exact64, stop):
    answers = await brave_a_storm(exact64, "cacheback", stop)
    longest = max(round.drafted for answer in answers for round in answer.rounds)
    assert longest > 16 if stop.tree else longest <= stop.length  # 16: the server's longest chain


def test_a_tree_is_cut_to_what_the_server_takes_of_trees():
    tree = DraftBlock(5, (DraftToken(1),) * 24, (-1, *range(23)))
    limits = Limits(max_draft=16, context_length=100, max_tree=20)
    for block, length in ((tree, 20), (DraftBlock(5, tree.tokens), 16)):
        cut = _shorten(Draft(1, block), limits).block
        assert cut == block.first(length)
        assert len(cut.tokens) == length == len(cut.parents or cut.tokens)


def test_more_than_a_token_a_round_on_text_that_repeats_itself_and_one_on_noise():
    draw = random.Random(2)
    for text, least, most in (
        ([1, 2, 3, 4, 5, 6, 7, 8] * 12, 4.0, 9.0),
        ([draw.randrange(1000) for _ in range(96)], 1.0, 1.1),
    ):
        drafter, at, rounds = CachebackDrafter(), 1, 0
        drafter.begin(text[:1], GREEDY)
        while at < len(text):
            block = [token.id for token in islice(drafter.propose(), 8)]
            agreed = 0
            while agreed < len(block) and text[at + agreed : at + agreed + 1] == [block[agreed]]:
                agreed += 1
            drafter.commit(text[at : at + agreed + 1])
            at, rounds = at + agreed + 1, rounds + 1
        assert least <= (len(text) - 1) / rounds <= most


def test_a_table_of_the_same_vocabulary_is_taken(tmp_path):
    path = tmp_path / "mine.table"
    info = tiny_info()
    shape = TableShape()
    rows = as_rows(learned((11, 12, 13, 14, 15), shape).items(), shape)
    table_file.write(path, TableFile(rows, shape, info.vocab_size, info.fingerprint))
    factory = CachebackFactory("tiny-draft", options=DrafterOptions(draft_table=str(path)))
    factory.fit(info)
    drafter = factory.create()
    drafter.begin([11], GREEDY)
    assert ids(pull(drafter, 3)) == [12, 13, 14]
