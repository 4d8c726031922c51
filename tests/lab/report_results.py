"""Small made-up results for the HTML report, and the page that they make."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from opensled.cli.main import main

ORIGIN = {
    "command": "make bench",
    "commit": "0123456789abcdef",
    "date": "2026-11-21T10:00:00+00:00",
    "seed": 0,
}
HOSTILE = "<script>alert('&')</script>"
WINS = {
    "centralized": [10, 12, 14],
    "sled-static": [6, 6, 6],
    "sled-continuous": [9, 9, 9],
    "opensled": [20, 22, 24],
}
LOSES = {
    "centralized": [20, 21, 22],
    "sled-static": [6, 6, 6],
    "sled-continuous": [9, 9, 9],
    "opensled": [10, 11, 12],
}


def summary(value: float) -> dict[str, Any]:
    return {
        "pace_mean": value,
        "output_throughput": 10 * value,
        "tokens_per_round": 2.5,
        "positions_per_token": 2.0,
        "mean_ttft_ms": 300.0,
        "acceptance_rate": 0.6,
    }


def cell_of(id: str, paces: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    runs = [
        {"baseline": name, "repeat": repeat, "live": False, "summary": summary(value)}
        for name, values in paces.items()
        for repeat, value in enumerate(values)
    ]
    live = [{"baseline": "sled-continuous", "repeat": 0, "live": True, "summary": summary(99)}]
    simulated = [{"baseline": name, "summary": summary(values[0])} for name, values in paces.items()]
    capacity = [
        {"baseline": name, "emulated": None, "simulated": int(10 * values[0])}
        for name, values in paces.items()
    ]
    cell = {"id": id, "regime": "r", "device": "d", "link": "l", "users": 16, "pace": 15.0, "fleet": {}}
    return cell | {"runs": runs + live, "simulated": simulated, "capacity": capacity} | more


def regimes(*found: dict[str, Any]) -> dict[str, Any]:
    head = {"figure": "regimes", "title": "Cells", "label": "emulated", "provenance": ORIGIN, "dilation": 8}
    return head | {"cells": list(found)}


def component(title: str = "Part", ratio: float = 0.5) -> dict[str, Any]:
    found = {"name": "case", "ours": "a", "against": "b", "ratio": ratio, "lowest": 0.4, "highest": 0.6}
    return {
        "figure": "part",
        "title": title,
        "label": "real",
        "unit": "ms",
        "compared": f"`a` against {HOSTILE}.",
        "loses": "Always.",
        "ratios": [found | {"required": 1.0}],
        "medians": {"a": 2.0, "b": 1.0},
        "provenance": ORIGIN,
    }


def grid() -> dict[str, Any]:
    axes = {
        "regimes": ["dense-1k"],
        "links": ["ethernet", "lte"],
        "devices": ["pi-5"],
        "paces": [10],
        "baselines": ["centralized", "sled-continuous", "opensled"],
    }
    place = {"regime": "dense-1k", "device": "pi-5", "pace": 10, "draft_length": {"sled-continuous": 4}}
    points = [
        place | {"link": "ethernet", "capacity": {"centralized": 100, "sled-continuous": 80, "opensled": 87}},
        place | {"link": "lte", "capacity": {"centralized": 0, "sled-continuous": 5, "opensled": 5}},
    ]
    return {"figure": "grid", "title": "Grid", "label": "simulated", "provenance": ORIGIN} | {
        "axes": axes,
        "points": points,
    }


def map_of_modes() -> dict[str, Any]:
    point = {"target": "dense-8b", "accelerator": "a100-80", "context": 1024, "pace": 10, "link": "lte"}
    points = [
        point | {"device": "pi-5", "mode": "centralized", "draft_length": 0, "users": 9, "gain": 1.0},
        point | {"device": "orin-nx", "mode": "sled-continuous", "draft_length": 3, "users": 9, "gain": 1.73},
        point | {"device": "pi-4", "mode": "sled-continuous", "draft_length": 3, "users": 9, "gain": None},
    ]
    return {"figure": "map", "title": "Map", "label": "derived", "provenance": ORIGIN, "points": points}


def doctor() -> dict[str, Any]:
    row = {
        "setup": "one",
        "foretold": 12.0,
        "came": 10.0,
        "off_by": 0.2,
        "own": 5.0,
        "acceptance": 0.5,
        "by_kind": {},
    }
    rows = [row, row | {"setup": "two", "came": 20.0, "off_by": -0.4}]
    return component("Doctor") | {"ratios": [], "facts": {"bound": 0.25, "rows": rows}}


EVERYTHING = {
    "regimes": regimes(cell_of("good cell", WINS), cell_of(HOSTILE, LOSES)),
    "grid": grid(),
    "grid-code": grid()
    | {"figure": "grid-code", "additions": [{"baselines": ["opensled"], "provenance": ORIGIN}]},
    "map": map_of_modes(),
    "peer": component("A peer"),
    "part": component(),
    "doctor": doctor(),
    "other_form": {"provenance": ORIGIN, "label": "real"},
    "not-ours": {"something": "else"},
}


def page_of(folder: Path, results: dict[str, Any]) -> str:
    for name, content in results.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    out = folder / "pages" / "report.html"
    assert main(["bench", "report", "--folder", str(folder), "--out", str(out)]) == 0
    return out.read_text("utf-8")


def section_of(page: str, anchor: str) -> str:
    [found] = re.findall(rf'<section id="{anchor}">.*?</section>', page, re.DOTALL)
    return str(found)
