"""min_p and the penalties: the text is the target's own, and the draft model counts as the server does.

The reference (lab/testbed/reference.py) shares no product code.
"""

import asyncio
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from edge_client.device.device import Device
from edge_client.drafters.none import NoneDrafter, NoneFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from lab.testbed.reference import Sampling, key_of_seed
from opensled.core.answer import Task
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import Open, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.penalties import FIRST_ROOM, NAMES, TokenCounts
from opensled.core.sampling import Sampler
from opensled.models.store import model_path
from opensled.wire import codec
from tests import lossless
from tests.fake_backend import FakeBackend, call, chat, refusal
from tests.fakes import IMPATIENT, VOCAB, Weather
from tests.loops import in_loop
from tests.scores_contract import Grouped, packed
from tests.serving import linked, serving
from tests.system import CALM, FOREVER, ask, running
from tests.table_target import (
    CASES,
    LENGTH,
    PROMPT,
    TableDrafter,
    TableEngine,
    TreeDrafter,
    logits_after,
    params_of,
    reference,
)
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.round.sequence import Sequence

STORM = Weather(loss=0.2, duplicate=0.1, reorder=0.2, seed=5)
LIBRARIES = {
    "numpy": NumpyScores,
    "torch": lambda logits: TorchScores(torch.from_numpy(logits)),
    "grouped": lambda logits: Grouped(torch.from_numpy(logits)),
}


@in_loop
async def answer_all(
    drafter, *, engine=None, weather=Weather(), stop=FixedLength(4), draft_wait=FOREVER, **request
):
    """The answers to all cases at once."""
    patience = CALM if weather == Weather() else IMPATIENT
    server = running(
        engine or TableEngine(num_blocks=200), draft_wait=draft_wait, weather=weather,
        limits=SessionLimits(linger=0.2),
    )  # fmt: skip
    async with server as network:
        asked = [
            ask(network, PROMPT, drafter(), params_of(case), stop=stop, patience=patience, **request)
            for case in CASES
        ]
        return await asyncio.gather(*asked)


def check(answers) -> None:
    for case, answer in zip(CASES, answers, strict=True):
        assert answer.tokens == reference(PROMPT, LENGTH, **case), case


def test_each_case_changes_the_text():
    for case in CASES:
        plain = {name: value for name, value in case.items() if name not in NAMES}
        assert reference(PROMPT, LENGTH, **case) != reference(PROMPT, LENGTH, **plain)


def test_counts_are_those_of_the_answer_and_the_path():
    chance = np.random.default_rng(1)
    answer, counts = [], TokenCounts()
    for _ in range(30):
        news, path = chance.integers(3 * FIRST_ROOM, size=9).tolist(), chance.integers(500, size=5).tolist()
        counts.add(news)
        answer += news
        assert dict(zip(*counts.after(path))) == Counter([*answer, *path])
        assert dict(zip(*counts.after(()))) == Counter(answer)
    tree = counts.along([7, 8, 9, 7], [-1, 0, 0, -1])
    assert [row.path for row in tree] == [(), (7,), (7, 8), (7, 9), (7,)]


@pytest.mark.parametrize("scores", LIBRARIES.values(), ids=LIBRARIES)
def test_every_row_is_drawn_as_the_reference_draws_it(scores):
    chance = np.random.default_rng(2)
    logits = chance.normal(0, 3, (30, VOCAB))
    requests, expected = [], []
    for row, plain in enumerate(logits):
        case = dict(CASES[row % len(CASES)])
        key = key_of_seed(case.pop("seed", 0))
        answer, path = (
            chance.integers(VOCAB, size=row).tolist(),
            chance.integers(VOCAB, size=row % 4).tolist(),
        )
        bias = ((2, 5.0), (3, -4.0)) if row % 2 else ()
        params = SamplingParams(**case, logit_bias=bias)
        emitted = [TokenCounts(answer).along(path)[-1]] if params.penalizes else None
        requests.append(SampleRequest([row], params, key, 70 + row, None, emitted))
        biased = plain.copy()
        for id, value in bias:
            biased[id] += value
        expected.append([Sampling(**case, key=key).draw(biased, 70 + row, [*answer, *path])])
    assert scores(logits).sample(requests) == expected


@pytest.mark.parametrize("scores", LIBRARIES.values(), ids=LIBRARIES)
def test_the_mask_comes_after_the_penalties(scores):
    [row] = TokenCounts([4, 4, 5]).along(())
    params = SamplingParams(temperature=0, repetition_penalty=2.0, presence_penalty=1.0)
    logits = np.zeros((1, VOCAB))
    logits[0, [4, 5, 6]] = 9.0, 8.0, 3.1
    asked = [
        SampleRequest([0], params, b"", 9, [packed(allowed, VOCAB)], [row]) for allowed in ([4, 5], [5, 6])
    ]
    assert scores(logits).sample(asked) == [[4], [6]]


@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
@pytest.mark.parametrize("scores", LIBRARIES)
@pytest.mark.parametrize("drafter", [NoneDrafter, lambda: TableDrafter(noise=1.0)], ids=["alone", "chains"])
def test_the_text_is_the_targets_own(drafter, scores, weather):
    engine = TableEngine(num_blocks=200, scores=LIBRARIES[scores])
    check(answer_all(drafter, engine=engine, weather=weather, draft_wait=0.5))


@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
def test_also_with_trees_in_which_each_branch_counts_for_itself(weather):
    stop = FixedLength(4, tree=12)
    answers = answer_all(lambda: TreeDrafter(noise=0.3), weather=weather, stop=stop, draft_wait=0.5)
    check(answers)
    assert max(round.accepted for answer in answers for round in answer.rounds) > 2


async def test_committed_tokens_count_in_a_sequence_that_another_server_goes_on_with():
    for case in CASES:
        expected = reference(PROMPT, LENGTH, **case)
        async with running(TableEngine(num_blocks=200)) as network:
            known = expected[:25]
            answer = await ask(network, PROMPT, TableDrafter(1.0), params_of(case), committed=known)
        assert answer.tokens == expected


def test_a_sequence_that_lost_its_kv_counts_on(monkeypatch):
    lost, forget = [], Sequence.forget_kv

    def counted(self):
        lost.append(len(self.tokens))
        forget(self)

    monkeypatch.setattr(Sequence, "forget_kv", counted)
    check(answer_all(lambda: TableDrafter(1.0), engine=TableEngine(num_blocks=26), draft_wait=0.05))
    assert any(length > len(PROMPT) + 5 for length in lost)


def test_a_draft_model_like_the_target_is_never_wrong():
    """Commits, look-ahead and drafts behind drafts: everywhere the device counts what the server counts."""
    answers = answer_all(lambda: TableDrafter(noise=0.0))
    check(answers)
    for answer in answers:
        rounds = answer.rounds[1:-1]
        assert rounds and all(round.accepted == round.drafted for round in rounds)


def test_a_drafter_with_a_history_counts_like_a_fresh_one():
    params, text = params_of(CASES[1]), list(reference(PROMPT, 30, **CASES[1]))
    draw, old = Sampler(params, bytes(16), prompt_length=len(PROMPT)), TableDrafter(0.5)
    old.begin(PROMPT, draw)
    for start in range(0, 30, 3):
        fresh = TableDrafter(0.5)
        fresh.begin([*PROMPT, *text[:start]], draw)
        assert [one.id for one, _ in zip(old.propose(), range(6))] == [
            one.id for one, _ in zip(fresh.propose(), range(6))
        ]
        old.commit(text[start : start + 3])


def test_log_probabilities_stay_raw():
    [answer, *_] = answer_all(lambda: TableDrafter(1.0), top_logprobs=0)
    for place, [(id, value)] in enumerate(answer.logprobs):
        row = logits_after([*PROMPT, *answer.tokens[:place]])
        assert id == answer.tokens[place] and value == pytest.approx(
            row[id] - np.log(np.exp(row).sum()), abs=1e-5
        )


FIELDS = {"min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_the_api_passes_them_on(path):
    backend = FakeBackend()
    body = chat(**FIELDS) if path.startswith("chat") else {"model": "tiny", "prompt": "Hi", **FIELDS}
    assert call(backend, f"/v1/{path}", body).status_code == 200
    assert {name: getattr(backend.tasks[0].params, name) for name in FIELDS} == FIELDS
    assert call(backend, body=chat(**dict.fromkeys(FIELDS))).status_code == 200
    assert not backend.tasks[1].params.penalizes and backend.tasks[1].params.min_p == 0


@pytest.mark.parametrize("name", FIELDS)
def test_a_server_without_the_capability_gets_none_of_them(name):
    backend = FakeBackend(capabilities=("guide",))
    assert refusal(call(backend, body=chat(**{name: FIELDS[name]})))["param"] == name and not backend.tasks
    assert call(backend, body=chat(**{name: 1 if name == "repetition_penalty" else 0})).status_code == 200
    assert (
        call(FakeBackend(capabilities=("penalties",)), body=chat(**{name: FIELDS[name]})).status_code == 200
    )


async def test_a_device_itself_refuses_what_its_server_would_ignore():
    async with serving() as (_, address), linked(address) as link:
        info = await link.describe()
        assert "penalties" in info.capabilities
        device = Device(link, replace(info, capabilities=()), None, NoneFactory(), FixedLength(0))
        with pytest.raises(Unsupported) as caught:
            await anext(device.answer(Task(PROMPT, SamplingParams(frequency_penalty=1.0))))
        assert caught.value.field == "frequency_penalty"
        await device.close()


@pytest.mark.parametrize("name", FIELDS)
def test_they_survive_the_wire_and_their_ranges_are_kept(name):
    opening = Open(PROMPT, SamplingParams(**{name: FIELDS[name]}))
    assert codec.decode_client(codec.encode_client(opening)) == opening
    for value in (float("nan"), float("inf"), float("-inf"), 2.1, -2.1):
        with pytest.raises(InvalidRequest) as caught:
            SamplingParams(**{name: value})
        assert caught.value.field == name


# -- with real models ---------------------------------------------------------------------------------------------


PLAIN = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
REAL_CASES = (
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"temperature": 0.8, "presence_penalty": 1.5, "min_p": 0.05, "seed": 3},
)
TOKENS = 24
NEAR = 0.03  # lead in logits that may flip in llama.cpp's float32 (lab/testbed/soak/judge.py)


@cache
def prompt() -> tuple[int, ...]:
    return tuple(lossless.reference().render_chat(lossless.chats()[19]))


@cache
def expected(number: int) -> tuple[int, ...]:
    return tuple(
        lossless.reference().generate(prompt(), **REAL_CASES[number], max_tokens=TOKENS, ignore_eos=True)[0]
    )


def params(number: int) -> SamplingParams:
    return SamplingParams(**REAL_CASES[number], max_tokens=TOKENS, ignore_eos=True)


@cache
def engine(name: str):
    dtype = {"dtype": "float64"} if name == "torch" else {}
    model = str(model_path("tiny"))
    config = ServeConfig(model=model, engine=name, device="cpu", threads=1, kv_tokens=1024, **dtype)
    return ENGINES.get(name)(config).engine


def is_right(number: int, told: tuple[int, ...]) -> bool:
    """Whether each token is the reference's choice after those before it, or nearly so."""
    case = dict(REAL_CASES[number])
    sampling = Sampling(key=noise_key(case.pop("seed", 0)), **case)
    rows = lossless.reference().logits([*prompt(), *told[:-1]], last=len(told))
    scores = [sampling.scores(row, len(prompt()) + at, told[:at]) for at, row in enumerate(rows)]
    return all(row.max() - row[token] <= NEAR for row, token in zip(scores, told))


@pytest.mark.parametrize("name", ["torch", "llamacpp"])
@pytest.mark.parametrize(("drafter", "tree"), [("none", 0), ("llamacpp", 0), ("cacheback", 12)])
async def test_the_text_of_a_real_model_is_the_targets_own(name, drafter, tree):
    async with running(engine(name), draft_wait=0.5) as network:
        asked = [
            ask(
                network,
                prompt(),
                lossless.factory(drafter).create(),
                params(number),
                stop=FixedLength(4, tree=tree),
            )
            for number in range(len(REAL_CASES))
        ]
        answers = await asyncio.gather(*asked)
    for number, answer in enumerate(answers):
        assert len(answer.tokens) == TOKENS
        assert answer.tokens == expected(number) or (name == "llamacpp" and is_right(number, answer.tokens))


async def tokens_per_round(drafts: SamplingParams) -> float:
    """Of the first case, with a draft model that samples as `drafts` says."""
    async with running(engine("torch")) as network:
        session = RemoteSession(network.connect, Open(prompt(), params(0)), CALM)
        with closing(DraftThread(lossless.factory("llamacpp").create(), FixedLength(4))) as thread:
            await session.open()
            commits = [commit async for commit in generate(session, thread, drafts)]
    assert session.truth.generated == expected(0)
    rounds = [commit for commit in commits if commit.drafted]
    return sum(len(commit.tokens) for commit in rounds) / len(rounds)


def test_drafts_that_count_the_penalties_are_accepted_more_often():
    counting = asyncio.run(tokens_per_round(params(0)))
    assert counting >= asyncio.run(tokens_per_round(replace(params(0), **PLAIN)))
