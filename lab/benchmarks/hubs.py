"""What one user gets on the hubs that people own: without drafts, beside the target, by a laptop, by a trained head.

Every place that was chosen is in the figure, those where drafts lose as well.
"""

from dataclasses import replace
from typing import NamedTuple

from hw_profiles import catalog
from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import CORES, mapped
from lab.testbed.config import PlanConfig
from lab.testbed.planner.bound import HEAD, published_words
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER, Simulation

ASKED = PlanConfig(devices="macbook-m4", link="wifi-good", acceptance="mixed")
NAMES = {ALONE: "none", SERVER: "beside", DEVICES: "devices", HEAD: "head"}
SEEDS = 2


class Place(NamedTuple):
    """A target on a hub."""

    hub: str
    target: str
    weight_bits: float
    draft: str
    published: str = ""  # of drafts there; what was published without them is in the hub's profile

    @property
    def name(self) -> str:
        return f"{self.hub} {self.target}"


DFLASH = "27B NVFP4 45.2 to 53.3 with DFlash2 (github.com/liuzl/qwen38-dgx-spark-lab)"
PLACES = (
    Place("dgx-spark", "dense-27b", 4.5, "0.5b", f"weak: 28.3 with MTP (a table of 2026-05-24); {DFLASH}"),
    Place("dgx-spark", "dense-70b", 8, "1b"),
    Place("strix-halo", "dense-70b", 4.8, "1b"),
    Place("agx-thor", "dense-8b", 4.5, "0.5b"),
    Place("mac-m2-ultra", "dense-7b", 8.5, "0.5b", "weak: draft models on Metal -11 to -24 % (modelfit.io)"),
)


def measure(quick: bool) -> Figure:
    """The simulated ways of each place, each with the same questions and links; a repeat is another seed of them."""
    places, seeds = (PLACES[-2:-1], 1) if quick else (PLACES, SEEDS)
    units = [(place, seed) for place in places for seed in range(seeds)]
    samples: dict[str, list[float]] = {}
    for (place, _), rates in zip(units, mapped(_rates, units, 1 if quick else len(CORES))):
        for name, rate in rates.items():
            samples.setdefault(f"{place.name}, {name}", []).append(rate)
    return Figure(
        title="One user of a hub",
        unit="tokens/s",
        more_is_better=True,
        compared=(
            "One user without drafts, with a draft model beside the target, with the same model on a MacBook M4 on "
            "good Wi-Fi (made-up drafts, 0.68 of them right at each place), and with the head that was published for "
            "the target (0.94 to 0.34 right, by place and head). All with policy `goodput`, which lets drafts rest."
        ),
        loses=(
            "At each of these places drafts of the laptop are slower than the same ones beside the target. Where the "
            "target is quick they bring a single user next to nothing, or cost a little."
        ),
        samples=samples,
        ratios=tuple(
            Comparison(
                f"{place.name}, {ours} over {other}", f"{place.name}, {ours}", f"{place.name}, {other}"
            )
            for place in places
            for ours, other in (
                ("beside", "none"),
                ("devices", "none"),
                ("head", "none"),
                ("devices", "beside"),
            )
            if f"{place.name}, {ours}" in samples
        ),
        label="simulated",
        facts={
            "selected": (
                "dense targets on hubs for which speeds were published: three where devices seemed to pay most, and "
                "two where little was to be expected; all that were simulated are here"
            ),
            "published": {place.name: _published(place) for place in places},
            "places": {place.name: place._asdict() for place in places},
            "questions": "SmolLM2's recorded ones, 1024 tokens of context",
        },
    )


def _rates(unit: tuple[Place, int]) -> dict[str, float]:
    """Tokens/s by who drafts, with a seed; a head drafts as well as was published of it."""
    place, seed = unit
    asked = replace(ASKED, target=place.target, weight_bits=place.weight_bits, draft=place.draft)
    plans = {way: (asked, way) for way in (ALONE, SERVER, DEVICES)}
    if head := catalog.target(place.target).head:
        plans[HEAD] = replace(asked, server_drafter=head, acceptance=head), SERVER
    found = {}
    for who, (config, way) in plans.items():
        rate = Simulation.of(config, place.hub, 1, seed).rate(way)
        assert rate, f"{place.name} has room"
        found[NAMES[who]] = rate
    return found


def _published(place: Place) -> str:
    alone = published_words(catalog.accelerator(place.hub), place.target, place.weight_bits)
    return f"{alone} {place.published}".strip()
