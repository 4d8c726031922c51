"""Every benchmark runs, in seconds, and what it writes says where it comes from."""

import asyncio
import json

import pytest

from lab.benchmarks import FIGURES, core_us, gpu_like, overload
from lab.benchmarks.__main__ import main
from lab.benchmarks.figure import Comparison, Figure, in_turns
from lab.benchmarks.tenants import TenantRequest
from lab.testbed.provenance import command_line
from opensled.core.errors import OpenSledError, UsageError

FIGURE = Figure(
    title="One",
    unit="ms",
    more_is_better=False,
    compared="A against B.",
    loses="Nowhere.",
    samples={"a": [1.0, 2.0, 4.0], "b": [4.0, 4.0, 4.0]},
    ratios=(Comparison("case", "a", "b", required=3.0),),
)


def test_contenders_take_turns_and_the_first_turn_only_warms_up():
    turns = []
    samples = in_turns({name: lambda name=name: turns.append(name) or float(len(turns)) for name in "ab"}, 2)
    assert turns == ["a", "b", "a", "b", "a", "b"]
    assert samples == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


@pytest.mark.parametrize(("more_is_better", "ratios"), [(False, [4, 2, 1]), (True, [0.25, 0.5, 1])])
def test_a_ratio_above_one_is_a_gain_whatever_the_unit(more_is_better, ratios):
    figure = Figure(**{**vars(FIGURE), "more_is_better": more_is_better})
    assert figure.of_each_repeat(figure.ratios[0]) == ratios
    [written] = figure.as_json({})["ratios"]
    assert (written["ratio"], written["lowest"], written["highest"]) == (ratios[1], min(ratios), max(ratios))


# From five seconds to half a minute each, mostly of real servers under load: in `make test-long`.
LONG = ("memory", "overload", "planner", "ragged", "rounds")
NAMES = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in FIGURES.names()]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_measured_and_written_with_its_origin(name, tmp_path, capsys):
    assert main([name, "--quick", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["label"] in ("real", "emulated")
    assert written["samples"] and all(min(each) >= 0 for each in written["samples"].values())
    assert all(ratio["lowest"] <= ratio["ratio"] <= ratio["highest"] for ratio in written["ratios"])
    origin = written["provenance"]
    assert origin["command"] == command_line() and origin["dirty"] in (True, False, None)
    assert {"commit", "date", "ended", "seed", "machine", "python", "libraries"} <= set(origin)
    assert {"cpu", "cores", "load_average", "load_after"} <= set(origin["machine"])
    readme = (tmp_path / "README.md").read_text()
    assert written["title"] in readme and origin["command"] in readme and "*Loses*" in readme
    assert written["title"] in capsys.readouterr().out


@pytest.mark.parametrize("program", [core_us, gpu_like])
def test_what_the_service_costs_is_printed(program, capsys):
    assert program.main(["--quick"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == {core_us: 6, gpu_like: 3}[program]


def test_an_unknown_figure_is_refused_by_name(capsys):
    assert main(["nothing", "--quick"]) == UsageError.exit_code
    assert "unknown figure 'nothing'; choose from rounds" in capsys.readouterr().err


def test_an_overload_without_any_answer_is_an_error_that_says_so(monkeypatch):
    async def silent(link, tenant, request):
        await asyncio.sleep(0.01)
        return TenantRequest(tenant, 1, 0.0)

    monkeypatch.setattr(overload, "ask", silent)
    with pytest.raises(OpenSledError, match="too busy to measure"):
        asyncio.run(overload._capacity(dict.fromkeys(overload.TENANTS), 0.05))
