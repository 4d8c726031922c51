"""How long answers stand still when what serves them is killed or replaced, and whether they stay the target's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.crowd import questions
from benchmarks.failover_scenarios import SCENARIOS, Outcome, Scenario, run
from benchmarks.figure import Figure
from benchmarks.replica_processes import ReplicaCluster

USERS, REPLICAS = 16, 2
MODES = {"direct": False, "proxy": True}


def measure(quick: bool) -> Figure:
    """Every scenario in both modes; quick: one replica after another killed, direct, with shorter answers."""
    scenarios = dict(list(SCENARIOS.items())[:1]) if quick else SCENARIOS
    modes = {"direct": False} if quick else MODES
    outcomes = {
        f"{mode}, {name}": outcome
        for mode, proxy in modes.items()
        for name, outcome in _outcomes(scenarios, proxy, 48 if quick else 96).items()
    }
    return Figure(
        name="failover",
        title="Failover",
        unit="s",
        more_is_better=False,
        compared=(
            f"{USERS} users, each with a real drafter of his own, ask one question after another on {REPLICAS} "
            "replicas of the tiny target in float64 on Ray, and while all of them are in mid-answer something is "
            "killed with SIGKILL or replaced. A sample is how long one answer stood still: from its last token before "
            "to the first one after. Every answer is compared, token by token, with what the target alone writes in "
            "plain transformers; `facts` says how many were identical, how many failed, and how many round trips it "
            "took a device at most to find its sequence again. The network is loopback."
        ),
        loses=(
            "The new replica reads the whole sequence once more, so that long prompts wait longer. A gateway that is "
            "killed is missed until it has been started again, by those who stream through it (`--proxy`) and by those "
            "who begin an answer; Ray's part of that start is seconds."
        ),
        samples={
            name: [each.seconds for each in outcome.resumptions] or [0.0]
            for name, outcome in outcomes.items()
        },
        facts={"users": USERS, "replicas": REPLICAS}
        | {name: outcome.as_json() for name, outcome in outcomes.items()},
    )


def _outcomes(scenarios: Mapping[str, Scenario], proxy: bool, max_tokens: int) -> dict[str, Outcome]:
    """All scenarios, one after another, on one cluster."""
    asked = questions(8, max_tokens)
    with ReplicaCluster(REPLICAS, proxy=proxy) as cluster:
        return {
            name: asyncio.run(run(scenario, cluster, USERS, asked)) for name, scenario in scenarios.items()
        }
