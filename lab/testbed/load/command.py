"""`opensled bench serve`: load on a fleet that it starts, or on APIs that run already."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.testbed.baselines import DRAFT_BESIDE
from lab.testbed.fleet import Fleet, read_fleet
from lab.testbed.load.config import BenchServeConfig, baseline_names
from lab.testbed.load.device_drafts import recorded, replays
from lab.testbed.load.load import Item, Load, read_trace
from lab.testbed.load.load_view import LoadView
from lab.testbed.load.outcome import Outcome, settings
from lab.testbed.load.run import label
from lab.testbed.load.running import Measurement, measure_fleet, measure_urls
from lab.testbed.load.site import ALONE
from lab.testbed.load.slo import Slo
from lab.testbed.load.sources import Shape, items_of
from lab.testbed.provenance import provenance
from lab.testbed.tiers import hub_file, joined, read_hub
from lab.testbed.traces import PACKAGED, TraceSet, read_traces
from opensled.core.errors import NotFound, UsageError
from opensled.core.files import read_secret_text
from opensled.models.store import model_path
from opensled.text.tokenizer import TargetTokenizer

FLEETS = Path(__file__).resolve().parents[1] / "fleets"
DEFAULT_FLEET = "kitchen"
HELDOUT_SEED = 0  # of the items that drafts were recorded for


def bench_serve(config: BenchServeConfig) -> int:
    """Measure, show, write; exit code 1 when no request at all was answered."""
    if config.url and config.fleet:
        raise UsageError("give --fleet to start one, or --url for what runs already, not both")
    origin = {**provenance(), "seed": config.seed}
    view = LoadView(quiet=config.json)
    outcome = _urls(config, view, origin) if config.url else _fleet(config, view, origin)
    document = outcome.as_json()
    if config.out:
        path = Path(config.out).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
    view.conclude(outcome)
    if config.json:
        print(json.dumps(document))
    return 0 if any(run.summary["completed"] for run in outcome.runs) else 1


def _fleet(config: BenchServeConfig, view: LoadView, origin: dict[str, Any]) -> Outcome:
    fleet = fleet_of(config)
    names = baseline_names(config.baselines)
    measurement = _measurement(config, _vocabulary(fleet.server.model))
    traces = _traces(fleet, measurement.items)
    if traces is None and any(group.drafter not in ("none", ALONE) for group in fleet.groups):
        view.say("nothing is recorded for this workload: every device runs its real drafter")
    _require_possible(names, fleet, traces)
    outcome = _outcome(config, label(fleet), origin, measurement, fleet)
    with view.measuring(config.repeats * len(names)) as begin:
        outcome.runs = asyncio.run(measure_fleet(measurement, fleet, names, traces, begin))
    return outcome


def _require_possible(names: Sequence[str], fleet: Fleet, traces: TraceSet | None) -> None:
    """Before minutes have passed with the other baselines."""
    beside = [name for name in names if name in DRAFT_BESIDE]
    if beside and fleet.server.accelerator and traces is None:
        raise UsageError(
            f"baseline {beside[0]} replays recorded drafts beside the emulated target: it needs the recorded workload "
            "and devices that replay it; leave it out (--baselines), or take opensled-device"
        )
    paced = all(group.device for group in fleet.groups)
    if "device-only" in names and (traces is None or not paced):
        raise UsageError(
            "baseline device-only replays what draft models wrote alone: it needs the recorded workload and a profile "
            "for every device; leave it out (--baselines)"
        )


def _urls(config: BenchServeConfig, view: LoadView, origin: dict[str, Any]) -> Outcome:
    urls = [url.strip() for url in config.url.split(",") if url.strip()]
    key = read_secret_text(config.key_file, "API key").strip() if config.key_file else ""
    measurement = _measurement(config, Shape.vocabulary)
    outcome = _outcome(config, "real", origin, measurement, None)
    outcome.settings["urls"] = urls
    with view.measuring(config.repeats) as begin:
        users = config.users or len(urls)
        outcome.runs = asyncio.run(measure_urls(measurement, urls, users, config.model, key, begin))
    return outcome


def fleet_of(config: BenchServeConfig) -> Fleet:
    """The fleet that is named, with the users and the dilation asked for; raises NotFound and UsageError."""
    name = config.fleet or DEFAULT_FLEET
    bundled = sorted(path.stem for path in FLEETS.glob("*.toml"))
    path = FLEETS / f"{name}.toml" if name in bundled else Path(name).expanduser()
    if not path.is_file():
        raise NotFound(f"no fleet {name!r}; give a TOML file, or one of {', '.join(bundled)}", "fleet")
    fleet = read_fleet(path)
    fleet = fleet.of_users(config.users) if config.users else fleet
    return replace(fleet, dilation=config.dilation) if config.dilation else fleet


def _measurement(config: BenchServeConfig, vocabulary: int) -> Measurement:
    lengths = {"prompt": config.prompt_tokens, "output": config.output_tokens, "prefix": config.prefix_tokens}
    shape = Shape(**lengths, prefixes=config.prefixes, vocabulary=vocabulary)
    items = items_of(
        config.workload,
        count=config.items,
        max_tokens=config.max_tokens,
        seed=HELDOUT_SEED if config.workload == "heldout" else config.seed,
        turns=config.turns,
        shape=shape,
    )
    slo = Slo(config.pace, config.ttft, config.tpot, config.e2el)
    return Measurement(items, _load(config), slo, config.repeats)


def _load(config: BenchServeConfig) -> Load:
    trace = read_trace(Path(config.trace).expanduser()) if config.trace else ()
    arrivals = "trace" if trace else config.arrivals
    if arrivals == "trace" and not trace:
        raise UsageError("--arrivals trace needs the times: --trace FILE")
    same = ("rate", "burstiness", "think", "warmup", "duration", "seed")
    return Load(arrivals=arrivals, trace=trace, **{name: getattr(config, name) for name in same})


def _vocabulary(model: str) -> int:
    """Ids that the target knows; those of the tiny one for a target that only the server can read."""
    try:
        path = model_path(model, "tokenizer.json") / "tokenizer.json"
    except NotFound:
        return Shape.vocabulary
    return len(TargetTokenizer(path.read_bytes()).pieces)


def _traces(fleet: Fleet, items: Sequence[Item]) -> TraceSet | None:
    """The bundled recording that all replaying devices can use for all items; None = they draft live."""
    drafters = {group.drafter for group in fleet.groups if group.drafter not in ("none", ALONE)}
    path = PACKAGED / f"{fleet.server.model}-{'-'.join(sorted(drafters))}.jsonl.gz"
    beside = hub_file(fleet.server.model, fleet.hub.model) if fleet.hub else path
    if not (path.is_file() and beside.is_file()):
        return None
    traces = read_traces(path)
    if fleet.hub:
        traces = joined(traces, read_hub(beside))
    if not any(replays(group, traces) for group in fleet.groups):
        return None
    try:
        recorded(items, traces)
    except UsageError:
        return None
    return traces


def _outcome(
    config: BenchServeConfig, kind: str, origin: dict[str, Any], measurement: Measurement, fleet: Fleet | None
) -> Outcome:
    workload = {"source": config.workload, "items": len(measurement.items), "max_tokens": config.max_tokens}
    return Outcome(kind, origin, settings(measurement.load, measurement.slo, workload, fleet))
