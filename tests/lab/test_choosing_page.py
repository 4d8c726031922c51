"""docs/choosing.md says what `opensled plan` says today, and names the pairs that there are."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lab.testbed.config import PlanConfig
from lab.testbed.planner import ways
from lab.testbed.planner.bound import lone_rates, settings_of
from lab.testbed.planner.comparison import Comparison, compare
from opensled.models.model_pairs import PAIRS

PAGE = (Path(__file__).parents[2] / "docs/choosing.md").read_text("utf-8")
COLUMNS = ("dense-8b", "dense-14b", "dense-32b", "moe-30b-a3b", "dense-70b", "dense-27b", "moe-120b-a5b")
ASKED = PlanConfig(weight_bits=4, context=4096, pace=10)
HUBS = ("agx-orin", "strix-halo", "agx-thor")
SERVER = "the server, a 0.5B draft beside the target"


def rows(first: str) -> dict[str, list[str]]:
    """Rows of the table whose head begins so: the other cells, by the one that names the row."""
    table = next(part for part in PAGE.split("\n\n") if part.startswith(f"| {first}"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    name = 1 if first.startswith("memory") else 0
    return {row[name].strip("`"): row[name + 1 :] for row in cells}


def found(target: str, device: str, acceptance: str = "") -> Comparison:
    return compare(replace(ASKED, target=target, devices=device, acceptance=acceptance))


@pytest.mark.parametrize("target", COLUMNS)
def test_each_accelerator_holds_as_many_users_as_the_plan_says(target):
    told = {name: cells[COLUMNS.index(target)] for name, cells in rows("memory | accelerator").items()}
    plan = found(target, "laptop-cpu")
    expected = dict(plan.left_out)
    for row in plan.rows:
        alone = str(row.users[ways.ALONE])
        drafts = "" if row.best == ways.ALONE else f", {row.best} {row.users[row.best]}"
        expected[row.accelerator] = alone + drafts
    assert told == expected


@pytest.mark.parametrize("hub", ["dgx-spark", "mac-m2-ultra"])
def test_one_user_gets_what_the_plan_says(hub):
    rates = lone_rates(settings_of(replace(ASKED, target="dense-70b", devices="laptop-cpu"), hub))
    told = " / ".join(f"{rates[way]:.3g}" for way in ("alone", "server", "devices", "head"))
    assert rows("one user on")[hub][3] == told


@pytest.mark.parametrize("acceptance", ["mismatched", "chat", "code"])
def test_hubs_hold_as_many_with_drafts_as_the_plan_says(acceptance):
    column = ("mismatched", "chat", "code").index(acceptance)
    for device, cells in rows("who drafts").items():
        way = ways.SERVER if device == SERVER else ways.DEVICES
        plan = found("dense-8b", "pi-4" if device == SERVER else device, acceptance)
        users = {row.accelerator: row.users for row in plan.rows}
        assert cells[column] == ", ".join(str(users[hub][way]) for hub in HUBS), device


def test_every_pair_is_named_with_its_files():
    told = rows("name | target | draft")
    assert {*told} == {"smollm2", *PAIRS}
    for name, pair in PAIRS.items():
        target, draft, licence = told[name]
        for cell, model in ((target, pair.target), (draft, pair.draft)):
            model_name, bits = re.fullmatch(r"\S+?/(\S+)-GGUF:(\S+)", model).groups()
            assert cell == f"{model_name}, {bits}", name
        assert licence == pair.licence
