"""One simulated user near his server: every token of his device's drafts is right with one chance."""

import random
from statistics import fmean

from edge_client.lengths.hint import HintLength
from hw_profiles import catalog
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.fleet import Server
from lab.testbed.load.records import RequestRecord
from lab.testbed.simulated.device import SimulatedDevice
from lab.testbed.simulated.drafting import SimulatedDrafts
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.links import Beside, Ways
from lab.testbed.simulated.sequences import scripts
from lab.testbed.simulated.server import SimulatedServer
from lab.testbed.traces import WHOLE, ItemTrace, Proposal, TraceSet
from scheduler import make_policy
from scheduler.plan import PolicyOptions

DEVICE, DRAFT = "agx-thor", "0.5b"
SERVER = Server(accelerator="h200", target="dense-70b", weight_bits=8, draft_wait=1.0)
PROMPT, TOKENS, RIGHT_FROM = 64, 512, 1000  # tokens of a prompt and of an answer; ids of the text
SEED = 11


class Delay(Beside):
    """One direction of a link: every message takes the same time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def deliver_at(self, now: float, size: int) -> float:
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


def tokens_per_s(policy: str, round_trip_ms: float, acceptance: float, answers: int) -> float:
    """Of one answer after another, a mean over them."""
    events = Events()
    server = SimulatedServer(
        events, StepLaw.of(SERVER), make_policy(policy, PolicyOptions(SERVER.draft_wait)), 1
    )
    traces = tuple([made(number, acceptance) for number in range(answers)])
    items = scripts(TraceSet(SERVER.target, DRAFT, {}, traces))
    drafts = SimulatedDrafts(events, catalog.device(DEVICE).draft(DRAFT), HintLength(), True)
    ways = Ways(Delay(round_trip_ms / 2000), Delay(round_trip_ms / 2000))
    device = SimulatedDevice(events, server, ways, drafts, None)
    done: list[RequestRecord] = []

    def ask(_: object = None) -> None:
        if len(done) < answers:
            done.append(RequestRecord(0, 0, items[len(done)].item, events.now))
            device.ask(done[-1], items[len(done) - 1], ask)

    events.at(0.0, ask)
    events.run(1e6)
    return fmean(TOKENS / (record.arrivals[-1].time - record.sent) for record in done)
