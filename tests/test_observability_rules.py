"""deploy/prometheus: every alert is explained, tried and in docs/operations.md; every process of Compose is scraped.

Against real processes: `make observability-check`.
"""

import re
import shutil
import subprocess

import pytest
import yaml

from tests.observability.dashboard import ROOT
from tests.observability.names import ALERTS, FOLDER, OF_PROMETHEUS, series, used
from tests.test_structure import anchors

OPERATIONS = ROOT / "docs/operations.md"
CASES = yaml.safe_load((FOLDER / "rules.test.yml").read_text())["tests"]
SCRAPE = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.fixture(scope="module")
def known():
    return series()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_where_to_read_and_what_to_do(alert):
    assert set(alert["annotations"]) == {"summary", "description", "next_step", "page"}
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    for name in ("summary", "next_step"):
        assert alert["annotations"][name].endswith(".") and "{{" not in alert["annotations"][name]
    assert "{{ $labels.instance }}" in alert["annotations"]["description"]
    file, _, anchor = alert["annotations"]["page"].partition("#")
    assert anchor in anchors(ROOT / file)


def row(alert):
    """An alert as a row of the table in docs/operations.md."""
    words, page = alert["annotations"], alert["annotations"]["page"].removeprefix("docs/")
    page = page.removeprefix("operations.md")
    name, severity, after = alert["alert"], alert["labels"]["severity"], alert.get("for", "at once")
    return f"| [`{name}`]({page}) | {severity}, {after} | {words['next_step']} |"


def test_the_table_of_alerts_is_the_rules():
    table = re.findall(r"^\| \[`OpenSLED.*\|$", OPERATIONS.read_text(), re.M)
    assert table == list(map(row, ALERTS))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_case_in_which_it_is_on_and_one_in_which_it_is_not(known, alert):
    cases = [case for case in CASES if case["name"].startswith(f"{alert['alert']}: ")]
    assert cases
    for case in cases:
        (expected,) = case["promql_expr_test"][0]["exp_samples"]
        assert expected["labels"] == f'{{alertname="{alert["alert"]}", instance="bad"}}'
        given = [used(each["series"])[0] for each in case["input_series"]]
        assert {matched["instance"] for _, matched in given} == {"bad", "good"}
        assert all(set(matched) <= known[name] | OF_PROMETHEUS for name, matched in given)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "words", ["check config prometheus.yml", "check rules rules.yml", "test rules rules.test.yml"]
)
def test_promtool_agrees(words):
    run = subprocess.run(["promtool", *words.split()], cwd=FOLDER, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_server_and_device_of_compose_is_scraped_over_a_network_of_its_own():
    listed = [(each["job_name"], sd) for each in SCRAPE["scrape_configs"] for sd in each["dns_sd_configs"]]
    scraped = {name: (job, sd["port"]) for job, sd in listed for name in sd["names"]}
    verbs = {"serve": "server", "relay": "relay", "edge": "device"}
    ours = {name: each["command"] for name, each in COMPOSE.items() if each.get("command", [""])[0] in verbs}
    assert scraped.keys() == ours.keys()
    for name, command in ours.items():
        own = name != "vllm"  # whose API has the metrics
        address = command[command.index("--metrics" if own else "--http") + 1]
        assert scraped[name] == (f"opensled-{verbs[command[0]]}", int(address.rpartition(":")[2]))
        assert address.startswith("0.0.0.0:")
        assert not own or COMPOSE[name]["environment"]["OPENSLED_INSECURE_METRICS"] == "1"
        assert len(set(COMPOSE[name]["networks"]) & set(COMPOSE["prometheus"]["networks"])) == 1
