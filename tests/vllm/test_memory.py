"""vLLM's memory: sequences that lose theirs, prompts in chunks, and KV that only one tenant's sequences share."""

from __future__ import annotations

import pytest

from opensled.core.messages import SamplingParams
from tests.vllm.answers import (
    CONTEXT,
    QUESTIONS,
    Answer,
    Drafts,
    by_torch,
    one_step,
    prompt_of,
    running,
    without,
    write,
)

WARM = SamplingParams(temperature=0.8, seed=4)
STORY = "Tell me of a fox, a river, a bear and three birds in a wood. " * 3
BLOCK, BLOCKS, CHUNK = 32, 17, 64  # 16 blocks, and one that vLLM keeps: as many as the context has


@pytest.fixture(scope="module")
def core():
    with running(num_gpu_blocks_override=BLOCKS, max_num_batched_tokens=CHUNK, max_model_len=CONTEXT) as core:
        yield core


def stories() -> list[Answer]:
    return [Answer(prompt_of(question + STORY), WARM, 100) for question in QUESTIONS]


def test_texts_stay_equal_where_memory_is_short_and_prompts_come_in_chunks(core):
    wanted = [by_torch(answer) for answer in stories()]
    assert len(wanted[0].prompt) > CHUNK
    assert sum(len(answer.tokens) for answer in wanted) > 1.5 * BLOCK * BLOCKS
    seen = {}
    for name, drafting in {
        "none": without,
        "right": Drafts(wanted),
        "60 % right, 30 % late": Drafts(wanted, 0.6, 0.3),
    }.items():
        written, before = stories(), core.preempted
        steps = write(core, written, drafting)
        seen[name] = steps, core.preempted - before
        assert [answer.text for answer in written] == [answer.text for answer in wanted], name
    print(seen)
    assert all(lost for _, lost in seen.values()), "sequences lose their memory"
    assert seen["right"][0] < seen["none"][0]


def test_tenants_share_no_memory(core):
    found = {}
    for name, salt in {"first": "a", "again": "a", "other": "b", "nobody": "", "other again": "b"}.items():
        answer = Answer(prompt_of(STORY), WARM, 4, name=name, salt=salt)
        core.add(name, answer.tokens, answer.ends, salt)
        for _ in range(2):  # chunks
            found[name] = one_step(core, {name: answer}, without)[name].cached
        core.abort([name])
    whole = (len(prompt_of(STORY)) - 1) // BLOCK * BLOCK
    assert whole >= 2 * BLOCK
    assert found == {"first": 0, "again": whole, "other": 0, "nobody": 0, "other again": whole}


def test_a_sequence_goes_on_from_any_of_its_tokens(core):
    [wanted] = [by_torch(Answer(prompt_of(QUESTIONS[1]), WARM, 40))]
    for cut in range(1, len(wanted.text), 7):
        answer = wanted.anew()
        answer.tokens += wanted.text[:cut]
        write(core, [answer], without)
        assert answer.text == wanted.text
