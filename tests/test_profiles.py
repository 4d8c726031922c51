"""The packaged hardware profiles and what follows from them: pytest tests/test_profiles.py -q"""

import json
import re
import subprocess
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from hw_profiles import catalog, seed
from hw_profiles.describe import contradictions, predicted
from hw_profiles.detect import Board
from hw_profiles.profiles import Quantity
from hw_profiles.step_cost import TargetCost
from lab.testbed.emulation.draft_head import sessions_beside
from opensled.cli.main import main
from opensled.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
MEASURED = {"h100"}  # accelerators, with the engine of this project
IDS = {
    "devices": "pi-4 pi-5 orin-nano orin-nano-super orin-nx agx-orin agx-thor laptop-cpu macbook-m3-max macbook-m4 "
    "phone strix-laptop",
    "links": "ethernet wifi-good wifi-mesh wifi-busy 5g lte lte-bad wan-20 wan-60 wan-80 wan-110 wan-150",
    "accelerators": "a100-80 h100 h200 rtx-3060 rtx-4060 rtx-4090 rtx-5090 agx-orin agx-thor orin-nano-super "
    "strix-halo apple-m4 l40s dgx-spark epyc-9655 mac-m2-ultra mac-m3-max mac-m3-ultra mac-m4-max mac-m4-pro "
    "rtx-pro-6000",
    "heads": "dflash2 eagle-3 eagle-3-70b mtp",
    "targets": "dense-3b dense-4b dense-7b dense-8b dense-14b dense-27b dense-31b dense-32b dense-70b moe-20b-a4b "
    "moe-26b-a4b moe-30b-a3b moe-35b-a3b moe-120b-a5b draft-135m draft-0.5b draft-1b draft-1.5b draft-3b",
}
ALL = [(kind, name) for kind, names in IDS.items() for name in names.split()]
COSTS = list(product(IDS["accelerators"].split(), IDS["targets"].split()))
# A publication's name stands in brackets
ORIGIN = re.compile(r"docs/hardware\.md|data sheet|derived|judgement|measured by|printed|weak|embedl|\(")

LINK = """
name = "a link"
source = "mine"
rtt_p50_ms = [1, 2, 3]
rtt_p99_ms = [1, 2, 3]
up_mbit_s = { min = 1, typical = 2, max = 3, source = "mine" }
down_mbit_s = [1, 2, 3]
loss = { min = 0, typical = 0, max = 0, source = "mine" }
burst = 1
"""


def _cost(accelerator: str, target: str) -> TargetCost:
    return TargetCost(catalog.accelerator(accelerator), catalog.target(target))


def _quantities(profile: object) -> list[Quantity]:
    values = [getattr(profile, field.name) for field in fields(profile)]
    values += [each for value in values if isinstance(value, dict) for each in value.values()]
    nested = [each for value in values if is_dataclass(value) for each in _quantities(value)]
    return [value for value in values if isinstance(value, Quantity)] + nested


def _rises(values: list[float]) -> bool:
    return all(low <= high for low, high in pairwise(values)) and values[0] < values[-1]


@pytest.mark.parametrize("kind", IDS)
def test_the_catalog_holds_just_these_profiles(kind):
    assert catalog.names(kind) == sorted(IDS[kind].split())


@pytest.mark.parametrize("kind, name", ALL)
def test_every_profile_loads_under_its_own_id(kind, name):
    profile = catalog.load(kind, name)
    assert profile.id == name
    assert profile.name


@pytest.mark.parametrize("kind, name", [each for each in ALL if each[0] not in ("targets", "heads")])
def test_every_quantity_is_ordered_and_says_where_it_is_from(kind, name):
    found = _quantities(catalog.load(kind, name))
    assert len(found) >= 5
    for quantity in found:
        assert 0 <= quantity.min <= quantity.typical <= quantity.max
        assert ORIGIN.search(quantity.source)


@pytest.mark.parametrize("name", IDS["accelerators"].split())
def test_an_accelerator_is_measured_exactly_if_its_sources_say_so(name):
    profile = catalog.accelerator(name)
    assert profile.measured == (name in MEASURED)
    for quantity in (profile.bandwidth_gb_s, profile.tflops):
        assert quantity.source.startswith("measured by lab/benchmarks/gpu") == profile.measured
        assert ("not measured" in quantity.source) != profile.measured


@pytest.mark.parametrize("name", IDS["devices"].split())
def test_seconds_of_a_device_are_positive_and_rise_with_tokens(name):
    drafts = catalog.device(name).drafts
    assert "0.5b" in drafts
    for speed in drafts.values():
        assert _rises([speed.draft_s(tokens) for tokens in range(1, 9)])
        assert 0 < 1 / speed.prefill_per_s.typical < speed.draft_s(1)


@pytest.mark.parametrize("name", IDS["links"].split())
def test_the_tail_of_a_link_is_no_shorter_than_its_median(name):
    link = catalog.link(name)
    assert link.rtt_p50_ms.typical <= link.rtt_p99_ms.typical
    assert link.burst >= 1


@pytest.mark.parametrize("accelerator, target", COSTS)
def test_seconds_of_a_step_are_positive_and_rise_with_tokens_and_contexts(accelerator, target):
    cost = _cost(accelerator, target)
    assert cost.verify_s(0, 0) == 0
    assert _rises([cost.verify_s(tokens, 4096) for tokens in (1, 2, 5, 16, 64, 512, 4096)])
    assert _rises([cost.verify_s(16, contexts) for contexts in (0, 1024, 8192, 10**6)])
    assert _rises([cost.verify_s(tokens, tokens) for tokens in (1, 32, 1024)])
    assert cost.verify_s(1, 0) > cost.accelerator.step_overhead_ms.typical / 1000


def test_a_dense_step_follows_the_roofline_by_hand():
    cost = _cost("a100-80", "dense-8b")
    weights = 8.03e9 * 2 / 1631e9
    kv = 1024 * 2 * 32 * 8 * 128 * 2 / 1631e9
    assert cost.verify_s(1, 1024) == pytest.approx(weights + kv + 0.003)
    compute = 512 * 2 * 8.03e9 / 187e12
    assert compute > weights
    assert cost.verify_s(512, 1024) == pytest.approx(compute + kv + 0.003)


def test_a_mixture_of_experts_reads_more_weights_for_more_tokens_and_never_more_than_it_has():
    shape = catalog.target("moe-30b-a3b")
    read = [shape.bytes_read(tokens) for tokens in (1, 2, 4, 16, 64, 256, 4096)]
    assert _rises(read)
    assert read[0] == pytest.approx(shape.active_params * 2)
    assert read[-1] == pytest.approx(shape.weight_bytes)
    assert read[0] < read[2] < 0.5 * read[-1]


def test_fewer_bits_leave_room_for_more_sessions():
    cost = _cost("a100-80", "dense-32b")
    smaller = TargetCost(cost.accelerator, cost.target.at(4))
    assert 0 < sessions_beside(cost, 1024) < sessions_beside(smaller, 1024)
    assert sessions_beside(_cost("rtx-4090", "dense-70b"), 1) == 0


@pytest.mark.parametrize("name", IDS["accelerators"].split())
def test_the_law_gives_the_published_speeds_or_their_source_says_why_not(name):
    """Speeds that were left out of the fit are predicted as well as the others."""
    profile = catalog.accelerator(name)
    for key, speed in profile.speeds.items():
        assert speed.source.startswith(("printed: ", "derived: ", "weak: ")), key
        if not speed.source.startswith("weak"):
            assert predicted(profile, key) == pytest.approx(speed.typical, rel=0.15), key
    sources = " ".join(speed.source for speed in profile.speeds.values())
    assert "left out" in sources or not profile.speeds, "one speed tests the fit"


PUBLISHED = {  # T_TG of llama-batched-bench for 1, 2, 4, 8, 16 and 32 texts, and aggregate tokens/s of one and eight
    ("dgx-spark", "dense-7b", 8.5): (1.095, 1.175, 1.227, 1.308, 1.528, 1.726),
    ("dgx-spark", "moe-30b-a3b", 8.5): (0.555, 0.998, 1.255, 1.653, 2.198, 2.968),
    ("dgx-spark", "moe-120b-a5b", 4.25): (0.559, 1.061, 1.346, 1.746, 2.327, 3.276),
    ("mac-m2-ultra", "dense-7b", 8.5): (0.409, 0.483, 0.585, 1.005, 1.595, 1.676),
    ("mac-m2-ultra", "moe-120b-a5b", 4.25): (0.361, 0.545, 0.847, 1.455, 2.349, 3.665),
    ("agx-thor", "dense-8b", 4.5): (1 / 54.9, None, None, 8 / 308.7),
}


@pytest.mark.parametrize("place", PUBLISHED, ids=lambda place: "-".join(map(str, place)))
def test_steps_over_several_rows_take_what_was_published(place):
    accelerator, target, bits = place
    cost = TargetCost(catalog.accelerator(accelerator), catalog.target(target).at(bits))
    one, *more = PUBLISHED[place]
    for rows, seconds in zip((2, 4, 8, 16, 32), more):
        if seconds:
            assert cost.verify_s(rows, 0) / cost.verify_s(1, 0) == pytest.approx(seconds / one, rel=2e-3)
    assert cost.verify_s(3, 0) == pytest.approx((cost.verify_s(2, 0) + cost.verify_s(4, 0)) / 2, rel=0.05)


@pytest.mark.parametrize(
    "before, after, complaint",
    [
        ("burst = 1", "", "burst is missing"),
        ("burst = 1", "burst = 1\nspeed = 3", "unknown key 'speed'"),
        ("burst = 1", 'burst = "one"', "burst: 'one' is not float"),
        ('loss = { min = 0, typical = 0, max = 0, source = "mine" }', "loss = 0.1", "loss: a table with exactly"),
        ("up_mbit_s = { min = 1, typical = 2", "up_mbit_s = { min = 9, typical = 2", "up_mbit_s: 0 <= min <="),
        ('loss = { min = 0, typical = 0, max = 0, source = "mine" }',
         'loss = { min = 0, typical = 0, max = 0, source = " " }', "loss: name the source"),
        ('source = "mine"\nrtt', "rtt", "rtt_p50_ms: name the source"),
        ("down_mbit_s = [1, 2, 3]", "down_mbit_s = [1, 2]", "down_mbit_s: a table with exactly"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_file_and_key(tmp_path, before, after, complaint):
    path = tmp_path / "mine.toml"
    path.write_text(LINK)
    assert (link := catalog.link(str(path))).id == "mine" and link.down_mbit_s == link.up_mbit_s
    assert before in LINK
    path.write_text(LINK.replace(before, after))
    with pytest.raises(UsageError) as error:
        catalog.link(str(path))
    assert str(path) in str(error.value)
    assert complaint in str(error.value)


def test_values_that_contradict_each_other_are_named(capsys):
    profiles = [catalog.load(kind, name) for kind in catalog.KINDS for name in catalog.names(kind)]
    known = [line for profile in profiles for line in contradictions(profile)]
    assert known == [
        "contradiction in orin-nano: a draft of 1b at 68 tokens/s is faster than one of 0.5b at 47",
        "contradiction in orin-nano-super: a draft of 1b at 58 tokens/s is faster than one of 0.5b at 50",
        "contradiction in pi-4: a draft of 1.5b at 3.5 tokens/s is faster than one of 1b at 3",
        "contradiction in pi-5: a draft of 1.5b at 10 tokens/s is faster than one of 1b at 9.5",
    ]  # as published; it may only become shorter
    for command in (["profile", "show", "pi-4"], ["plan", "--devices", "pi-4"]):
        assert main(command) == 0 and known[2] in " ".join(capsys.readouterr().out.split())
    pi, lte = catalog.device("pi-5"), catalog.load("links", "lte")
    slow = replace(pi, bandwidth_gb_s=Quantity(3, 1, 3, "x"), idle_w=pi.busy_w, busy_w=pi.idle_w)
    bad = contradictions(slow) + contradictions(
        replace(lte, rtt_p50_ms=lte.rtt_p99_ms, rtt_p99_ms=lte.rtt_p50_ms)
    )
    assert sum("reads" in line and "the memory gives 3" in line for line in bad) == 4
    assert sum(" is above " in line for line in bad) == 2


def test_the_list_names_every_profile(capsys):
    assert main(["profile", "list"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for _, name in ALL)
    assert main(["profile", "list", "--kind", "links", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in listed["links"]] == catalog.names("links")
    assert list(listed) == ["links"]


def test_a_shown_profile_fits_the_terminal_and_has_its_sources(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["profile", "show", "agx-orin"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "(devices)" in text and "(accelerators)" in text  # the same board as a device and as a hub
    assert "17" in text and "judgement" in text
    assert "no: derived" in text
    assert main(["profile", "show", "spark"]) == 0
    assert "59.02" in (text := capsys.readouterr().out) and "the law says 59.5" in text and "8: 1.2" in text


def test_a_shown_profile_as_json_holds_every_quantity(capsys):
    assert main(["profile", "show", "h200", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["accelerators"]
    assert shown["tflops"]["typical"] == catalog.accelerator("h200").tflops.typical
    assert {"min", "max", "source"} < set(shown["tflops"])
    assert shown["predicted"] == {}


def test_a_file_is_shown_when_its_kind_is_named(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(LINK)
    assert main(["profile", "show", str(path)]) == 2
    assert "--kind" in capsys.readouterr().err
    assert main(["profile", "show", str(path), "--kind", "links"]) == 0
    assert "mine (links): a link" in capsys.readouterr().out
    assert main(["profile", "show", "nope"]) == 3
    assert "profile list" in capsys.readouterr().err


@pytest.mark.parametrize(
    "board, processor, card, found",
    [("NVIDIA NVIDIA_DGX_Spark", "Cortex", True, "dgx-spark"), ("GMK", "RYZEN AI MAX+ 395 w/", False, "strix-halo"),
     ("A PC", "AMD EPYC 9655 96-Core", False, "epyc-9655"), ("A PC", "AMD EPYC 9655 96-Core", True, "")],
)  # fmt: skip
def test_a_first_guess_is_of_the_machine(board, processor, card, found, monkeypatch, tmp_path):
    monkeypatch.setattr(seed, "CARD", tmp_path / ("" if card else "none"))
    monkeypatch.setattr(seed, "detect", lambda: Board(board, "", "", processor, 8, (), 16.0))
    cost = seed.seed_cost()
    assert (cost.accelerator.id if isinstance(cost, TargetCost) else "") == found


def test_nothing_keeps_the_profiles_out_of_the_wheel():
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("hw_profiles/**/*.toml")]
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True)
    assert ignored.stdout == ""  # hatch packs whole folders, less what git ignores
