"""What a fleet in namespaces has to bear: questions, and kills of its servers and of a device while they answer."""

import time
from collections.abc import Callable, Sequence

from lab.testbed.fleet_check import Edge, compare, conclude
from lab.testbed.netns_hub import HubTestbed
from lab.testbed.netns_machines import Testbed
from opensled.core.errors import OpenSledError

VICTIM = "pi-5"


def trials(testbed: Testbed, prompts: int) -> bool:
    """All of them; says what came of each. Whether every answer is right, but for the one that was broken off."""
    right = trial("every device is asked", testbed.ask(prompts, 0))
    for number, (name, restart) in enumerate(testbed.servers.items(), 1):
        edges = testbed.ask(prompts, 1000 * number, _killing(restart))
        right &= trial(f"{name} is killed and restarted", edges)
    right &= _killed_device(testbed, prompts)
    right &= trial(f"{VICTIM} is back", testbed.ask(prompts, 9000))
    return right & _vetted(testbed) if isinstance(testbed, HubTestbed) else right


def _killing(restart: Callable[[], None]) -> Callable[[list[Edge]], None]:
    def kill(edges: list[Edge]) -> None:
        await_answers(edges, 2)
        restart()

    return kill


def _killed_device(testbed: Testbed, prompts: int) -> bool:
    def kill(edges: list[Edge]) -> None:
        await_answers([edge for edge in edges if edge.name == VICTIM], 1, after=1)
        testbed.restart_edge(VICTIM)

    edges = testbed.ask(prompts, 8000, kill)
    [victim] = [edge for edge in edges if edge.name == VICTIM]
    broke_off, victim.error = bool(victim.error), ""
    del victim.prompts[len(victim.replies) :]  # what it could not answer any more
    return broke_off & trial(f"{VICTIM} is killed in the midst of an answer", edges)


def _vetted(testbed: HubTestbed) -> bool:
    """Whether the hub was of use."""
    confirmed, taken_back = testbed.vetted()
    print(
        f"\nthe hub since its restart: {confirmed} vetted tokens confirmed by the cloud, {taken_back} taken back"
    )
    return confirmed > 0


def await_answers(edges: Sequence[Edge], count: int, after: int = 0) -> None:
    """Wait until `count` of these edges are in the midst of an answer, with at least `after` finished before."""
    deadline = time.monotonic() + 120
    while sum(edge.writing is not None and len(edge.replies) >= after for edge in edges) < count:
        if time.monotonic() > deadline:
            raise OpenSledError("no answer is under way that could be interrupted; see the errors above")
        time.sleep(0.01)


def trial(what: str, edges: list[Edge]) -> bool:
    """Say whether these answers are the target's."""
    print(f"\n{what}", flush=True)
    compare(edges)
    return conclude(edges, as_json=False) == 0
