"""One user on hubs that people own: without drafts, with those beside the target, of a laptop, or of a head."""

from dataclasses import replace
from typing import NamedTuple

from hw_profiles import catalog
from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import CORES, mapped
from lab.testbed.config import PlanConfig
from lab.testbed.planner.bound import published_words
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER, Simulation

ASKED = PlanConfig(devices="macbook-m4", link="wifi-good", acceptance="mixed")
PAIRS = (("beside", "none"), ("devices", "none"), ("head", "none"), ("devices", "beside"))
SEEDS = 2


class Place(NamedTuple):
    """A target on a hub."""

    hub: str
    target: str
    weight_bits: float
    draft: str
    published: str = ""  # of drafts there; what was published without them is in the hub's profile

    def as_json(self) -> dict[str, str | float]:
        alone = published_words(catalog.accelerator(self.hub), self.target, self.weight_bits)
        return {**self._asdict(), "alone": alone}


DFLASH = "27B NVFP4 45.2 to 53.3 with DFlash2 (github.com/liuzl/qwen38-dgx-spark-lab)"
PLACES = (
    Place("dgx-spark", "dense-27b", 4.5, "0.5b", f"weak: 28.3 with MTP (a table of 2026-05-24); {DFLASH}"),
    Place("dgx-spark", "dense-70b", 8, "1b"),
    Place("strix-halo", "dense-70b", 4.8, "1b"),
    Place("agx-thor", "dense-8b", 4.5, "0.5b"),
    Place("mac-m2-ultra", "dense-7b", 8.5, "0.5b", "weak: draft models on Metal -11 to -24 % (modelfit.io)"),
)


def measure(quick: bool) -> Figure:
    """All ways at each place, with the same questions and links; a repeat has others, by its seed."""
    places, seeds = (PLACES[-2:-1], 1) if quick else (PLACES, SEEDS)
    units = [(place, seed) for place in places for seed in range(seeds)]
    samples: dict[str, list[float]] = {}
    for rates in mapped(_rates, units, 1 if quick else len(CORES)):
        for name, rate in rates.items():
            samples.setdefault(name, []).append(rate)
    names = {f"{place.hub} {place.target}": place for place in places}
    cases = [(name, *pair) for name in names for pair in PAIRS]
    return Figure(
        title="One user of a hub",
        unit="tokens/s",
        more_is_better=True,
        compared=(
            "One user without drafts, with a draft model beside the target, with the same model on a MacBook M4 on "
            "good Wi-Fi (made-up drafts, 0.68 of them right at each place), and with the head that was published for "
            "the target, as right as that was. With policy `goodput`, which lets drafts rest."
        ),
        loses=(
            "At each of these places drafts of the laptop are slower than the same ones beside the target. Where the "
            "target is quick they bring a single user next to nothing, or cost a little."
        ),
        samples=samples,
        ratios=tuple(
            Comparison(f"{name}, {ours} over {other}", f"{name}, {ours}", f"{name}, {other}")
            for name, ours, other in cases
            if f"{name}, {ours}" in samples
        ),
        label="simulated",
        facts={
            "selected": "three places where devices seemed to pay most, two where little was expected; none left out",
            "places": {name: place.as_json() for name, place in names.items()},
        },
    )


def _rates(unit: tuple[Place, int]) -> dict[str, float]:
    """Tokens/s by series, with a seed; a head drafts as well as was published of it."""
    place, seed = unit
    asked = replace(ASKED, target=place.target, weight_bits=place.weight_bits, draft=place.draft)
    plans = {"none": (asked, ALONE), "beside": (asked, SERVER), "devices": (asked, DEVICES)}
    if head := catalog.target(place.target).head:
        plans["head"] = replace(asked, server_drafter=head, acceptance=head), SERVER
    found = {who: Simulation.of(plan, place.hub, 1, seed).rate(way) for who, (plan, way) in plans.items()}
    return {f"{place.hub} {place.target}, {who}": rate for who, rate in found.items() if rate}
