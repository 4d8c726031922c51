"""What Prometheus gets to see of a server and a device, in one process or over HTTP."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from opensled.metrics.registry import registry

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
