"""What dashboard and rules read, and what the processes of OpenSLED tell: the names of series and labels."""

import asyncio
import re

import yaml

from edge_client.device import device_metrics
from opensled.metrics.registry import Histogram, Histograms
from tests.devices import device_on, read
from tests.fakes import FakeEngine
from tests.observability.dashboard import ROOT
from tests.replicas import cluster
from tests.serving import serving
from tests.three_tiers import tiers
from verify_server.cluster.gateway_metrics import gateway_metrics
from verify_server.front.server_metrics import metrics as server_metrics

FOLDER = ROOT / "deploy/prometheus"
RULES = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
OF_PROMETHEUS = {"job", "instance"}  # labels that every scraped series has
METRIC = re.compile(r"(?<![\w:])(opensled:\w+|instance:opensled_\w+:\w+|up|ALERTS)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!=|!~|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left)\s*\(([^)]*)\)")


def used(expression):
    """[(name, {label: value of its matcher})] of every series that a query reads."""
    return [(name, dict(MATCHER.findall(matchers))) for name, matchers in METRIC.findall(expression)]


def grouped(expression):
    """The labels by which a query sums or joins."""
    return {label.strip() for text in GROUPED.findall(expression) for label in text.split(",")} - {""}


def series():
    """{name of a series: its own labels}, for all that a scrape can bring, and for what rules record and tell.

    Kubernetes names the pod."""
    found = {"up": {"pod"}, "ALERTS": {"alertname", "alertstate", "severity"}}
    for metric in asyncio.run(_everywhere()):
        histogram = isinstance(metric.read(), Histogram | Histograms)
        for end in ("_sum", "_count", "_bucket") if histogram else ("",):
            own = {*metric.labels, *(["le"] if end == "_bucket" else [])}
            found.setdefault(metric.full_name + end, set()).update(own)
    return found | {rule["record"]: set() for rule in RULES if "record" in rule}


async def _everywhere():
    """Every metric of a server, a relay, a gateway and a device, of real ones over fake targets."""
    async with serving() as (manager, address), device_on(address) as device:
        await read(device)
        found = [*server_metrics(manager), *device_metrics.metrics(device)]
    async with cluster("a") as one:
        found += gateway_metrics(one.serving.gateway, one)
    async with tiers(FakeEngine(num_blocks=200), FakeEngine(num_blocks=200)) as (_, relay, _):
        found += [*server_metrics(relay.manager), *relay.metrics]
    return found
