"""Sending on before the verdict, simulated: tokens/s and rounds/s of devices that do it, and of the same that wait.

    python -m benchmarks.send_on [--quick] [--users N] [--policy NAME] [--out FOLDER]

Devices, sessions and policies are the product's; steps of the server and passes of the draft models take what their
profiles say, and a link delays each message by half of its round trip. Each draft token is right with one chance,
whatever the others are: the texts are made, not recorded. The table goes to standard output, and with everything that
led to it to docs/benchmarks/send_on.json.
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table, write_json
from edge_client.lengths.adaptive import Adaptive
from hw_profiles import catalog
from hw_profiles.sysfs import BoardState
from opensled_testbed.emulation.step_law import StepLaw
from opensled_testbed.fleet import Server
from opensled_testbed.load.records import RequestRecord
from opensled_testbed.provenance import provenance
from opensled_testbed.simulated.device import SimulatedDevice
from opensled_testbed.simulated.drafting import SimulatedDrafts
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.links import Beside, Ways
from opensled_testbed.simulated.sequences import scripts
from opensled_testbed.simulated.server import SimulatedServer
from opensled_testbed.traces import WHOLE, ItemTrace, Proposal, TraceSet
from scheduler import make_policy
from scheduler.plan import PolicyOptions

NAME = "send_on"
ROUND_TRIPS_MS = (5, 25, 100)
ACCEPTANCES = (0.6, 0.8, 0.95)
DEVICE, DRAFT = "agx-thor", "0.5b"
SERVER = Server(accelerator="h200", target="dense-70b", weight_bits=8, draft_wait=1.0)
PROMPT, TOKENS, RIGHT_FROM = 64, 512, 1000  # tokens of a prompt and of an answer; ids of the text
ANSWERS, QUICK_ANSWERS = 24, 4
SEED = 11


class Delay(Beside):
    """One direction of a link: every message takes the same time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def deliver_at(self, now: float, size: int) -> float:
        """When a message of any `size` that leaves at `now` arrives."""
        return now + self._seconds


def made(number: int, acceptance: float) -> ItemTrace:
    """A text and the drafts for each of its places: a token is right with this chance, wherever drafting began."""
    rng = random.Random(SEED * 1000 + number)
    text = tuple(rng.randrange(RIGHT_FROM, 2 * RIGHT_FROM) for _ in range(TOKENS))
    drafted = [token if rng.random() < acceptance else 0 for token in text]
    proposals = []
    for place in range(TOKENS):
        ids = drafted[place : place + WHOLE]
        wrong = ids.index(0) if 0 in ids else len(ids)
        ids = (ids[:wrong] + [0] * WHOLE)[:WHOLE]  # behind a wrong token nothing is right
        proposals.append(Proposal(tuple(ids), (1.0,) * WHOLE))
    return ItemTrace(f"made-{number}", tuple(range(1, PROMPT + 1)), text, "length", tuple(proposals))


def texts(acceptance: float, answers: int) -> TraceSet:
    """One text for each answer."""
    return TraceSet(SERVER.target, DRAFT, {}, tuple([made(number, acceptance) for number in range(answers)]))


class Setting(NamedTuple):
    """What all cells share."""

    users: int  # devices at the server at the same time
    policy: str  # of the server
    answers: int  # for which each user asks, one after the other


def run(round_trip_ms: float, acceptance: float, send_on: bool, setting: Setting) -> dict[str, float]:
    """What one user gets."""
    users, policy, answers = setting
    events, planner = Events(), make_policy(policy, PolicyOptions(SERVER.draft_wait))
    server = SimulatedServer(events, StepLaw.of(SERVER), planner, users)
    items = scripts(texts(acceptance, answers))
    records: list[list[RequestRecord]] = [[] for _ in range(users)]

    def ask(number: int, device: SimulatedDevice) -> None:
        done = records[number]
        if len(done) < answers:
            done.append(RequestRecord(number, 0, items[len(done)].item, events.now))
            device.ask(done[-1], items[len(done) - 1], lambda _: ask(number, device))

    for number in range(users):
        rule = Adaptive(look_ahead=True, send_on=send_on, clock=lambda: events.now, board=BoardState)
        drafts = SimulatedDrafts(events, catalog.device(DEVICE).draft(DRAFT), rule, True)
        ways = Ways(Delay(round_trip_ms / 2000), Delay(round_trip_ms / 2000))
        device = SimulatedDevice(events, server, ways, drafts, None)
        events.at(0.001 * number, partial(ask, number), device)
    events.run(1e6)
    return figures([record for each in records for record in each], server.totals.steps)


def figures(records: Sequence[RequestRecord], steps: int) -> dict[str, float]:
    """Rates of one user, means over answers, each from its request to its last token."""
    spans = [record.arrivals[-1].time - record.sent for record in records]
    rounds = [len(record.rounds) for record in records]
    return {
        "tokens_per_s": fmean(TOKENS / span for span in spans),
        "rounds_per_s": fmean(count / span for count, span in zip(rounds, spans)),
        "tokens_per_round": TOKENS * len(records) / max(1, sum(rounds)),
        "bytes_up_per_token": sum(record.bytes_up for record in records) / (TOKENS * len(records)),
        "steps": steps,
    }


def cell(round_trip_ms: float, acceptance: float, setting: Setting) -> dict[str, Any]:
    """One row: the same device with and without."""
    without, sends = (run(round_trip_ms, acceptance, on, setting) for on in (False, True))
    gain = sends["tokens_per_s"] / without["tokens_per_s"]
    say(f"{round_trip_ms:g} ms, acceptance {acceptance:g}: x {gain:.2f}")
    return {
        "round_trip_ms": round_trip_ms,
        "acceptance": acceptance,
        "waits": {name: round(value, 3) for name, value in without.items()},
        "sends_on": {name: round(value, 3) for name, value in sends.items()},
        "gain": round(gain, 3),
    }


def shown(cells: Sequence[dict[str, Any]]) -> str:
    """The table of all rows, Markdown."""
    head = ["round trip", "acceptance", "tokens/s", "sending on", "gain", "rounds/s", "sending on"]
    rows = [
        [
            f"{each['round_trip_ms']:g} ms",
            f"{each['acceptance']:g}",
            f"{each['waits']['tokens_per_s']:.1f}",
            f"{each['sends_on']['tokens_per_s']:.1f}",
            f"{each['gain']:.2f}",
            f"{each['waits']['rounds_per_s']:.1f}",
            f"{each['sends_on']['rounds_per_s']:.1f}",
        ]
        for each in cells
    ]
    return "\n".join(table(head, rows))


def measure(arguments: Namespace) -> int:
    """All cells, shown and written."""
    setting = Setting(arguments.users, arguments.policy, QUICK_ANSWERS if arguments.quick else ANSWERS)
    command = f"python -m benchmarks.send_on --users {setting.users} --policy {setting.policy}"
    origin = provenance(command + (" --quick" if arguments.quick else ""))
    cells = [cell(*where, setting) for where in product(ROUND_TRIPS_MS, ACCEPTANCES)]
    print(shown(cells))
    folder = folder_of(arguments)
    if folder is not None:
        facts: dict[str, Any] = {
            "figure": NAME,
            "title": "Sending on before the verdict",
            "label": "simulated",
        }
        facts |= {"device": DEVICE, "draft": DRAFT, "server": vars(SERVER), "tokens": TOKENS}
        facts |= {**setting._asdict(), "cells": cells, "provenance": origin}
        write_json(folder / f"{NAME}.json", facts)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    parser.add_argument("--users", type=int, default=1, help="devices at the server at the same time")
    parser.add_argument(
        "--policy", default="goodput", help="who plans the server's steps: goodput, fcfs, static"
    )
    add_quick_and_out(parser)
    return exit_code(lambda: measure(parser.parse_args(words)))


if __name__ == "__main__":
    sys.exit(main())
