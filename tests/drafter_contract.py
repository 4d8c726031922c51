"""What every drafter must keep to. A plug-in is done when it passes:

    class TestMine(DrafterContract):
        @pytest.fixture(scope="class")
        @classmethod
        def factory(cls):
            return MyFactory("path/of/a/model", threads=1)  # a subclass of DrafterFactory

`prompt` may be replaced where these ids make no sense to the model.
"""

import random
from collections.abc import Sequence
from contextlib import closing
from itertools import islice

import pytest

from edge_client.drafters.base import Drafter, DrafterFactory
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from tests.tiny_drafts import TEXT, tiny_tokenizer

BLOCK = 6  # tokens pulled per round


def pull(drafter: Drafter, count: int = BLOCK) -> list[DraftToken]:
    return list(islice(drafter.propose(), count))


def ids(tokens: Sequence[DraftToken]) -> list[int]:
    return [token.id for token in tokens]


def other_than(token: int) -> int:
    return token - 1 if token else 1


class DrafterContract:
    prompt: tuple[int, ...] = tiny_tokenizer().encode(TEXT)

    @staticmethod
    def make() -> DrafterFactory:
        raise NotImplementedError("a contract test class says which factory it tests")

    @pytest.fixture(scope="class")
    @classmethod
    def factory(cls) -> DrafterFactory:
        return cls.make()

    def sampler(self, temperature: float = 0.8, seed: int = 1) -> Sampler:
        return Sampler(SamplingParams(temperature=temperature, seed=seed), noise_key(seed))

    @pytest.fixture
    def drafter(self, factory):
        drafter = factory.create()
        yield drafter
        drafter.close()

    @pytest.fixture
    def fresh(self, factory):
        """Proposals of a drafter that has seen nothing but `truth`."""

        def proposals(truth: Sequence[int], draw: Sampler, count: int = BLOCK) -> list[int]:
            with closing(factory.create()) as drafter:
                drafter.begin(truth, draw)
                return ids(pull(drafter, count))

        return proposals

    @pytest.fixture
    def assert_on_path(self, fresh):
        """Fails unless `drafter` proposes after `truth` what one without a history would propose.

        A runtime whose rounding depends on history overrides this by a comparison of logits.
        """

        def check(drafter: Drafter, truth: Sequence[int], draw: Sampler, count: int = BLOCK) -> None:
            assert ids(pull(drafter, count)) == fresh(truth, draw, count)

        return check

    def test_has_a_name_for_people(self, factory):
        assert factory.name

    @pytest.mark.parametrize("temperature", [0, 0.8])
    @pytest.mark.parametrize("accepted", [0, 1, BLOCK - 1, BLOCK])
    @pytest.mark.parametrize("next_agrees", [True, False])
    def test_after_a_verdict_drafts_like_a_fresh_one(
        self, drafter, assert_on_path, temperature, accepted, next_agrees
    ):
        """All accepted and a bonus token, some and a recovered one, none; look-ahead right and wrong."""
        draw = self.sampler(temperature)
        drafter.begin(self.prompt, draw)
        ahead = ids(pull(drafter, BLOCK + 3))
        following = ahead[accepted] if accepted < len(ahead) else 7
        verdict = [*ahead[:accepted], following if next_agrees else other_than(following)]
        drafter.commit(verdict)
        assert_on_path(drafter, [*self.prompt, *verdict], draw)

    def test_accepted_tokens_without_a_next_one(self, drafter, assert_on_path):
        drafter.begin(self.prompt, self.sampler())
        verdict = ids(pull(drafter))[:2]
        drafter.commit(verdict)
        assert_on_path(drafter, [*self.prompt, *verdict], self.sampler())

    def test_commit_of_tokens_never_proposed(self, drafter, assert_on_path):
        drafter.begin(self.prompt, self.sampler())
        drafter.commit(self.prompt[3:9])
        drafter.commit(self.prompt[5:8])
        assert_on_path(drafter, [*self.prompt, *self.prompt[3:9], *self.prompt[5:8]], self.sampler())

    def test_commit_while_a_generator_is_abandoned_midway(self, drafter, assert_on_path):
        drafter.begin(self.prompt, self.sampler())
        generator = drafter.propose()
        first = [token.id for token in islice(generator, 2)]
        verdict = [*first[:1], 9, 8]
        drafter.commit(verdict)
        assert_on_path(drafter, [*self.prompt, *verdict], self.sampler())

    def test_proposing_twice_proposes_the_same(self, drafter):
        drafter.begin(self.prompt, self.sampler())
        once = pull(drafter, 3)
        again = pull(drafter, BLOCK)
        assert ids(again)[:3] == ids(once)
        assert ids(pull(drafter, BLOCK)) == ids(again)

    def test_begin_forgets(self, drafter, assert_on_path):
        drafter.begin(self.prompt, self.sampler(seed=5))
        pull(drafter)
        drafter.commit(self.prompt[:4])
        for second in (self.prompt[2:], self.prompt[:5], self.prompt):
            drafter.begin(second, self.sampler())
            assert_on_path(drafter, second, self.sampler())

    def test_many_rounds(self, drafter, assert_on_path):
        """Random verdicts in a row; the drafter never leaves the path of a fresh one."""
        choose = random.Random(3)
        truth, draw = list(self.prompt), self.sampler()
        drafter.begin(truth, draw)
        for _ in range(12):
            proposed = ids(pull(drafter, choose.randint(0, BLOCK)))
            verdict = [*proposed[: choose.randint(0, BLOCK)], choose.choice(self.prompt)]
            drafter.commit(verdict)
            truth += verdict
            assert_on_path(drafter, truth, draw, 2)

    def test_is_deterministic(self, fresh):
        assert fresh(self.prompt, self.sampler(), 12) == fresh(self.prompt, self.sampler(), 12)

    def test_two_drafters_do_not_disturb_each_other(self, factory, drafter, fresh):
        neighbour = factory.create()
        drafter.begin(self.prompt, self.sampler())
        neighbour.begin(self.prompt[4:], self.sampler(seed=2))
        pairs = list(zip(islice(drafter.propose(), BLOCK), islice(neighbour.propose(), BLOCK)))
        neighbour.close()
        expected = zip(fresh(self.prompt, self.sampler()), fresh(self.prompt[4:], self.sampler(seed=2)))
        assert [(left.id, right.id) for left, right in pairs] == list(expected)

    def test_confidence_is_a_probability(self, drafter):
        drafter.begin(self.prompt, self.sampler())
        assert all(0 <= token.confidence <= 1 for token in pull(drafter, 12))

    def test_an_empty_prompt_proposes_nothing_until_something_is_committed(self, drafter, assert_on_path):
        drafter.begin((), self.sampler())
        assert pull(drafter) == []
        drafter.commit(self.prompt)
        assert_on_path(drafter, self.prompt, self.sampler())

    def test_a_sequence_beyond_every_context_is_no_error(self, drafter, assert_on_path):
        drafter.begin((self.prompt * 400)[:20_000], self.sampler())
        pull(drafter)
        drafter.commit(self.prompt)
        pull(drafter)
        drafter.begin(self.prompt, self.sampler())
        assert_on_path(drafter, self.prompt, self.sampler())

    @pytest.mark.parametrize("steps", [0, 1, BLOCK, 99])
    @pytest.mark.parametrize("bonus", [True, False])
    def test_look_ahead_changes_no_draft(self, drafter, assert_on_path, steps, bonus):
        """Finished, abandoned midway or not begun; the bet on the bonus token won and lost."""
        draw = self.sampler()
        drafter.begin(self.prompt, draw)
        following = ids(pull(drafter, BLOCK + 1))
        block = pull(drafter)
        for _ in islice(drafter.look_ahead(block, 3), steps):
            pass
        next_token = following[BLOCK] if len(following) > BLOCK else 7
        verdict = [*ids(block), next_token if bonus else other_than(next_token)]
        drafter.commit(verdict)
        assert_on_path(drafter, [*self.prompt, *verdict], draw)

    def test_what_is_ready_is_what_is_proposed_next(self, drafter):
        drafter.begin(self.prompt, self.sampler())
        for _ in drafter.look_ahead(pull(drafter), 3):
            pass
        assert len(pull(drafter, drafter.ready)) == drafter.ready >= 0

    def test_a_tree_has_parents_before_their_children(self, drafter):
        drafter.begin(self.prompt * 2, self.sampler())
        nodes = list(islice(drafter.propose_tree(), 40))
        assert all(-1 <= node.parent < index for index, node in enumerate(nodes))

    def test_closes_twice(self, factory):
        drafter = factory.create()
        drafter.begin(self.prompt, self.sampler())
        pull(drafter, 2)
        drafter.close()
        drafter.close()
