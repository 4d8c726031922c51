"""Drafters of vLLM beside the devices: a device's draft stands in for a proposal, and no text depends on either."""

from __future__ import annotations

from functools import partial

import pytest

from opensled.core.messages import SamplingParams
from tests.vllm import eagle_head
from tests.vllm.answers import (
    ARCTIC,
    QUESTIONS,
    TINY,
    Answer,
    Drafts,
    by_torch,
    one_step,
    prompt_of,
    running,
    without,
    write,
)
from verify_server.engine.vllm.core import VllmCore
from verify_server.engine.vllm.decoding import Decode

LONGEST = 6


@pytest.fixture(scope="module", params=["ngram", "draft_model", pytest.param("suffix", marks=ARCTIC)])
def core(request):
    model = str(TINY.parent / "tiny-draft") if request.param == "draft_model" else ""
    with running(request.param, LONGEST, model) as core:
        yield core


def answers() -> list[Answer]:
    params = SamplingParams(temperature=0.3, seed=2)
    return [Answer(prompt_of(question), params, 48) for question in QUESTIONS]


def own(core: VllmCore, answer: Answer, most: int = LONGEST, ask: int = LONGEST) -> Decode:
    """The proposal of vLLM's drafter, or the beginning of it."""
    return answer.decode(core.proposal(answer.name)[:most], ask=ask)


def test_proposals_of_vllm_and_drafts_of_devices_change_no_text(core):
    wanted = [by_torch(answer) for answer in answers()]
    device, turn = Drafts(wanted, right=0.6, late=0.2), iter(range(10_000))

    def both(answer: Answer) -> Decode | None:
        return device(answer) if next(turn) % 2 else own(core, answer)

    def undecided(answer: Answer) -> Decode:
        return own(core, answer)._replace(
            question=lambda check: answer.question(check) if next(turn) % 3 else None
        )

    tokens, seen = sum(len(answer.text) for answer in wanted), {}
    for name, drafting in {
        "unused": without,
        "own": partial(own, core),
        "both": both,
        "undecided": undecided,
    }.items():
        written = answers()
        write(core, written, drafting)
        seen[name] = sum(answer.decisions for answer in written)
        assert [answer.text for answer in written] == [answer.text for answer in wanted], name
    print(tokens, seen)
    assert seen["unused"] == tokens, "nobody wanted proposals"
    assert max(seen["own"], seen["undecided"]) < tokens
    assert seen["both"] < 0.7 * tokens


def test_a_proposal_is_verified_as_far_as_the_plan_wants(core):
    live = dict(zip(QUESTIONS, answers()))
    for name, answer in live.items():
        answer.name = name
        core.add(name, answer.tokens, answer.ends)
    proposed, verified = dict.fromkeys(live, 0), []
    most = LONGEST if core._scheduler._proposes_all else 5  # the machine takes no more than it has asked for
    for step in range(100):
        wanted = step % 4
        progress = one_step(core, live, lambda answer, wanted=wanted: own(core, answer, wanted, 5))
        for name in live:
            verified.append((min(wanted, proposed[name]), len(progress[name].check.draft)))
            proposed[name] = len(core.proposal(name))
            assert proposed[name] <= most
        live = {name: answer for name, answer in live.items() if not answer.finish_reason}
    assert not live
    assert all(found == wanted for wanted, found in verified)
    assert {found for _, found in verified} == {0, 1, 2, 3}


def test_a_head_that_reads_the_target_changes_no_text(tmp_path):
    """EAGLE-3: its weights are random, so nearly nothing that it proposes stands."""
    wanted = [by_torch(answer) for answer in short_answers()]
    proposals: list[int] = []

    def proposed(answer: Answer) -> Decode:
        decode = own(core, answer)
        proposals.append(len(decode.check.draft))
        return decode

    with running("eagle3", 3, eagle_head.write(tmp_path, TINY)) as core:
        for drafting in (proposed, Drafts(wanted, right=0.6, late=0.2)):
            written = short_answers()
            write(core, written, drafting)
            assert [answer.text for answer in written] == [answer.text for answer in wanted]
    assert max(proposals) == 3, "it proposes"


def short_answers() -> list[Answer]:
    return [Answer(answer.prompt, answer.params, 12) for answer in answers()]
