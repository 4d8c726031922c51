"""Loading: what a target tells of itself, and what refuses it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from opensled.core.errors import SelfTestFailed, UnsupportedModel, UsageError
from opensled.core.messages import SamplingParams
from tests.vllm.answers import (
    CONTEXT,
    EOS,
    QUESTIONS,
    TINY,
    Answer,
    by_torch,
    prompt_of,
    running,
    without,
    write,
)
from verify_server.engine.memory_plan import CONTEXTS
from verify_server.engine.vllm import decoding, loading, selftest, worker
from verify_server.engine.vllm.loading import CPU_BLOCK
from verify_server.text.hf_text import HFText


def test_a_target_is_loaded_tested_and_told():
    given = ["enforce_eager=true"]
    core, info = loading.load(
        str(TINY),
        HFText(TINY),
        dtype="float32",
        context=CONTEXT,
        kv_tokens=4000,
        longest_draft=6,
        sequences=4,
        given=given,
    )
    try:
        assert (info.runtime, info.numerics, info.dtype, info.device, info.processes) == (
            "vllm", "fast", "float32", "cpu", 1,
        )  # fmt: skip
        assert (info.vocab_size, info.context_length, info.eos_ids) == (2048, CONTEXT, (EOS,))
        assert (info.num_blocks, info.block_size, info.shares_blocks) == (125, 32, True)
        assert core.longest_draft == 6
        assert core.idle, "nothing of the self-test stays"
        answer = Answer(prompt_of(QUESTIONS[0]), SamplingParams(temperature=0.8, seed=1))
        write(core, [answer], without)
        assert answer.text == by_torch(answer).text
    finally:
        core.close()


def blocks(**options) -> int:
    """KV blocks of a target for which no option says how many."""
    core, info = loading.load(
        str(TINY), HFText(TINY), dtype="float32", context=CONTEXT, graphs=False, **options
    )
    core.close()
    return info.num_blocks


def test_kv_memory_is_that_of_engine_torch_unless_an_option_says_more(monkeypatch):
    """Some full contexts, within a share of what is left; or one, where that share is smaller."""
    monkeypatch.setattr(loading, "_self_test", lambda core, model, *_: core.info(model))
    whole, token = (
        CONTEXT // CPU_BLOCK,
        5 * 2 * 2 * 64 * 4,
    )  # layers, keys and values, heads, their size, bytes
    assert blocks() == CONTEXTS * whole
    assert blocks(given=["kv_cache_memory_bytes=40000000"]) != CONTEXTS * whole
    for left, contexts in ((8 * CONTEXT, 2), (3 * CONTEXT, 1)):
        monkeypatch.setattr(worker, "available_host_bytes", lambda left=left: left * token)
        assert blocks() == contexts * whole


@pytest.fixture(scope="module")
def loaded():
    with running() as core:
        yield core


@pytest.fixture
def core(loaded):
    yield loaded
    loaded.abort([*loaded._sequences])


@pytest.fixture
def prompts():
    return [prompt_of(question) for question in QUESTIONS[:3]]


def test_the_self_test_passes(core, prompts):
    assert selftest.run(core, prompts, "float32") in (True, False)
    assert core.idle


def test_a_vllm_whose_texts_depend_on_drafts_is_refused(core, prompts, monkeypatch):
    decide = worker.decide

    def one_position_late(questions, scores):
        late = {
            id: question._replace(check=question.check._replace(position=question.check.position + 1))
            for id, question in questions.items()
            if question.check.draft
        }
        return decide({**questions, **late}, scores)

    monkeypatch.setattr(worker, "decide", one_position_late)
    with pytest.raises(
        SelfTestFailed, match=r"writes another text with right drafts than without, at T = 0\.8"
    ):
        selftest.run(core, prompts, "float32")


def test_a_vllm_that_verifies_no_drafts_is_refused(core, prompts, monkeypatch):
    monkeypatch.setattr(decoding.Decode, "draft", lambda self, longest: [])
    with pytest.raises(
        SelfTestFailed, match="16 steps with right drafts and 16 without: it verifies no drafts"
    ):
        selftest.run(core, prompts, "float32")


def test_rounding_explains_a_token_whose_score_is_close_and_no_other(core, prompts):
    plain, other = (
        selftest._texts(prompts, SamplingParams(temperature=0.8), style) for style in ("", "right")
    )
    for texts in (plain, other):
        selftest._write(core, texts)
    one, two = plain[0], other[0]
    ids = sorted(dict(one.logprobs[5]), key=lambda id: one.lead(5, id))
    assert ids[0] == one.news[5], "the drawn token leads"
    two.tokens[two.prompt_length + 5] = ids[1]
    lead = one.lead(5, ids[1])
    selftest._compare(one, two, 0.8 * lead / 2 * 1.01)
    with pytest.raises(SelfTestFailed, match="token 6 is"):
        selftest._compare(one, two, 0.8 * lead / 2 * 0.99)


def test_what_cannot_be_served_is_refused_before_it_is_loaded(monkeypatch):
    text = HFText(TINY)
    with pytest.raises(UsageError, match=r"compute capability 8\.0"):
        loading.load(str(TINY), text, numerics="exact")
    with pytest.raises(UsageError, match="unknown numerics"):
        loading.load(str(TINY), text, numerics="perfect")
    with pytest.raises(UsageError, match="did you mean max_num_batched_tokens"):
        loading.load(str(TINY), text, given=["max_num_batched_token=4"])
    with pytest.raises(UsageError, match="vLLM computes on GPUs by Ray, here on cpu; leave it out"):
        loading.load(str(TINY), text, given=["distributed_executor_backend=ray"])
    with pytest.raises(
        UnsupportedModel, match=r"vLLM does not start: cache_dtype: Input should be 'auto', .*debug shows"
    ):
        loading.load(str(TINY), text, given=["kv_cache_dtype=int3"])
    for wrong, says in {
        "tensor_parallel_size=two": "tensor_parallel_size: Input should be a valid integer",
        "gpu_memory_utilization=7": "gpu_memory_utilization: Input should be less than or equal to 1",
        "block_size=31": r"block size .*31",
    }.items():
        with pytest.raises(UnsupportedModel, match=f"vLLM does not start: .*{says}"):
            loading.load(str(TINY), text, given=[wrong])
    with pytest.raises(UnsupportedModel, match=r"vLLM does not start: .*max_model_len"):
        loading.load(str(TINY), text, context=5000)


@pytest.mark.skipif(find_spec("arctic_inference") is not None, reason="arctic-inference is installed")
def test_a_drafter_that_is_not_installed_is_refused_with_what_to_install():
    with pytest.raises(UnsupportedModel, match=r"pip install arctic-inference==0\.1\.1"):
        loading.load(str(TINY), HFText(TINY), drafter="suffix")
