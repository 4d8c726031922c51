"""What drafts beside the target when nobody says so: it suits engine and policy, is told, and changes no text."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from typing import Any, NamedTuple

import httpx
import pytest

from lab.testbed.processes import Process, free_port
from opensled.core.errors import UsageError
from opensled.metrics.scrape import scrape
from relay.config import RelayConfig
from tests.fakes import FakeEngine, FakeText
from verify_server.drafting.choice import Choice, choose, drafting_of
from verify_server.drafting.lookup import ServerLookup
from verify_server.options.serve_config import ServeConfig, require_drafters
from verify_server.round.loaded_model import ServedModel

DEFAULT, NONE = "auto", "none"
USERS = 8
TOKENS = 48
LIST = "red apple, green pear, blue plum, red apple, green pear, blue plum"
SAMPLINGS = ({"temperature": 0}, {"temperature": 0.8, "seed": 11})


# -- what it is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "drafter"),
    [
        ({}, "lookup"),
        ({"engine": "torch"}, "lookup"),
        ({"engine": "llamacpp"}, "lookup"),
        ({"engine": "their.module:engine"}, "lookup"),
        ({"draft_wait": 30.0}, "lookup"),
        ({"draft_model": "tiny-draft"}, "lookup+model"),
        ({"policy": "fcfs", "draft_model": "tiny-draft"}, "model"),
        ({"server_drafter": "none"}, "none"),
        ({"server_drafter": "cacheback", "policy": "fcfs", "draft_wait": inf}, "cacheback"),
    ],
)
def test_it_suits_the_engine_and_what_is_named_stays(options, drafter):
    assert choose(ServeConfig(**options)) == Choice(drafter)


@pytest.mark.parametrize("engine", ["auto", "torch", "llamacpp"])
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"policy": "fcfs"}, "policy fcfs"),
        ({"policy": "static"}, "policy static"),
        ({"policy": "their.module:Policy"}, "policy their.module:Policy"),
        ({"draft_wait": inf}, "--draft-wait inf"),
    ],
)
def test_where_it_could_only_cost_there_is_none_and_a_reason(engine, options, why):
    found = choose(ServeConfig(engine=engine, **options))
    assert found.drafters == NONE and found.why.startswith(why)


def test_nothing_drafts_beside_a_relays_model():
    assert choose(RelayConfig().serving) == Choice(NONE)


def stage_of(**options: Any):
    return drafting_of(ServeConfig(**options), ServedModel("fake", FakeEngine(40), FakeText()))


def test_it_is_loaded_and_one_line_says_so(capsys):
    stage = stage_of()
    assert stage is not None and isinstance(stage.drafters["lookup"], ServerLookup)
    assert capsys.readouterr().err == "drafter: auto -> lookup\n"


def test_one_line_says_why_there_is_none(capsys):
    assert stage_of(policy="fcfs") is None
    told = "drafter: auto -> none (policy fcfs does not weigh what its drafts bring)\n"
    assert capsys.readouterr().err == told


def test_what_was_named_is_not_told_again(capsys):
    assert stage_of(server_drafter="none") is None
    assert list(stage_of(server_drafter="lookup+cacheback").drafters) == ["lookup", "cacheback"]
    assert capsys.readouterr().err == ""


def test_an_unknown_one_of_several_is_refused():
    with pytest.raises(UsageError, match="unknown server drafter 'lookups'; choose from auto, none, lookup"):
        require_drafters("model+lookups")


# -- what it does -------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """A server whose target repeats itself."""

    http: str  # HOST:PORT

    def ask(self, question: str, **fields: Any) -> str:
        body = {"model": "tiny", "prompt": question, "max_tokens": TOKENS, **fields}
        reply = httpx.post(f"http://{self.http}/v1/completions", json=body, timeout=120, trust_env=False)
        return reply.raise_for_status().json()["choices"][0]["text"]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Running]]:
    """Two that differ in nothing but --server-drafter: one does not have it, and one has none."""
    found, started = {}, {}
    with ExitStack() as stack:
        for name, words in ((DEFAULT, ()), (NONE, ("--server-drafter", NONE))):
            http = f"127.0.0.1:{free_port()}"
            serve = ("serve", "--model", "tiny", "--engine", "torch", "--dtype", "float64", "--threads", "1")
            serve += ("--listen", "127.0.0.1:0", "--http", http, "--kv-tokens", "8192", *words)
            started[name] = stack.enter_context(Process(serve, isolated=True))
            found[name] = Running(http)
        for process in started.values():
            process.wait_ready()
        yield found


def asked_together(server: Running, sampling: dict[str, Any]) -> list[str]:
    questions = [f"{number}. {LIST}, {LIST[: 10 * number]}" for number in range(1, USERS + 1)]
    with ThreadPoolExecutor(USERS) as pool:
        return list(pool.map(lambda question: server.ask(question, **sampling), questions))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T=0.8"])
def test_one_user_and_eight_read_what_they_read_without_it(servers, sampling):
    alone = {name: server.ask(LIST, **sampling) for name, server in servers.items()}
    together = {name: asked_together(server, sampling) for name, server in servers.items()}
    assert alone[DEFAULT] == alone[NONE]
    assert together[DEFAULT] == together[NONE]
    assert len(set(together[NONE])) > 1


def test_it_drafts_and_the_metrics_say_what_does(servers):
    for server in servers.values():
        server.ask(LIST, temperature=0)
    drafted, plain = (scrape(servers[name].http) for name in (DEFAULT, NONE))
    assert drafted.by_label("drafter_info") == {"lookup": 1} and plain.by_label("drafter_info") == {NONE: 1}
    assert drafted.get("server_accepted_tokens_total") > 0
    assert plain.get("server_drafts_total") == 0
