"""What device_heads_real and device_heads_law measured, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.program import table
from benchmarks.real_contenders import NONE


def section(document: Mapping[str, Any]) -> list[str]:
    """For README.md; nothing in it is written by hand."""
    units, names = document["units"], document["facts"]["contenders"]
    machine = document["provenance"]["machine"]
    loads = [unit["load"] for unit in units]
    kinds = list(dict.fromkeys(unit["kind"] for unit in units))
    told = (
        f"**Real**: SmolLM2, set-up torch, level exact, greedy, on one core, the devices on the other one "
        f"({machine['cpu']}), loopback. {len(units)} prompts of {len(kinds)} kinds, answers of at most "
        f"{document['facts']['max_tokens']} tokens, every prompt asked of all in turns; all texts were equal. Load of "
        f"the machine meanwhile: {min(loads):.1f} to {max(loads):.1f}. Ratios are of tokens/s from the request to the "
        "last token, to no drafts, over all kinds, with bootstrap intervals of 95 %; columns of kinds are mean ratios. "
        f"`{document['provenance']['command']}`"
    )
    head = ("drafts", "tokens/s, median", "ratio to no drafts", *kinds, "first token, s", "tokens a round")
    rows = [_row(document, name, kinds) for name in names]
    return [
        f"## {document['title']}",
        "",
        told,
        "",
        *table(head, rows),
        "",
    ]


def _row(document: Mapping[str, Any], name: str, kinds: Sequence[str]) -> list[str]:
    units = document["units"]
    answers = [unit["answers"][name] for unit in units]
    rates = [each["tokens"] / each["seconds"] for each in answers]
    ratio = "1"
    if name != NONE:
        found = document["ratios_to_none"][name]
        ratio = f"**{found['mean']:.2f}** ({found['low']:.2f} to {found['high']:.2f})"
    by_kind = [_of_kind(units, name, kind) for kind in kinds]
    rounds, tokens = (sum(each[key] for each in answers) for key in ("rounds", "round_tokens"))
    first = f"{median(each['first_s'] for each in answers):.2f}"
    return [name, f"{median(rates):.1f}", ratio, *by_kind, first, f"{tokens / rounds:.2f}" if rounds else ""]


def _of_kind(units: Sequence[Mapping[str, Any]], name: str, kind: str) -> str:
    found = [
        unit["answers"][NONE]["seconds"] / unit["answers"][name]["seconds"]
        for unit in units
        if unit["kind"] == kind
    ]
    return f"{fmean(found):.2f}"


def law_section(document: Mapping[str, Any]) -> list[str]:
    """For README.md; nothing in it is written by hand."""
    core, origin = document["core"], document["provenance"]
    told = (
        f"**Real**, one core of {origin['machine']['cpu']}, load {origin['machine']['load_average'][0]}: it reads "
        f"{core['read, GB/s']:g} GB/s and computes {core['compute, GFLOP/s']:g} GFLOP/s in float32. The law with these "
        "rates, over the least time of a block with three rows read: what is below 1 is the share of them that ONNX "
        f"Runtime reaches. `{origin['command']}`"
    )
    head = ("head", "MB read", "MFLOP", "a block, least, ms", "median", "by the law, ms", "law over measured")
    rows = [
        [
            entry["head"],
            *(f"{entry[name]:g}" for name in ("MB", "MFLOP", "least_ms", "median_ms", "law_ms")),
            f"{entry['share']:.2f}",
        ]
        for entry in document["heads"]
    ]
    return [f"## {document['title']}", "", told, "", *table(head, rows), ""]
