"""What Prometheus gets to see of a server and a device, in one process or over HTTP."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from opensled.metrics.registry import registry
from opensled.metrics.scrape import Sample

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


def sample(at, **values):
    """`name__label=value`; keys without a label have ""."""
    return Sample(at, {tuple([*key.split("__"), ""][:2]): value for key, value in values.items()})


BEFORE = sample(
    10.0,
    steps_total=100,
    step_seconds_sum=2.0,
    step_seconds_count=100,
    step_sessions_sum=100,
    step_sessions_count=100,
    tokens_committed_total=1000,
    tokens_unasked_total=1000,
    requests_refused_total__overloaded=3,
    draft_hints_total__0=5,
)
AFTER = sample(
    12.0,
    model_info__qwen=1,
    steps_total=140,
    step_seconds_sum=3.0,
    step_seconds_count=140,
    step_sessions_sum=260,
    step_sessions_count=140,
    step_tokens_sum=800,
    step_tokens_count=40,
    step_prediction_error_ratio=0.04,
    tokens_committed_total=1400,
    tokens_unasked_total=1100,
    spec_decode_num_drafts_total=50,
    spec_decode_num_draft_tokens_total=200,
    spec_decode_num_accepted_tokens_total=122,
    stale_drafts_total=2,
    draft_tokens_sum=200,
    draft_tokens_count=50,
    draft_hints_total__0=6,
    draft_hints_total__4=3,
    sessions__live=9,
    sessions__absent=1,
    session_places=256,
    sessions_waiting__device=5,
    sessions_waiting__kv=1,
    sessions_waiting__absent=1,
    sessions_waiting__step=0,
    sessions_opened_total__new=4,
    sessions_opened_total__resumed=2,
    requests_refused_total__overloaded=13,
    failures_total__internal=2,
    kv_tokens__free=800,
    kv_tokens__cached=160,
    kv_tokens__used=480,
    kv_tokens__shared=160,
    kv_evicted_tokens_total=128,
    prefix_cache_hits_total=320,
    preemptions_total=2,
    **{"draft_rests__operator,gain": 0, "draft_rests__step,tokens": 4, "draft_rests__step,gain": 0.9},
)
GATEWAY = sample(
    5.0,
    streams_lost_total=0,
    replica_sessions__a=3,
    replica_sessions__b=0,
    replica_places__a=8,
    replica_places__b=8,
    replica_step_seconds__a=0.02,
    replica_draining__b=1,
    replica_draining__a=0,
    placements_total__a=7,
)
