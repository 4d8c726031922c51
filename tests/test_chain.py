"""Chains of drafters, and a draft model with tables in front: which drafter drafts, and what all of them hear."""

from contextlib import closing
from dataclasses import replace
from itertools import islice

import pytest

from edge_client.device.config import DeviceConfig
from edge_client.device.drafter_choice import FittingFactory, make_factory
from edge_client.drafters import DRAFTERS
from edge_client.drafters.cacheback import CachebackDrafter
from edge_client.drafters.chain import HORIZON, ChainDrafter, ChainFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.round.draft_job import BlockBudget
from edge_client.round.drafting import DraftThread
from opensled.core.errors import NotFound, UsageError, VocabularyMismatch
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler
from tests.drafter_contract import BLOCK, DrafterContract, ids, pull
from tests.lossless import answer_all, cases, check
from tests.tiny_drafts import Speaker, ToyDrafter, tiny_info

CHAIN = "chain:cacheback,llamacpp"
BOTH = "chain:cacheback,accelerated:llamacpp"
GREEDY = Sampler(SamplingParams(temperature=0), noise_key(1))


class TestChain(DrafterContract):
    @pytest.fixture(scope="class")
    @classmethod
    def factory(cls):
        pytest.importorskip("llama_cpp")
        factory = DRAFTERS.get(CHAIN)("tiny-draft", 1)
        factory.fit(tiny_info())
        return factory

    @pytest.fixture
    def assert_on_path(self):
        """Which drafter drafts depends on the history; its tokens are those that it drafts without a history."""
        parts = [DRAFTERS.get(name)("tiny-draft", 1).create() for name in ("cacheback", "llamacpp")]

        def agreement(said, truth, draw, count) -> int:
            agreed = []
            for part in parts:
                part.begin(truth, draw)
                fresh = ids(pull(part, count))
                agreed.append(sum(1 for left, right in zip(said, fresh) if left == right))
            return max(agreed)

        def check(drafter, truth, draw, count=BLOCK):
            said = ids(pull(drafter, count))
            assert agreement(said, truth, draw, count) >= len(said) - 1  # a rounding of llama.cpp may tip one

        yield check
        for part in parts:
            part.close()


class TestTurns:
    SURE = 0.99

    def test_the_first_that_is_sure_all_hear(self):
        sure, last = Speaker(range(8), self.SURE), Speaker([13, 14])
        chain = ChainDrafter([sure, last])
        chain.begin([7, 8], GREEDY)
        assert ids(pull(chain, 8)) == [*range(8)]
        chain.commit([0, 1, 5])
        assert sure.heard == last.heard == [7, 8, 0, 1, 5]
        chain.close()
        assert sure.closed and last.closed

    def test_the_last_where_no_other_is_sure_and_an_unsure_one_where_it_is_silent(self):
        unsure, silent = Speaker(range(8), 0.7), Speaker([])
        assert ids(pull(ChainDrafter([unsure, Speaker([13])]))) == [13]
        assert ids(pull(ChainDrafter([unsure, silent]), 8)) == [*range(8)]
        assert ids(pull(ChainDrafter([silent, silent]))) == []

    def test_a_usual_block_of_the_last_one_is_what_others_are_compared_with(self):
        chain = ChainDrafter([Speaker(range(8), 0.8), Speaker([13] * 8)])  # 2.4 right ones are expected
        chain.begin([7], GREEDY)
        said = []
        for _ in range(40):
            said += ids(pull(chain, 1))
            chain.commit([13, 13])
        # Of one token even the best drafter has no more than one right.
        assert said[0] == 13 and said[-1] == 0

    def test_tokens_that_cost_nothing_are_ready_as_far_as_they_are_worth_a_row(self):
        chain = ChainDrafter([Speaker(range(20), self.SURE), Speaker([13] * 8)])
        assert chain.ready == HORIZON
        chain = ChainDrafter([Speaker([1, 2, 3, 4], 0.85), Speaker([], 0.9)])
        chain._right = 0.0
        assert chain.ready == 4
        chain = ChainDrafter([Speaker(range(8), 0.7), Speaker([], 0.9)])
        chain._right = 0.0
        assert chain.ready == 2  # the third one stands with 0.34
        assert ChainDrafter([Speaker(range(8), 0.1), Speaker([13] * 8)]).ready == 0

    def test_few_tokens_however_sure_are_less_than_many(self):
        assert ids(pull(ChainDrafter([Speaker([1, 2], 1.0), Speaker(range(8))]), 8)) == [*range(8)]

    def test_a_last_one_that_errs_leaves_more_to_those_before_until_the_next_sequence(self):
        chain = ChainDrafter([Speaker(range(8), 0.7), Speaker([13] * 8)])
        for _ in range(2):
            chain.begin([7], GREEDY)
            said = []
            for _ in range(12):
                said.append(ids(pull(chain, 8))[0])
                chain.commit([9])
            assert said[0] == 13 and said[-1] == 0

    def test_a_last_one_that_is_right_keeps_the_word(self):
        first = Speaker(range(8), 0.95)
        chain = ChainDrafter([first, Speaker([13] * 8)])
        chain.begin([7], GREEDY)
        assert ids(pull(chain, 1)) == [0]
        first.confidence = 0.1
        for _ in range(30):
            assert ids(pull(chain, 8)) == [13] * 8
            chain.commit([13] * 8)
        first.confidence = 0.95
        assert ids(pull(chain, 1)) == [13]

    def test_only_tokens_that_were_tried_count(self):
        chain = ChainDrafter([Speaker([]), Speaker([1, 2, 3])])
        before = chain._usual()
        assert ids(pull(chain, 3)) == [1, 2, 3]
        chain.commit([1, 9])  # one right, one wrong, one never tried
        after = (0.9 * 18 + 1) / (0.9 * 20 + 2)
        assert chain._usual() == pytest.approx(sum(after**count for count in range(1, 5))) != before
        chain.begin([7], GREEDY)
        assert chain._usual() == before and pull(chain, 3)
        chain.commit([1])  # the verdict has more to come
        assert chain._usual() > before

    def test_a_tree_comes_from_who_has_one(self):
        text = [1, 2, 3, 4] * 10
        tables, model = CachebackDrafter(), ToyDrafter(rolls_back=True)
        chain = ChainDrafter([tables, model])
        chain.begin(text, GREEDY)
        assert list(chain.propose_tree()) == []  # no table is sure yet: a chain of the model
        chain.commit(text * 5)
        assert list(chain.propose_tree()) == list(tables.propose_tree()) != []

    async def test_where_no_drafter_has_a_tree_a_chain_is_sent(self):
        chain = ChainDrafter([CachebackDrafter(), ToyDrafter(rolls_back=True)])
        truth = Truth((1, 2, 3, 4, 1))
        with closing(DraftThread(chain, FixedLength(3, tree=8))) as thread:
            thread.begin(truth, GREEDY)
            block = (await thread.draft(truth, BlockBudget(3, tree=8))).block
        alone = ToyDrafter(rolls_back=True)
        alone.begin((1, 2, 3, 4, 1), GREEDY)
        assert list(block.ids) == ids(pull(alone, 3)) and block.parents == ()

    def test_the_model_goes_on_behind_the_tables_block_while_its_verdict_travels(self):
        text = [1, 2, 3, 4] * 10
        tables, model = CachebackDrafter(), ToyDrafter(rolls_back=True)
        chain = ChainDrafter([tables, model])
        chain.begin(text, GREEDY)
        chain.commit(text * 5)
        block = pull(chain, 4)
        assert ids(block) == [1, 2, 3, 4] and chain.ready == HORIZON
        assert len(list(islice(chain.look_ahead(block, 3), 9))) == 4  # the bonus token and three more
        guessed = ids(model.drafted)[4:]
        chain.commit([1, 2, 3, 4, guessed[0]])
        computed = model.forwarded
        assert model.ready == chain.ready == 3 and ids(pull(chain, 3)) == guessed[1:]
        assert model.forwarded == computed


class TestNames:
    @pytest.mark.parametrize("name", ["chain:cacheback", "chain:", "chain"])
    def test_a_chain_has_two(self, name):
        with pytest.raises(UsageError, match="two or more drafters"):
            DRAFTERS.get(name)("tiny-draft", 1)

    def test_unknown_ones_are_told_with_the_choices(self):
        for name in ("chain:cacheback,nothing", "accelerated:nothing"):
            with pytest.raises(UsageError, match=r"unknown drafter 'nothing'; choose from none, lookup"):
                DRAFTERS.get(name)("tiny-draft", 1)

    def test_all_parts_compare_vocabularies_and_get_the_model(self):
        factory = DRAFTERS.get(BOTH)("tiny-draft", 1)
        assert factory.name == ("chain cacheback tiny-draft.table, accelerated llamacpp tiny-draft-q8_0.gguf")
        with pytest.raises(VocabularyMismatch):
            factory.fit(tiny_info(vocab_size=2047))
        with pytest.raises(NotFound):
            DRAFTERS.get(CHAIN)("nothing", 1)

    def test_a_part_that_cannot_be_made_leaves_none_open(self, monkeypatch):
        made = []
        factory = ChainFactory("lookup,none", "")
        monkeypatch.setattr(factory._factories[0], "create", lambda: made.append(Speaker([])) or made[0])
        monkeypatch.setattr(factory._factories[1], "create", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            factory.create()
        assert made[0].closed

    def test_flags_reach_the_tables_of_every_part(self, tmp_path):
        mine = str(tmp_path / "mine.table")
        config = DeviceConfig(drafter=BOTH, draft_table="off", personal_table=mine, threads=1)
        factory = FittingFactory(config)
        factory.fit(tiny_info())
        assert factory.name == "chain cacheback, accelerated llamacpp tiny-draft-q8_0.gguf"
        with pytest.raises(UsageError, match="--personal-table"):
            make_factory(config, "llamacpp", "tiny-draft")
        with pytest.raises(UsageError, match="not a drafter factory"):
            make_factory(config, "json:JSONDecoder", "")


@pytest.mark.parametrize("alone", [False, True])
def test_where_no_target_verifies_only_the_model_writes(alone):
    sampler = replace(GREEDY, alone=alone)
    chain = ChainDrafter([Speaker((7,) * 8, 1.0), Speaker((5, 6), 0.5)])
    chain.begin((1, 2, 3), sampler)
    assert ids(list(chain.propose())) == ([5, 6] if alone else [7] * 8)
    for name in ("lookup", "cacheback"):
        copier = DRAFTERS.get(name)("", 1).create()
        copier.begin((1, 2, 3) * 9, sampler)
        assert (next(copier.propose(), None) is None) == alone


async def test_its_rounds_bring_more_than_those_of_the_tables_alone(exact64):
    pytest.importorskip("llama_cpp")
    tokens = {}
    for drafter in ("cacheback", CHAIN):
        answers = await answer_all(exact64, cases(), drafter)
        check(cases(), answers)
        rounds = [round for answer in answers for round in answer.rounds]
        tokens[drafter] = sum(len(round.tokens) for round in rounds) / len(rounds)
    assert 1 < tokens["cacheback"] < tokens[CHAIN]
