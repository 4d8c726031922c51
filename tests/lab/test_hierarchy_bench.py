"""The benchmark of the hierarchy: what its cells are made of, and what its tables say of them."""

from dataclasses import replace

from lab.benchmarks.hierarchy import _where
from lab.benchmarks.hierarchy_cells import (
    HUBS,
    LOADS,
    ROUND_TRIPS,
    TARGETS,
    USERS,
    WORDS,
    Job,
    Option,
    Place,
    at_the_server,
    from_devices,
    jobs,
    over_hubs,
)
from lab.benchmarks.hierarchy_view import cells_of, cells_table, section, summary, verdict
from lab.testbed.load.load import Load
from lab.testbed.simulated.hierarchy import BESIDE, CENTRALIZED, FROM_DEVICE, FROM_HUB, THREE_TIERS

SHORT = Load(warmup=0.5, duration=2.0)


def run(path, rate, rtt_ms=0, hub="", policy="fcfs"):
    """An entry of `runs`."""
    entry = {
        "target": "moe",
        "load": "light",
        "rtt_ms": rtt_ms,
        "hub": hub,
        "chain": WORDS[path],
        "rate": rate,
    }
    return entry | {"blocks": [4], "policy": policy, "positions_per_token": 2.0, "tokens_per_step": 3.0}


def test_every_chain_is_simulated_in_every_cell_and_shared_ones_once():
    todo = jobs(tuple(TARGETS), HUBS, ROUND_TRIPS, SHORT)
    assert len(todo) == len(set(todo))
    each = [len(list(options())) for options in (at_the_server, from_devices, over_hubs)]
    cells = len(TARGETS) * len(LOADS)
    trips, hubs = len(ROUND_TRIPS), len(HUBS)
    assert len(todo) == cells * (each[0] + trips * each[1] + trips * hubs * each[2])


def test_others_hold_their_share_of_the_places():
    for target, server in TARGETS.items():
        heavy = Place(target, "heavy").server
        assert Place(target, "light").server == server
        assert heavy.others + heavy.sessions_that_fit == server.sessions_that_fit
        assert heavy.sessions_that_fit >= USERS


def test_a_run_says_whose_cells_it_belongs_to():
    place = Place("moe", "heavy", 60, "agx-orin")
    found = [
        _where(Job(place, Option(path, lengths), SHORT))
        for path, lengths in ((CENTRALIZED, ()), (FROM_DEVICE, (4,)), (FROM_HUB, (4,)), (BESIDE, (4,)))
    ]
    assert [(each["rtt_ms"], each["hub"]) for each in found] == [
        (60, ""),
        (60, ""),
        (60, "agx-orin"),
        (0, ""),
    ]


def test_a_cell_has_the_best_of_each_contender_and_the_ratios_of_the_best_hierarchy():
    runs = [run(CENTRALIZED, 50.0, 20), run(FROM_DEVICE, 20.0, 20), run(FROM_DEVICE, 30.0, 20)]
    runs += [run(CENTRALIZED, 55.0, 60)]
    runs += [run(FROM_HUB, 40.0, 20, "agx-orin", "goodput"), run(THREE_TIERS, 60.0, 20, "agx-orin")]
    runs += [run(THREE_TIERS, 99.0, 60, "agx-orin"), run(THREE_TIERS, 99.0, 20, "strix-halo")]
    cell = next(each for each in cells_of(runs) if (each["hub"], each["rtt_ms"]) == ("agx-orin", 20))
    assert {name: each and each["rate"] for name, each in cell["best"].items()} == {
        "centralized": 50.0,
        "device": 30.0,
        "server": None,
        "hub": 40.0,
        "three": 60.0,
        "default": 40.0,
    }
    assert cell["relay"]["rate"] == 60.0
    assert cell["ratios"] == {"centralized": 1.2, "device": 2.0, "others": 1.2, "default": 0.8}


def test_the_summary_has_the_lowest_and_the_highest_of_each_place():
    runs = [run(CENTRALIZED, 50.0, 20), run(FROM_DEVICE, 20.0, 20), run(BESIDE, 80.0, 0)]
    runs += [run(FROM_HUB, 40.0, 20, "agx-orin", "goodput"), run(THREE_TIERS, 60.0, 20, "agx-orin")]
    runs += [run(FROM_HUB, 70.0, 20, "strix-halo", "goodput"), run(THREE_TIERS, 10.0, 20, "strix-halo")]
    place, every = summary(cells_of(runs), runs)
    assert place["name"] == "moe, light" and every["name"] == "all"
    assert place["tokens/s"] == {"centralized": [50.0, 50.0], "server": [80.0, 80.0]}
    assert place["relay by default"] == {"20 ms": [0.8, 1.4]}
    assert place["best relay over"] == {"centralized": [1.2, 1.4], "server": [0.75, 0.875]}
    assert every["default"] == {"cells": 2, "wins": 1, "losses": 1, "range": [0.8, 1.4]}
    assert every["relay by fcfs"] == [0.2, 1.2]


def test_the_verdict_counts_wins_and_losses():
    ratios = [{"centralized": 1.2, "device": 0.9}, {"centralized": 1.1, "device": 3.0}]
    cells = [{"target": "moe", "load": "light", "hub": "x", "rtt_ms": 20, "ratios": each} for each in ratios]
    lines = verdict(cells)
    assert "1 of 2 cells at 1.2 or more, 0 below 1" in lines[0]
    assert "1 of 2 cells at 1.2 or more, 1 below 1" in lines[1]
    assert "0 of 0" in lines[2]


def test_the_tables_hold_every_cell(tmp_path):
    runs = [run(CENTRALIZED, 50.0, 20), run(FROM_DEVICE, 20.0, 20)]
    runs += [run(FROM_HUB, 65.0, 20, "agx-orin"), run(THREE_TIERS, 40.0, 20, "agx-orin")]
    document = {
        "facts": {"users of a hub": USERS},
        "provenance": {"command": "python -m lab.benchmarks.hierarchy"},
        "cells": cells_of(runs),
    }
    text = "\n".join(cells_table(document))
    row = "| moe, light | agx-orin | 20 ms | 50.0 | 20.0 | no room | 65.0 | 40.0 | no room |"
    assert row + " **1.30** | **3.25** |  | **1.30** |  |" in text
    assert "best relay / target alone: 1 of 1 cells at 1.2 or more, 0 below 1." in "\n".join(
        section(document)
    )


def test_a_job_gives_an_entry_and_none_where_there_is_no_room():
    place = Place("moe", "light", 20, "strix-halo")
    entry = Job(place, Option(FROM_HUB, (4,)), SHORT).run()
    assert entry is not None and entry["rate"] > 0 and entry["middle"] == "draft-1.5b"
    assert Job(place, Option(FROM_HUB, (4,), middle="dense-70b"), SHORT).run() is not None
    nano = replace(place, hub="orin-nano-super")
    assert Job(nano, Option(FROM_HUB, (4,), middle="dense-70b"), SHORT).run() is None
