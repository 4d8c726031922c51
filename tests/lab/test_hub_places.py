"""Places of hubs: gone on with after an end, further seeds where drafts lose, losses in the table."""

import json

import pytest

from lab.benchmarks import hub_places
from lab.benchmarks.hub_places import PLACES, Place, Unit, main
from opensled.core.errors import UsageError

PATTERN = "spark-70b c* wan-80 *"  # chat and code
LOSES = Place("spark-70b", "code", "wan-80", 32)


@pytest.fixture
def units(monkeypatch):
    """Every simulation that was asked for; its rates are made up, and the fourth is interrupted."""
    asked = []

    def made(run, todo, jobs):
        for unit in todo:
            asked.append(unit)
            if len(asked) == 4:
                raise KeyboardInterrupt
            ours = 9.0 if unit.place == LOSES else 11.0
            rates = [dict.fromkeys(hub_places.QUANTITIES, rate) for rate in (10.0, ours - unit.seed)]
            yield {"seed": unit.seed, "drafted": 0.5 if ours > 10 else 0.0} | dict(
                zip(hub_places.MODES, rates)
            )

    monkeypatch.setattr(hub_places, "mapped", made)
    return asked


def test_a_run_that_was_ended_goes_on_and_places_that_lose_have_further_seeds(units, tmp_path, capsys):
    words = ["--places", PATTERN, "--out", str(tmp_path)]
    assert main(words) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["hub_places.part"]
    assert main(words) == 0
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"hub_places.json", "hub_places.svg", "README.md"}
    chosen = [place for place in PLACES if place.drafts in ("chat", "code") and place.link == "wan-80"][:12]
    firsts, further = units[:13], units[13:]
    # The one that was ended is asked again
    assert [unit.place for unit in firsts] == [*chosen[:4], *chosen[3:]]
    assert [(unit.place, unit.seed) for unit in further[:2]] == [(LOSES, 1), (LOSES, 2)] and len(further) == 4
    document = json.loads((tmp_path / "hub_places.json").read_text())
    assert document["label"] == "simulated" and len(document["pieces"]) == 1
    every, hub, *_ = document["summary"]
    assert hub == every | {"name": "spark-70b"} and (every["places"], every["that draft"]) == (12, 11)
    assert every["tokens/s"] == {"median": 1.1, "lowest": 0.8, "highest": 1.1, "below": 1}
    row = "| spark-70b code wan-80 32 | 10.0 | 0% | " + "0.800 (0.700 to 0.900) | " * 3
    assert row.strip() in capsys.readouterr().out and row.strip() in (tmp_path / "README.md").read_text()
    assert main(["--show", str(tmp_path / "hub_places.json")]) == 0
    assert row.strip() in capsys.readouterr().out


def test_a_place_is_simulated_with_and_without_drafts():
    assert len(PLACES) == 288
    run = Unit(Place("strix-70b", "code", "wifi-good", 1), 0, 10.0).run()
    assert run["drafted"] > 0.3 and run["devices"]["tokens/s"] > 1.2 * run["none"]["tokens/s"]
    assert run["none"]["first ten seconds"] == pytest.approx(run["none"]["slowest tenth"], rel=0.2)


def test_what_is_no_place_and_no_part_is_refused(tmp_path, capsys):
    assert main(["--places", "spark-7b *"]) == UsageError.exit_code
    assert "matches no place; they are called as 'spark-70b recorded wifi-good 1'" in capsys.readouterr().err
    (tmp_path / "hub_places.part").write_text('{"facts": {}}')
    assert main(["--quick", "--out", str(tmp_path)]) == UsageError.exit_code
    assert "its facts are others); remove it to measure anew" in capsys.readouterr().err
