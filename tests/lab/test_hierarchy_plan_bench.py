"""lab.benchmarks.hierarchy_plan: which lengths are tried, what is simulated once, and the tables.

Run: .venv/bin/python -m pytest tests/lab/test_hierarchy_plan_bench.py -q
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.benchmarks import hierarchy_plan as bench
from lab.benchmarks.hierarchy_plan import HUBS, LINKS, Lengths, Simulations, around, site_of, tiers_of
from lab.benchmarks.hierarchy_plan_view import shown
from lab.testbed.planner.hierarchy_drafts import of_rates
from lab.testbed.planner.hierarchy_plan import along, paths
from lab.testbed.planner.hierarchy_site import CLOUD, DEVICE, DRAFT, HUB, MIDDLE, TARGET
from lab.testbed.simulated.hierarchy import Recordings
from tests.lab.made_tiers import made_tiers

THREE = ((TARGET, CLOUD), (MIDDLE, HUB), (DRAFT, DEVICE))
BESIDE = ((TARGET, CLOUD), (DRAFT, CLOUD))
DIRECT = ((TARGET, CLOUD), (DRAFT, DEVICE))


@pytest.fixture
def simulations() -> Simulations:
    made = made_tiers(0.8, 0.6)
    return Simulations(Recordings(made, made), of_rates(0.6, 0.8), answer=40, quick=True)


def test_half_and_double_of_each_length_are_tried(simulations: Simulations) -> None:
    site = site_of(tiers_of("slow", "agx-orin", "wan-20"), simulations)
    chain = along(site, THREE)
    long, short = (edge.length for edge in chain.edges)
    bound = chain.edges[0].bound
    tried = list(around(chain, alone=False))
    assert tried[0] == Lengths((long, short), bound)
    assert {each.lengths for each in tried} == {
        (long, short), (round(long / 2), short), (min(16, 2 * long), short), (long, 2 * short),
        *([(long, round(short / 2))] if round(short / 2) not in (0, short) else []),
    }  # fmt: skip
    assert list(around(chain, alone=True)) == tried[:1]


def test_what_a_hub_has_no_part_in_is_simulated_once(
    simulations: Simulations, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, str]] = []

    def simulate(tiers: Any, path: Any, *rest: Any) -> Any:
        ran.append((tiers.hub.accelerator, tiers.hub.link))
        return SimpleNamespace(server=SimpleNamespace(positions=3, tokens=2))

    monkeypatch.setattr(bench, "simulate_chain", simulate)
    monkeypatch.setattr(bench, "rate", lambda result: 7.0)
    places = [tiers_of("slow", hub, link) for hub in HUBS for link in LINKS]
    for path, count in ((BESIDE, 1), (DIRECT, len(LINKS)), (THREE, len(places))):
        ran.clear()
        lengths = Lengths((2,) * (len(path) - 1), 0.0)
        assert {simulations.rate("slow", each, path, lengths) for each in places} == {(7.0, 1.5)}
        assert len(ran) == count


def test_the_law_is_asked_about_the_simulated_places(simulations: Simulations) -> None:
    near, far = (site_of(tiers_of("moe", "agx-orin", link), simulations) for link in ("wan-20", "wan-150"))
    assert (near.others, near.context, near.answer) == (16, 4096, 40)
    for path in paths(near):
        found = along(near, path)
        lengths = Lengths(
            tuple(edge.length for edge in found.edges), found.edges[0].bound if found.edges else 0.0
        )
        assert bench.predicted(near, path, lengths) == pytest.approx(near.rate(found))
        assert bench.predicted(far, path, lengths) <= bench.predicted(near, path, lengths)


def row(path: str, predicted: float, simulated: float, *lengths: int, bound: float = 0.0) -> dict[str, Any]:
    told = {"path": path, "lengths": list(lengths), "bound": bound}
    return {**told, "predicted": predicted, "simulated": simulated, "positions": 1.5}


def test_tables_say_what_the_choice_is_worth_and_how_far_the_law_is_off() -> None:
    beside, by_hub = "draft on cloud -> target on cloud", "middle on hub -> target on cloud"
    rows = [
        row(beside, 20, 16, 3),
        row(by_hub, 12, 11, 8, bound=0.4),
        row("target on cloud", 10, 10),
        row(by_hub, 9, 12, 4),
        row("draft on device -> target on cloud", 5, 10, 2),
    ]
    text = shown([{"regime": "slow", "hub": "agx-orin", "link": "wan-20", "rows": rows}])
    assert f"| slow | agx-orin | wan-20 | {beside} (3) | 20.0 | 16.0 | 16.0 | 1.000 |" in text
    # Without a draft beside the target the planner takes 11 where 12 can be had
    assert f"| {by_hub} (8, bound 0.4) | 12.0 | 11.0 | 12.0, {by_hub} (4) | 0.917 |" in text
    assert f"| {beside} | 1 | 25.0 % | 0 % | +25 % | 0 | - |" in text
    # The second chain of the hub is slower by the law, and is not: its user reads the server's own stream
    assert f"| {by_hub} | 2 | 9.1 % | 100 % | +9 % | 1 | 1.20 |" in text
    assert "| draft on device -> target on cloud | 1 | - | - | - | 1 | 1.00 |" in text


def test_what_was_measured_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"regime": "moe", "hub": "h", "link": "l", "rows": [row("target on cloud", 10, 10)]}
    (tmp_path / "hierarchy_plan-moe.json").write_text(json.dumps({"places": [place]}))
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    assert bench.main(["--show"]) == 0
    assert "| moe | h | l | target on cloud | 10.0 | 10.0 | 10.0 | 1.000 |" in capsys.readouterr().out
    assert bench.main(["--regimes", "none"]) == 2
