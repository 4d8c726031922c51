"""`opensled plan`: the answers to people who have hardware, or buy it, the comparison, and the names they type."""

import json
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from hw_profiles import catalog
from lab.testbed.config import PlanConfig
from lab.testbed.planner import bound, ways
from lab.testbed.planner.answer import Answer, make_answer
from lab.testbed.planner.answer_view import as_json, text
from lab.testbed.planner.asking import best_at, fastest
from lab.testbed.planner.planning import from_words, machines_of, named, setting_of, work_of
from lab.testbed.planner.ways import ALIKE, ALONE, DEVICES, SERVER, WAYS, Simulation, best_way
from opensled.cli.main import main
from opensled.core.errors import NotFound

BUYERS = {
    "RTX 4090 and 10 Pis": PlanConfig(accelerator="rtx4090", devices="pi", users=10),
    "Mac mini as a hub": PlanConfig(accelerator="mac-mini", target="llama3.1", devices="pi"),
    "H100 and 200 kiosks": PlanConfig(accelerator="H100", users=200),
}


def asked(config: PlanConfig) -> Answer:
    return make_answer(named(config), machines_of(config.accelerator))


@pytest.fixture(scope="module", autouse=True)
def short_runs() -> Iterator[None]:
    """The same ways, policies and profiles as people get, with fewer tokens read."""
    with pytest.MonkeyPatch.context() as patch:
        for name, tokens in (("WARM_UP", 20), ("ALL_READ", 300), ("EACH_READS", 5)):
            patch.setattr(ways, name, tokens)
        yield


@pytest.fixture(scope="module", params=BUYERS)
def answer(request: pytest.FixtureRequest, short_runs: None) -> Answer:
    return asked(BUYERS[request.param])


# -- what a buyer reads -----------------------------------------------------------------------------------------


def test_who_drafts_comes_first_then_users_then_capacity(answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = text(answer)
    first = out.split("\n\n")[0].replace("\n", " ")
    assert first.startswith("Let ") and "tokens/s" in first and "Start the server" in first
    parts = [
        first[:20],
        "Tokens/s of each user (simulated)",
        "who should draft",
        "Users held (der",
        "Price: $",
    ]
    parts += ["assumed:", "-bit weights, on ", "of a question", "first tokens accepted", "users held derived"]
    places = [out.index(part) for part in parts]
    assert places == sorted(places)
    assert max(map(len, out.splitlines())) <= 100
    assert "does not pay" not in out


def test_the_json_has_what_the_text_says(answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    told, out = json.loads(json.dumps(as_json(answer))), text(answer)
    words = " ".join(out.split())
    assert told["label"]["tokens_per_s"] == "simulated" and told["label"]["held"] == "derived"
    assert f"by the law: {told['one_user']['alone']:.3g} tokens/s" in words
    for sentence in (told["verdict"], *told["notes"]):
        assert sentence in words
    lines = {line[:27].rstrip(): line.split() for line in out.splitlines()}
    for way, title in (("alone", "no drafts, the server alone"), ("both", "drafts by both")):
        cells = lines[title]
        assert [row[way] for row in told["held"]] == [int(cell) for cell in cells[-len(told["held"]) :]]
    for row in told["tokens_per_s"]:
        assert f"{row['alone']:.1f}  1.00x" in out


def test_the_rate_that_is_named_is_the_most_that_is_offered(answer):
    for each in answer.rates:
        offered = [rate for rate in each.rates.values() if rate is not None]
        if each.best != ALONE:
            assert each.rate * ALIKE >= max(offered) and each.rate > each.of(ALONE)
            assert each.rate >= 1.05 * each.of(ALONE) / ALIKE
        else:
            assert max(offered) <= 1.05 * each.rate
    rates = [each.of(ALONE) for each in answer.rates]
    assert rates == sorted(rates, reverse=True), "the more share a machine, the slower"


def test_fewer_users_are_held_at_a_faster_pace(answer):
    for slow, fast in pairwise(answer.held):
        assert slow.pace < fast.pace
        assert all(slow.users[way] >= fast.users[way] for way in WAYS)
    for each in answer.held:
        assert each.users[DEVICES] >= each.users[ALONE], "the server need not ask devices for drafts"
        assert each.users["both"] >= each.users[SERVER]
        assert each.users["both"] <= answer.places


def test_what_users_get_and_what_the_law_holds_agree(monkeypatch):
    """Both count questions: a small accelerator spends as long on them as on answers."""
    monkeypatch.setattr(ways, "ALL_READ", 3000)
    monkeypatch.setattr(ways, "WARM_UP", 100)
    config = named(BUYERS["Mac mini as a hub"])
    setting = setting_of(config, "apple-m4", work_of(config))
    for users in (1, 4, 16):
        rate = Simulation.of(config, "apple-m4", users).rate(ALONE)
        assert rate and fastest(setting, "centralized", users)[0] == pytest.approx(rate, rel=0.15)
        assert best_at(setting, "centralized", 0.8 * rate).users >= users
        assert best_at(setting, "centralized", 1.2 * rate).users < users


def test_four_bits_are_tried_where_sixteen_do_not_fit_and_it_is_said():
    small = asked(PlanConfig(accelerator="mac-mini", users=1))
    assert small.weight_bits == 4 and small.is_narrowed
    (note, *_) = as_json(small)["notes"]
    assert note.startswith("16-bit weights (16.1 GB)") and note.endswith(
        "this plan takes 4-bit weights (4.0 GB)."
    )
    forced = asked(PlanConfig(accelerator="mac-mini", weight_bits=16, users=1))
    told = as_json(forced)
    assert (
        not told["fits"]
        and told["tokens_per_s"] == []
        and "Without --weight-bits the plan tries 4" in told["verdict"]
    )


def test_a_target_without_room_names_who_has_it():
    found = asked(PlanConfig(accelerator="rtx4090", target="70b"))
    assert "dense-70b cannot be served here: 4-bit weights (35.3 GB)" in " ".join(text(found).split())
    assert "h200" in found.fitting() and "rtx-4090" not in found.fitting()


@pytest.mark.parametrize(
    ("words", "number", "machines"),
    [
        ("a DGX Spark and three MacBooks", 1, "dgx-spark macbook-m4 3"), ("spark", 0, "dgx-spark orin-nano-super 0"),
        ("a Ryzen AI Max+ 395", 1, "strix-halo orin-nano-super 0"), ("2x L40S, 9 pis", 2, "l40s pi-5 9"),
        ("a Mac Studio and two laptops", 1, "mac-m3-ultra laptop-cpu 2"), ("3 A100s, a phone", 3, "a100-80 phone 1"),
        ("an EPYC with 12 channels", 1, "epyc-9655 orin-nano-super 0"), ("my 4090 + 2 pis", 1, "rtx-4090 pi-5 2"),
    ],
)  # fmt: skip
def test_machines_may_be_told_in_words(words, number, machines):
    config = named(from_words(PlanConfig(hardware=words)))
    found = machines_of(config.accelerator)
    assert f"{found.accelerator} {config.devices} {config.users}" == machines and found.number == number
    with pytest.raises(NotFound, match="toaster"):
        from_words(PlanConfig(hardware=f"{words} and a toaster"))


def test_a_lone_user_s_bound_is_the_share_of_the_draft():
    """27B on a Spark: a head where one fits beats both; devices add what the draft reads, at the most."""
    config = PlanConfig(target="dense-27b", draft="1b", devices="macbook-m4", weight_bits=4.5)
    settings = bound.settings_of(config, "dgx-spark")
    rates, (most, length) = bound.lone_rates(settings), bound.most_by_devices(settings[SERVER])
    assert most == pytest.approx(1 + length * 1.24 / 27.8)
    assert rates[ALONE] < rates[DEVICES] < rates[SERVER] * most
    assert 45.2 * 0.75 < rates[bound.HEAD] < 53.3 * 1.25, "DFlash2 on Qwen3.8-27B, as published"
    assert "it makes both needless" in bound.bound_words(config, "dgx-spark")


def test_what_one_user_gets_and_how_sure_that_is_are_told():
    found = asked(PlanConfig(accelerator="4090", devices="pi", users=1))
    out = " ".join(text(found).split())
    assert "Weak: no speed of dense-8b at about 16 bits was published of rtx-4090." in out
    assert re.search(r"One user, by the law: 43\.3 .* draft on the devices \(at most 1\.12 times", out)


def test_several_accelerators_share_the_users():
    two = asked(PlanConfig(accelerator="2xL40S", users=2, pace=20))
    one = asked(PlanConfig(accelerator="l40s", users=1, pace=20))
    assert two.rates[-1].rates == one.rates[-1].rates
    assert two.held[0].users[ALONE] == 2 * one.held[0].users[ALONE]
    assert two.usd_hour == 2 * one.usd_hour
    assert [each.pace for each in two.held] == [20]


def test_more_users_than_memory_take_more_accelerators(monkeypatch):
    monkeypatch.setattr("lab.testbed.planner.answer._rates", lambda *asked: asked[2])
    many = asked(PlanConfig(accelerator="rtx4090", users=100))
    assert many.machines.number == 3 and many.places >= 100
    pair = asked(PlanConfig(accelerator="2xrtx4090", users=100))
    assert pair.machines.number == 2 and pair.places < 100
    assert pair.rates == (1, 50, pair.places)


def test_the_simplest_way_of_those_that_are_alike_is_taken():
    assert best_way({"alone": 10.0, "devices": 10.4, "server": 10.3, "both": None}) == ALONE
    assert best_way({"alone": 10.0, "devices": 14.9, "server": 15.0, "both": 15.1}) == DEVICES
    assert best_way({"alone": 10.0, "devices": 12.0, "server": 15.0, "both": 15.1}) == SERVER


# -- the comparison ---------------------------------------------------------------------------------------------


def test_without_an_accelerator_all_are_compared_the_cheapest_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["plan", "--users", "150", "--pace", "20", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    prices = [row["usd_hour"] for row in told["rows"]]
    assert prices == sorted(prices)
    assert {row["accelerator"] for row in told["rows"]} | set(told["left_out"]) == set(
        catalog.names("accelerators")
    )
    for row in told["rows"]:
        assert row["count"] * max(row["users"].values()) >= 150
    assert main(["plan", "--users", "150", "--pace", "20"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Cheapest for 150 users at 20 tokens/s each: ")
    assert max(map(len, out.splitlines())) <= 100
    assert main(["plan"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_a_plan_that_nobody_can_serve_says_so(capsys):
    assert main(["plan", "--context", "100000000"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("No accelerator serves dense-8b") and "h200 (no room)" in out


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "typed", "found"),
    [
        ("accelerators", "rtx4090", "rtx-4090"), ("accelerators", "4090", "rtx-4090"),
        ("accelerators", "RTX 4090", "rtx-4090"), ("accelerators", "mac-mini", "apple-m4"),
        ("accelerators", "Mac Mini", "apple-m4"), ("accelerators", "a100", "a100-80"),
        ("targets", "llama3.1", "dense-8b"), ("targets", "Llama-3.1-70B", "dense-70b"),
        ("targets", "llama3.1:8b", "dense-8b"), ("targets", "qwen3-32b", "dense-32b"),
        ("devices", "pi5", "pi-5"), ("devices", "pi", "pi-5"), ("devices", "Raspberry Pi 4", "pi-4"),
        ("devices", "laptop", "laptop-cpu"), ("devices", "orin-nano", "orin-nano"),
        ("links", "Wi-Fi", "wifi-good"), ("links", "WAN 80", "wan-80"),
        ("accelerators", "M3 Ultra", "mac-m3-ultra"), ("accelerators", "mac studio m2 ultra", "mac-m2-ultra"),
        ("accelerators", "5090", "rtx-5090"), ("accelerators", "rtx pro 6000", "rtx-pro-6000"),
        ("accelerators", "epyc 9655", "epyc-9655"), ("accelerators", "thor", "agx-thor"),
        ("accelerators", "M4 Max", "mac-m4-max"), ("accelerators", "m4", "apple-m4"),
        ("devices", "MacBook M4", "macbook-m4"), ("devices", "macbook pro m3 max", "macbook-m3-max"),
        ("targets", "gpt-oss-120b", "moe-120b-a5b"), ("targets", "Qwen3.8 27B", "dense-27b"),
    ],
)  # fmt: skip
def test_names_as_people_type_them(kind, typed, found):
    assert catalog.find(kind, typed) == found
    assert catalog.load(kind, typed).id == found


@pytest.mark.parametrize(
    ("kind", "typed", "words"),
    [
        ("accelerators", "rtx-4091", "did you mean rtx-4090"), ("devices", "pi-9", "did you mean pi-4 or pi-5"),
        ("targets", "dense", "did you mean dense-14b or dense-27b"),
        ("accelerators", "toaster", "choose from a100-80"), ("accelerators", "A10", "did you mean a100-80"),
        ("accelerators", "L4", "did you mean l40s"), ("accelerators", "L40", "did you mean l40s"),
        ("accelerators", "H20", "did you mean h200"), ("accelerators", "RTX 4060 Ti", "did you mean rtx-4060"),
        ("accelerators", "RTX 3090", "did you mean rtx-"), ("accelerators", "ultra", "mac-m2-ultra or mac-m3-ultra"),
        ("accelerators", "A100 40 GB", "did you mean a100-80"),
        ("accelerators", "./mine.toml", "there is no file ./mine.toml"),
        ("devices", "orin", "did you mean agx-orin or orin-nano"), ("devices", "pi-50", "did you mean pi-5"),
        ("devices", "Jetson Nano", "did you mean orin-nano"), ("devices", "Pi 4B", "did you mean pi-4"),
        ("links", "wan-8", "did you mean wan-80"), ("links", "wifi6", "choose from"),
        ("targets", "70", "did you mean dense-70b"), ("targets", "Qwen2", "choose from"),
    ],
)  # fmt: skip
def test_an_unknown_name_gets_what_is_near_or_all_there_is(kind, typed, words):
    with pytest.raises(NotFound, match=r"no profile|no file") as error:
        catalog.find(kind, typed)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("flags", "first"),
    [
        (("--accelerator", "rtx-4090"), ""), (("--accelerator", "RTX4090", "--devices", "pi5"), ""),
        (("--accelerator", "2x a100"), "a100 taken as a100-80 (NVIDIA A100 80 GB SXM)\n"),
        (("--accelerator", "h200", "--devices", "pi"), "pi taken as pi-5 (Raspberry Pi 5 8 GB)\n"),
        (("--accelerator", "h200", "--link", "wifi"), "wifi taken as wifi-good (good Wi-Fi)\n"),
        (("--target", "llama"), "llama taken as dense-8b (dense 8B (Llama 3.1 8B))\n"),
        (("--hierarchy", "--hub", "thor"), "thor taken as agx-thor (NVIDIA Jetson AGX Thor 128 GB)\n"),
    ],
)  # fmt: skip
def test_a_name_that_was_taken_for_another_one_is_told_first(flags, first, capsys):
    assert main(["plan", *flags]) == 0
    out = capsys.readouterr().out
    assert out.startswith(first) and out.count(" taken as ") == bool(first)
    assert main(["plan", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["taken_as"] == first.splitlines()


@pytest.mark.parametrize("form", ["{}", "2x{}"])
def test_an_accelerator_may_be_a_file(form, tmp_path, capsys):
    mine = tmp_path / "mine.toml"
    shutil.copy(Path(catalog.__file__).parent / "accelerators" / "rtx-4090.toml", mine)
    assert main(["plan", "--accelerator", form.format(mine)]) == 0
    assert "Let " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--devices", "pi-9"), 3, "pi-9"),
        (("--draft", "9b"), 2, "choose from"),
        (("--map", "map.jpg"), 2, ".png or .svg"),
        (("--acceptance", "0.995"), 2, "from 0 to 0.99, or one of chat (0.6), mixed (0.68)"),
        (("--acceptance", "poems"), 2, "mismatched (0.35)"),
        (("--pace", "0"), 2, "out of range"),
        (("--gb-usd", "1"), 2, "--gb-usd goes with --curve"),
        (("--hub", "mac-mini"), 2, "what the target itself runs on is --accelerator"),
    ],
)
def test_mistakes_are_named(flags, code, words, capsys):
    assert main(["plan", *flags]) == code
    assert words in capsys.readouterr().err
