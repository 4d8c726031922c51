"""KV in two tiers as text for docs/benchmarks/README.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.program import table

REAL = (
    "Real processes on this machine, whose copies between two pools of its memory take injected time. `opensled serve` "
    "(policy fcfs) holds KV for {sessions_that_fit} sessions of {prompt} tokens; devices draft {away_s:g} s after each "
    "verdict. To compute a prompt took {prompt_s:g} s, beside other load: paces are this machine's, what counts is the "
    "comparison. Between two servers the texts differed in {wrong} tokens."
)
SIMULATED = (
    "Simulated, with the product's own code for blocks, host tier and policy: {target} on {accelerator} by their "
    "profiles, {context:,} tokens in each session, of which {sessions_that_fit} fit. Devices draft 4 tokens, 0.5 s "
    "after each verdict, and wait for it; copies take what the bus says, each way at once. None of this ran on a GPU. "
    "It does not help where computing is faster than copying (6 GB/s: nothing moves), nor the slowest sessions under "
    "policy goodput: there the server decodes by itself, hardly a session rests, and older ones keep their memory."
)


def section(document: Mapping[str, Any]) -> list[str]:
    """Both parts, as far as they were measured."""
    lines = [
        "",
        "## KV in two tiers",
        "",
        "Sessions of which 95 % have the pace, with and without host memory.",
    ]
    for name, head, told in (("real", REAL, _real), ("simulated", SIMULATED, _simulated)):
        if part := document.get(name):
            wrong = sum(row.get("wrong_tokens", 0) for rows in part["rows"].values() for row in rows)
            lines += ["", head.format(**part, wrong=wrong), "", *_held(part), "", *told(part)]
            load = part["provenance"]["machine"]["load_average"][0]
            lines += ["", f"`{part['provenance']['command']}`; load at the start {load:g}."]
    return [*lines, ""]


def _held(part: Mapping[str, Any]) -> list[str]:
    paces = list(next(iter(part["held"].values())))
    head = ("server", *[f"held at {pace} tokens/s" for pace in paces])
    return table(head, [(name, *[str(held[pace]) for pace in paces]) for name, held in part["held"].items()])


def _simulated(part: Mapping[str, Any]) -> list[str]:
    head = (
        "server",
        "sessions",
        "tokens/s of the slowest of the 95 %",
        "tokens/s of all",
        "preemptions",
        "restored",
    )
    rows = [
        (
            name,
            str(row["sessions"]),
            f"{row['rate_of_the_slowest_held']:.2f}",
            f"{row['tokens_s']:.0f}",
            str(row["preempted"]),
            f"{row['restored']:,}",
        )
        for name, found in part["rows"].items()
        for row in found
    ]
    return table(head, rows)


def _real(part: Mapping[str, Any]) -> list[str]:
    head = (
        "server",
        "sessions",
        "tokens/s of the slowest of the 95 %",
        "tokens/s of all",
        "preemptions",
        "computed",
        "restored",
    )
    rows = [
        (
            name,
            str(row["sessions"]),
            f"{row['rate_of_the_slowest_held']:.2f}",
            f"{row['tokens_s']:.2f}",
            f"{row['preemptions_total']:.0f}",
            f"{row['positions_computed_total']:,.0f}",
            f"{row['kv_restored_positions_total']:,.0f}",
        )
        for name, found in part["rows"].items()
        for row in found
    ]
    return table(head, rows)
