"""What Prometheus gets to see of a server and a device, in one process or over HTTP."""

from contextlib import aclosing, asynccontextmanager

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edge_client.answer import Task
from edge_client.device import Device
from edge_client.stop import StopRule
from edge_client.tokenizer import EdgeTokenizer
from opensled.metrics import registry
from opensled.store import model_path
from tests.fakes import OracleDrafter
from tests.serving import GREEDY, PROMPT, linked

TOKENIZER = EdgeTokenizer((model_path("tiny") / "tokenizer.json").read_bytes())
SPEC = ("num_drafts_total", "num_draft_tokens_total", "num_accepted_tokens_total")


def samples(text):
    """{(name without prefix, label value): number} of an exposition; histograms by their count and sum."""
    found = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if "le" not in labels:
                found[(name.removeprefix("opensled:"), *labels.values())] = value
    return found


def scrape(metrics):
    """What Prometheus gets to see of `metrics`."""
    return generate_latest(registry(metrics)).decode()


class OracleFactory:
    name = "oracle"

    def create(self):
        return OracleDrafter(0.8, 1)


@asynccontextmanager
async def device_on(address, parallel=1):
    async with linked(address) as link:
        device = Device(link, await link.describe(), TOKENIZER, OracleFactory(), StopRule(4), parallel)
        try:
            yield device
        finally:
            await device.close()


async def read(device, task=Task(PROMPT, GREEDY)):
    async with aclosing(device.answer(task)) as chunks:
        return [chunk async for chunk in chunks]
