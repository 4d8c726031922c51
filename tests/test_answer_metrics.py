"""What a server tells of whole answers: by tenant and route, over HTTP and gRPC, at a gateway, in bounded numbers."""

import pickle
import time

import pytest

from opensled.core.errors import InvalidRequest, Overloaded
from opensled.core.messages import Cancel, Open, Opened, SamplingParams, Verdict
from opensled.metrics.answer_counts import (
    CANCELLED,
    GRPC,
    MOST,
    OTHER,
    AnswerClock,
    AnswerCounts,
    RouteCounts,
    answer_metrics,
)
from opensled.metrics.registry import build_metric
from tests.devices import device_on, read
from tests.http_serving import HI, asking, http_serving, said
from tests.pace import units
from tests.replicas import api, cluster, until_ready
from tests.scraping import samples, scrape
from tests.serving import GREEDY, PROMPT, finish, first_reply, linked, serving
from tests.system import until
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.cluster.gateway_metrics import gateway_metrics
from verify_server.front.server_metrics import metrics

TENANTS = Tenants((("token-a", "alice"), ("token-b", "bob")))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# What vLLM 0.10 and later serve under these names, with `vllm:` before them (vllm/v1/metrics/loggers.py)
OF_VLLM = {
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_success_total",
    "prompt_tokens_total",
    "generation_tokens_total",
}


def test_the_names_are_those_of_vllm_where_it_has_the_metric():
    assert {metric.name for metric in answer_metrics(lambda: ())} == OF_VLLM | {"errors_total"}


async def test_answers_over_http_count_for_their_tenant_and_route():
    async with http_serving(tenants=TENANTS) as (manager, _, address):
        async with asking(address, "token-a") as alice, asking(address, "token-b") as bob:
            began = time.monotonic()
            await said(alice)
            await said(alice, n=2, temperature=0.5)
            took = time.monotonic() - began
            chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
            assert (await bob.post(CHAT, json=chat)).status_code == 200
        found, took = samples(scrape(metrics(manager))), took
    alice = (COMPLETIONS, "alice")
    assert found[("request_success_total", "length", *alice)] == 3
    assert found[("generation_tokens_total", *alice)] == 36
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency"):
        assert found[(f"{name}_seconds_count", *alice)] == 3
    first, whole = (
        found[(f"{name}_seconds_sum", *alice)] for name in ("time_to_first_token", "e2e_request_latency")
    )
    assert 0 < first <= whole <= 3 * took
    # The mean time of each further token, 11 of them, is what is left after the first one
    assert 0 < 11 * found[("request_time_per_output_token_seconds_sum", *alice)] <= whole - first
    assert found["request_success_total", "length", CHAT, "bob"] == 1
    assert found["generation_tokens_total", CHAT, "bob"] == 5
    assert found["prompt_tokens_total", CHAT, "bob"] > 0
    assert ("request_success_total", "length", COMPLETIONS, "bob") not in found


async def test_errors_count_once_for_a_request_by_code_and_route():
    limits = SessionLimits(max_sessions=1, linger=0.2)
    async with http_serving(limits=limits) as (manager, _, address), asking(address) as client:
        assert (await client.post(COMPLETIONS, json={**HI, "n": 0})).status_code == 400
        assert (await client.post("/nowhere/at/all", json=HI)).status_code == 404
        manager.draining = True
        assert (await client.post(COMPLETIONS, json={**HI, "n": 3, "temperature": 1})).status_code == 429
        assert (await client.get("/readyz")).status_code == 503
        found = samples(scrape(metrics(manager)))
    errors = {key[1:]: number for key, number in found.items() if key[0] == "errors_total"}
    assert errors == {
        (InvalidRequest.code, COMPLETIONS, "local"): 1,
        ("not_found", OTHER, "local"): 1,
        (Overloaded.code, COMPLETIONS, "local"): 1,
    }


async def test_an_answer_whose_reader_leaves_is_cancelled_and_has_no_latency():
    async with http_serving() as (manager, _, address), asking(address) as client:
        long = {**HI, "max_tokens": 3000, "stream": True}
        async with client.stream("POST", COMPLETIONS, json=long) as response:
            await anext(response.aiter_lines())
        cancelled = ("request_success_total", CANCELLED, COMPLETIONS, "local")
        await until(lambda: samples(scrape(metrics(manager)))[cancelled] == 1)
        found = samples(scrape(metrics(manager)))
    assert found["time_to_first_token_seconds_count", COMPLETIONS, "local"] == 1
    assert found["e2e_request_latency_seconds_count", COMPLETIONS, "local"] == 0


async def test_answers_to_devices_have_the_route_grpc():
    async with serving(TENANTS) as (manager, address), device_on(address, token="token-a") as device:
        chunks = await read(device)
        async with linked(address, token="token-b") as link:
            await finish(link)
            await first_reply(link, Open((10**6,), GREEDY))  # an id that is none
        stats, found = chunks[-1].stats, samples(scrape(metrics(manager)))
    for tenant, tokens in (("alice", stats.completion_tokens), ("bob", GREEDY.max_tokens)):
        assert found["request_success_total", "length", GRPC, tenant] == 1
        assert found["generation_tokens_total", GRPC, tenant] == tokens
        assert found["prompt_tokens_total", GRPC, tenant] == len(PROMPT)
        assert found["time_to_first_token_seconds_count", GRPC, tenant] == 1
        assert found["e2e_request_latency_seconds_count", GRPC, tenant] == 1
    assert found["errors_total", InvalidRequest.code, GRPC, "bob"] == 1


async def test_a_lost_stream_counts_when_its_answer_ends_and_a_cancelled_one_at_once():
    params = SamplingParams(temperature=0, max_tokens=150)
    limits = SessionLimits(max_sessions=4, linger=20)
    async with serving(limits=limits) as (manager, address), linked(address) as link:
        lost = link.connect()
        await lost.send(Open(PROMPT, params))
        opened = await lost.receive()
        assert isinstance(opened, Opened)
        await lost.close()
        _, rest = await finish(link, Open(PROMPT, params, resume_token=opened.resume_token))
        ended = samples(scrape(metrics(manager)))
        left = link.connect()
        await left.send(Open(PROMPT, params))
        await left.receive()
        await left.send(Cancel())
        cancelled = ("request_success_total", CANCELLED, GRPC, "local")
        await until(lambda: samples(scrape(metrics(manager)))[cancelled] == 1)
    assert len(rest) == 150 and ended["request_success_total", "length", GRPC, "local"] == 1
    assert ended["request_success_total", CANCELLED, GRPC, "local"] == 0


async def test_tokens_that_a_device_has_already_count_in_the_stream_that_brought_them():
    async with serving() as (manager, address), linked(address) as link:
        _, whole = await finish(link)
        stream, rest, over = link.connect(), whole[:7], ""
        await stream.send(Open(PROMPT, GREEDY, committed=tuple(rest)))
        assert isinstance(await stream.receive(), Opened)
        while not over:
            if isinstance(message := await stream.receive(), Verdict):
                rest += message.tokens[len(PROMPT) + len(rest) - message.base :]
                over = message.finish_reason
        await stream.close()
        assert rest == whole
        found = samples(scrape(metrics(manager)))
    assert found["generation_tokens_total", GRPC, "local"] == 20 + 13
    assert found["prompt_tokens_total", GRPC, "local"] == len(PROMPT)
    assert found["request_success_total", "length", GRPC, "local"] == 2
    # Of the other one a part came before
    assert found["e2e_request_latency_seconds_count", GRPC, "local"] == 1


async def test_a_gateway_tells_of_its_own_api_and_of_its_replicas_also_of_one_that_is_gone():
    async with api("a", "b", tenants=TENANTS) as (one, address), asking(address, "token-a") as client:
        await until_ready(client)
        await said(client)
        for replica in one.members:
            async with linked(replica.address, token="token-b") as link:
                await finish(link)
        shown = gateway_metrics(one.serving.gateway, one)
        before = samples(scrape(shown))
        gone = one.members.pop()
        await gone.stop()
        after = samples(scrape(shown))
    for found in (before, after):
        assert found["request_success_total", "length", COMPLETIONS, "alice"] == 1
        assert found["request_success_total", "length", GRPC, "bob"] == 2
        # Its API counts, and no replica
        assert ("request_success_total", "alice", GRPC, "length") not in found
        build = next(key for key in before if key[0] == "build_info")
        assert found[build] == 1


async def test_a_device_that_is_passed_through_counts_at_the_replica():
    async with cluster("a", proxy=True) as one, linked(one.address) as link:
        await finish(link)
        await until(lambda: one.members[0].manager.stats.answers.now())
        assert (
            samples(scrape(gateway_metrics(one.serving.gateway, one)))[
                "request_success_total", "length", GRPC, "local"
            ]
            == 1
        )


def test_names_without_end_make_no_series_without_end():
    """Tenants by certificate have whatever names their authority gave."""
    counts = AnswerCounts()
    for number in range(3 * MOST):
        counts.of(f"tenant-{number}", GRPC).errors["internal"] += 1
    found = dict(counts.now())
    assert len(found) == MOST + 1 and found[GRPC, OTHER].errors["internal"] == 2 * MOST
    assert len(scrape(answer_metrics(counts.now))) < 3_000_000


def test_counts_of_several_servers_add_up_and_travel():
    one, other = AnswerCounts(), AnswerCounts()
    for counts, seconds in ((one, 0.02), (other, 3.0)):
        each = counts.of("a", GRPC)
        each.first_token.add(seconds)
        each.ended["eos"] += 1
        each.tokens += 5
    told = pickle.loads(pickle.dumps(other.now()))
    total = AnswerCounts(one.now(), told)
    (((route, tenant), sum_of),) = total.now()
    assert (tenant, route, sum_of.tokens, sum_of.ended["eos"]) == ("a", GRPC, 10, 2)
    assert sum_of.first_token.sum == pytest.approx(3.02) and sum(sum_of.first_token.counts) == 2
    assert dict(one.now())[GRPC, "a"].tokens == 5  # they stay as they are


def test_what_counting_costs_a_round_is_negligible():
    """A verdict every 12 ms is fast; 0.1 ms would be a hundredth of it. Measured: some microseconds."""
    clock = AnswerClock(RouteCounts(), time.monotonic())
    assert units(lambda: clock.count_tokens(1), 2000) < 0.4


def test_labels_are_in_the_order_in_which_they_are_written():
    for metric in [*answer_metrics(lambda: ()), build_metric()]:
        assert metric.labels == sorted(metric.labels)
