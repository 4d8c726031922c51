"""The tests of the foundation once more under policy `goodput`: the whole system on a fake target, the equality suite
on the real one, sessions and protocol under arbitrary orders of events, and too little KV memory.
"""

import pytest

from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from tests.hypothesis_profiles import bounded
from tests.lossless import brave_a_storm, rarely
from tests.mischief import SLOW_STEPS, Believes, Whims
from tests.test_kv_pressure import (  # noqa: F401
    test_a_tenants_sessions_all_end_within_a_budget_for_one,
    test_everybody_is_finished_all_the_same,
    test_sequences_that_wait_for_their_devices_do_not_push_each_other_out,
)
from tests.test_lossless import (  # noqa: F401
    test_drafts_are_accepted_and_no_token_is_wasted,
    test_every_batch_size,
    test_every_draft_length,
    test_level_exact_in_float32_does_not_depend_on_drafts_or_batches,
    test_rule_ratio_is_greedy_at_temperature_zero,
)
from tests.test_stateful_protocol import DRAFT_WAIT, Protocol
from tests.test_stateful_session import Sessions
from tests.test_system import (  # noqa: F401
    test_a_drafter_that_crashes_costs_drafts_and_nothing_else,
    test_a_long_prompt_is_read_in_chunks_while_others_go_on,
    test_a_poisoned_session_fails_alone,
    test_a_reader_that_vanishes_in_any_state_frees_everything,
    test_a_step_that_raises_fails_its_sessions_and_the_server_lives,
    test_a_storm_on_every_link_changes_nothing,
    test_an_edge_that_never_drafts_sends_nothing_but_open,
    test_nothing_is_computed_for_a_reader_who_is_gone,
    test_sixteen_sessions_share_steps,
    test_the_text_is_the_targets_own_whoever_drafts,
    test_too_little_kv_memory_costs_time_and_never_text,
)


def goodput(draft_wait: float) -> Believes:
    """On a target whose steps are slow, so that devices draft."""
    return Believes(Goodput(draft_wait), SLOW_STEPS)


@pytest.fixture(autouse=True)
def _under_goodput(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.system.Fcfs", goodput)
    monkeypatch.setattr("tests.sessions.Fcfs", goodput)


# Those that meet one under first come, first served only in `make test-long` (tests/test_lossless.py).
@pytest.mark.parametrize("drafter", ["lookup", "llamacpp", *rarely(("none",), ("onnx",))])
async def test_sixteen_mixed_sessions_in_a_storm(exact64, drafter):
    await brave_a_storm(exact64, drafter)


class GoodputSessions(Sessions):
    policy = goodput(0.0)


class GoodputProtocol(Protocol):
    policy = goodput(DRAFT_WAIT)


class WhimsicalProtocol(Protocol):
    policy = Whims(Fcfs(DRAFT_WAIT))


TestGoodputSessions = bounded(GoodputSessions, examples=25, steps=60)
TestGoodputProtocol = bounded(GoodputProtocol, examples=25, steps=60)
TestWhimsicalProtocol = bounded(WhimsicalProtocol, examples=25, steps=60)
