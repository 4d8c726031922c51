"""The metrics port: well formed, documented, on loopback, and only when asked for."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge_client.device import device_metrics
from opensled.core.errors import OpenSledError
from opensled.metrics.exposition import MetricsPort
from opensled.metrics.registry import DraftCounts, Metric, draft_metrics, metrics_port
from tests.devices import device_on, read
from tests.foreign_hosts import FOREIGN_HOSTS
from tests.metric_tables import PAGE, documented
from tests.scraping import samples, scrape
from tests.serving import serving
from verify_server.front.server_metrics import metrics as server_metrics

ROOT = Path(__file__).parents[1]


async def _both_sides():
    async with serving() as (manager, address), device_on(address) as device:
        await read(device)
        return server_metrics(manager), device_metrics.metrics(device)


@pytest.fixture(scope="module")
def sides():
    server, edge = asyncio.run(_both_sides())
    return {"server": server, "device": edge}


@pytest.mark.parametrize("side", ["server", "device"])
def test_the_exposition_is_well_formed(sides, side):
    """The rules of `promtool check metrics`, but for the colon that vLLM's names have too."""
    text = scrape(sides[side])
    families = [f for f in text_string_to_metric_families(text) if f.name.startswith("opensled:")]
    names = [family.name for family in families]
    assert len(names) == len(set(names)) == len(sides[side])
    for metric in sides[side]:
        assert re.fullmatch(r"opensled:[a-z][a-z0-9_]*[a-z]", metric.full_name)
        assert not re.search(r"milli|micro|_ms$|_s$|minutes|kilo|percent", metric.name)
        assert f"# HELP {metric.full_name} {metric.help}" in text and metric.help.endswith(".")
    for family in families:
        assert family.type in ("counter", "gauge", "histogram")
        counted = all(sample.name.endswith("_total") for sample in family.samples)
        assert counted or family.type != "counter"
        assert all(sample.value >= 0 for sample in family.samples)
    assert "process_resident_memory_bytes" in text


def test_the_four_names_of_speculation_are_those_of_vllm():
    assert [metric.full_name for metric in draft_metrics(DraftCounts())] == [
        "opensled:spec_decode_num_drafts_total",
        "opensled:spec_decode_num_draft_tokens_total",
        "opensled:spec_decode_num_accepted_tokens_total",
        "opensled:spec_decode_num_accepted_tokens_per_pos_total",
    ]


def test_the_documentation_names_exactly_what_exists(sides):
    for side, found in sides.items():
        assert documented("servers and devices", f"{side}s") == {(m.name, m.label) for m in found}
    # The gateway's own table: tests/test_metrics_scheduling.py
    mentioned = set(re.findall(r"opensled:(\w+)", PAGE)) - {name for name, _ in documented("gateways")}
    suffixes = re.compile(r"_(bucket|sum|count)$")
    existing = {metric.name for found in sides.values() for metric in found}
    assert {suffixes.sub("", name) if name not in existing else name for name in mentioned} <= existing


def test_a_taken_port_is_named():
    port = MetricsPort("127.0.0.1:0", [Metric("example", "An example.", lambda: 7)])
    with urlopen(f"http://{port.address}/metrics", timeout=60) as reply:
        assert samples(reply.read().decode())["example",] == 7
    with pytest.raises(
        OpenSledError, match=rf"cannot listen on {port.address}: .*; choose another --metrics"
    ):
        MetricsPort(port.address, [])
    port.close()
    MetricsPort(port.address, []).close()  # the port is free again


@pytest.fixture
def port():
    opened = MetricsPort("127.0.0.1:0", [Metric("example", "An example.", lambda: 7)])
    yield opened
    opened.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9410", "[::1]:9410", "LOCALHOST:1"])
def test_names_of_loopback_are_answered(port, host):
    assert "example" in httpx.get(f"http://{port.address}/metrics", headers={"host": host}).text


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_page_that_pointed_its_name_at_loopback_reads_no_metrics(port, host):
    reply = httpx.get(f"http://{port.address}/metrics", headers={"host": host})
    assert reply.status_code == 403 and "example" not in reply.text and "127.0.0.1" in reply.text


OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        f"{OPENMETRICS},text/plain;version=0.0.4;q=0.5,*/*;q=0.1",  # Prometheus 2
        f"{OPENMETRICS};escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3",  # 3
    ],
)
def test_every_scraper_gets_the_names_that_are_documented(port, accept):
    reply = httpx.get(f"http://{port.address}/metrics", headers={"accept": accept})
    assert "\nopensled:example 7.0\n" in reply.text
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_beyond_loopback_any_name_will_do():
    port = MetricsPort("0.0.0.0:0", [Metric("example", "An example.", lambda: 7)])
    address = port.address.replace("0.0.0.0", "127.0.0.1")
    assert "example" in httpx.get(f"http://{address}/metrics", headers={"host": "pi.example"}).text
    port.close()


def test_nothing_is_loaded_unless_asked_for(capsys):
    code = (
        "import sys, edge_client.device.command, http_api.app\n"
        "from opensled.metrics.registry import metrics_port\n"
        "with metrics_port('', []): print('prometheus_client' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
    with metrics_port("[::1]:0", []):
        shown = capsys.readouterr().out
        assert re.fullmatch(r"metrics on http://\[::1\]:\d+/metrics\n", shown)
        with urlopen(shown.split()[-1], timeout=60) as reply:
            assert b"opensled:" not in reply.read()
