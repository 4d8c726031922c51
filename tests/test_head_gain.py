"""`opensled doctor` on draft heads: what the server sends, what it costs here, and each verdict.

Run: pytest tests/test_head_gain.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_client.checks.draft import DraftReport, check_draft
from edge_client.checks.head_gain import Block, Situation, check_head_gain, judged, link_s, rate, reckoned
from edge_client.checks.hidden_states import HiddenStates, ask_hidden_states
from edge_client.checks.server_checks import ServerReport
from edge_client.checks.server_speed import ServerSpeed
from edge_client.checks.trial import Prediction
from edge_client.config import DoctorConfig
from opensled.drafting.head_form import ABOUT
from opensled_training.heads.export_command import export_head
from opensled_training.heads.export_config import ExportHeadConfig
from tests.fakes import FakeEngine
from tests.golden_boards import plant
from tests.serving import linked, serving
from tests.tiny_drafts import tiny_info
from verify_server.session_manager import SessionLimits

SIZE = 576
BLOCK = Block("ctc", 0.004, 7, 1, "by arithmetic, for a board")
# Steps of 50 ms, and a draft model that takes 30 ms a token
HERE = Situation("smollm2", HiddenStates(SIZE, byte_s=1e-8), 0.01, lambda length: 0.05, 20.0, 0.03, 22.0)


def found(here: Situation = HERE, block: Block | None = BLOCK, has_head: bool = False):
    return judged(here, [block] if block else [], has_head)


# -- verdicts --------------------------------------------------------------------------------------------


def test_a_head_that_would_be_better() -> None:
    finding = found()
    assert finding.status == "warn"
    assert "drafts a block in 4.0 ms where the draft model takes 30.0 ms a token" in finding.detail
    assert "by arithmetic" in finding.detail and "assumed" in finding.detail
    assert finding.fix.startswith(
        "where the target is: opensled export-head --target smollm2 --head ctc --out "
    )


def test_a_head_that_drafts_here_already_needs_no_fix() -> None:
    finding = found(block=replace(BLOCK, origin="measured just now"), has_head=True)
    assert finding.status == "ok" and "measured just now" in finding.detail and not finding.fix


def test_a_target_for_which_no_head_comes_with_opensled() -> None:
    finding = found(replace(HERE, target="some-8b"))
    assert finding.status == "ok" and "none of some-8b comes with OpenSLED" in finding.detail


def test_a_server_that_sends_no_hidden_states() -> None:
    finding = found(replace(HERE, states=HiddenStates(refused=True)))
    assert finding.status == "ok" and "serve --features, or features=1" in finding.detail


def test_hidden_states_that_did_not_come_in_time() -> None:
    assert "not judged" in found(replace(HERE, states=HiddenStates())).detail


def test_a_link_that_is_too_thin() -> None:
    thin = replace(HERE, states=HiddenStates(4096, byte_s=1e-5))
    finding = found(thin)
    assert finding.status == "ok" and finding.detail.endswith("the link is too thin for its hidden states")
    assert f"{1000 * link_s(thin, BLOCK):.0f} ms a round on this link" in finding.detail


def test_a_draft_model_that_is_better() -> None:
    finding = found(replace(HERE, draft_s=0.001, draft_rate=60.0))
    assert finding.status == "ok" and finding.detail.endswith("the draft model is the better choice")


def test_a_head_that_brings_nothing() -> None:
    finding = found(replace(HERE, own_rate=500.0))
    assert finding.status == "ok" and finding.detail.endswith("it would bring nothing here")


def test_a_board_of_which_no_profile_says_how_fast_it_is() -> None:
    finding = found(block=None)
    assert finding.status == "ok" and "not judged: no profile says" in finding.detail


def test_what_was_not_measured_is_not_told() -> None:
    finding = found(replace(HERE, states=HiddenStates(SIZE), draft_s=None))
    assert "was not measured" in finding.detail and "a token (by" not in finding.detail


def test_the_law_of_a_round() -> None:
    tokens = 1 + 0.5 + 0.25
    block = replace(BLOCK, length=2)
    round_s = 0.004 + 0.01 + 0.05 + tokens * (SIZE + 4) * 1e-8
    assert rate(HERE, block, 0.5) == pytest.approx(tokens / round_s)


def test_the_size_that_was_measured_decides_on_the_arithmetic(tmp_path: Path) -> None:
    root = str(plant("pi-5", tmp_path))
    small, large = reckoned(SIZE, root), reckoned(4096, root)
    assert [block.kind for block in small] == [block.kind for block in large]
    assert all("by arithmetic, for pi-5" in block.origin for block in small)
    assert max(block.seconds for block in small) < 0.02 < 0.1 < min(block.seconds for block in large)
    assert "scaled to 300" in reckoned(300, root)[0].origin


# -- what the server sends -------------------------------------------------------------------------------


class StatesEngine(FakeEngine):
    """Hidden states that say nothing."""

    size = 32

    @property
    def info(self):
        return replace(super().info, hidden_size=self.size)

    def tap(self) -> int:
        return 4

    def forward(self, segments):
        scores = super().forward([segment._replace(features=()) for segment in segments])
        scores.features = lambda layers, rows: (
            np.ones((len(rows), len(layers), self.size), np.int8),
            np.ones((len(rows), len(layers)), np.float32),
        )
        return scores


def asked(engine: FakeEngine, features: bool) -> HiddenStates:
    async def scenario() -> HiddenStates:
        limits = SessionLimits(max_sessions=3, max_draft=8, linger=0.05, features=features)
        async with serving(engine=engine, limits=limits) as (_, address), linked(address) as link:
            return await ask_hidden_states(link, await link.describe(), "match")

    return asyncio.run(scenario())


def test_hidden_states_are_asked_for() -> None:
    states = asked(StatesEngine(num_blocks=100), True)
    assert states.size == StatesEngine.size and not states.refused
    assert states.byte_s is not None and states.byte_s >= 0


def test_a_server_may_refuse_them() -> None:
    assert asked(StatesEngine(num_blocks=100), False) == HiddenStates(refused=True)


# -- the whole check -------------------------------------------------------------------------------------

SPEED = ServerSpeed(0.05, 8, 0.07)


def report(**more) -> ServerReport:
    return ServerReport([], tiny_info(), 0.01, SPEED, **{"states": HiddenStates(256, byte_s=1e-8)} | more)


def test_nothing_is_said_of_a_server_that_was_not_asked() -> None:
    assert check_head_gain(DoctorConfig(), report(states=None), DraftReport(), None) == []


def test_the_draft_that_was_measured_is_what_a_head_is_held_against() -> None:
    measured = Prediction(500.0, 20.0, "measured", 0.9)
    [finding] = check_head_gain(DoctorConfig(), report(), DraftReport(seconds=0.001), measured)
    assert finding.detail.endswith("the draft model is the better choice")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("head") / "tiny-ctc-device"
    assert export_head(ExportHeadConfig("tiny", "ctc", str(out))) == 0
    return out


async def _no_server() -> ServerReport:
    return ServerReport()


def test_a_head_that_is_here_is_timed(folder: Path) -> None:
    config, drafted = DoctorConfig(drafter="head", draft_model=str(folder), threads=1), DraftReport()
    asyncio.run(check_draft(config, _no_server(), drafted))
    assert drafted.block_s and "measured just now" in drafted.findings[-1].detail
    measured = Prediction(30.0, 20.0, "measured", 0.5)
    [finding] = check_head_gain(config, report(), drafted, measured)
    assert finding.status == "ok" and finding.detail.endswith("what it brings was measured, see above")
    [finding] = check_head_gain(config, report(), drafted, None)
    assert finding.status == "ok" and "(measured just now)" in finding.detail


def test_a_head_that_cannot_be_loaded_is_a_failure(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ABOUT).write_text((folder / ABOUT).read_text())
    config, drafted = DoctorConfig(drafter="head", draft_model=str(tmp_path)), DraftReport()
    asyncio.run(check_draft(config, _no_server(), drafted))
    assert not drafted.usable and "is missing" in drafted.findings[-1].detail
