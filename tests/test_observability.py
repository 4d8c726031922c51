"""deploy/prometheus and deploy/grafana name only what exists, and docs/operations.md says what they say.

Against real processes: `make observability-check`.
"""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import jsonschema
import pytest
import yaml

from opensled.core import errors
from tests.home_page import anchors
from tests.observability import dashboard
from tests.observability.dashboard import ROOT
from tests.observability.names import ALERTS, FOLDER, OF_PROMETHEUS, RULES, grouped, series, used
from verify_server.access import client_limits
from verify_server.front.server_metrics import REASONS

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
BOARD = dashboard.read()
PANELS = dashboard.panels(BOARD)
SHOWING = [panel for panel in PANELS if panel.kind != "row"]
TARGETS = [target for panel in PANELS for target in panel.targets]
VARIABLES = {each["name"]: each for each in BOARD["templating"]["list"]}
CHOOSERS = [each for each in VARIABLES.values() if each["type"] == "query"]
SCHEMA = json.loads((ROOT / "tests/golden/grafana-dashboard.schema.json").read_text())
SUFFIX = re.compile(r"_(bucket|sum|count)$")
QUERIES = {
    **{f"{target.panel}: {target.expression}": target.expression for target in TARGETS},
    **{rule.get("alert") or rule["record"]: rule["expr"] for rule in RULES},
}


@pytest.fixture(scope="module")
def known():
    return series()


def test_there_is_something_to_check():
    assert len(QUERIES) > 80 and len(ALERTS) >= 15 and len(PANELS) > 40
    assert used('sum by (a) (rate(opensled:b_total{c=~"d|e"}[5m]))') == [("opensled:b_total", {"c": "d|e"})]


@pytest.mark.parametrize("query", QUERIES)
def test_every_series_and_label_exists(known, query):
    found = used(QUERIES[query])
    assert found
    for name, matched in found:
        assert name in known
        assert set(matched) <= known[name] | OF_PROMETHEUS, name
    assert grouped(QUERIES[query]) <= OF_PROMETHEUS.union(*(known[name] for name, _ in found))


def test_legends_and_variables_name_labels_that_exist(known):
    for target in TARGETS:
        labels = OF_PROMETHEUS.union(*(known[name] for name, _ in used(target.expression)))
        assert set(re.findall(r"\{\{(\w+)\}\}", target.legend)) <= labels
    for variable in CHOOSERS:
        name, label = re.fullmatch(r"label_values\((\S+), (\w+)\)", variable["query"]["query"]).groups()
        assert name in known and label == "instance"


def codes(kind=errors.OpenSledError):
    return {kind.code}.union(*map(codes, kind.__subclasses__()))


def test_the_values_that_queries_ask_for_exist():
    files = sorted(Path(client_limits.__file__).parent.glob("*.py"))
    limits = set(re.findall(r'"(\w+)"', "".join(map(Path.read_text, files))))
    values = {
        "reason": set(REASONS),
        "state": {"free", "cached", "used", "shared"},
        "reader": {"live", "absent"},
        "code": codes(),
        "limit": limits,
        "job": {f"opensled-{job}" for job in ("server", "gateway", "relay", "device")},
    }
    asked = [
        pair for expression in QUERIES.values() for _, matched in used(expression) for pair in matched.items()
    ]
    asked = {(label, value) for label, text in asked if label in values for value in spelled(text)}
    assert len(asked) > 10
    assert {(label, value) for label, value in asked if value not in values[label]} == set()


def spelled(pattern):
    """The words of a matcher such as a|b or c-(d|e)."""
    head, bracket, rest = pattern.partition("(")
    return [head + word for word in rest.rstrip(")").split("|")] if bracket else pattern.split("|")


def test_pages_name_only_metrics_that_exist(known):
    names = {SUFFIX.sub("", name) for name in known} | set(known)
    for page in sorted((ROOT / "docs").glob("*.md")):
        mentioned = set(re.findall(r"opensled:[a-z]\w+", page.read_text()))
        families = {name for name in mentioned if name.endswith("_")}  # `opensled:server_*`
        assert mentioned - families <= names, page.name
        assert all(any(name.startswith(family) for name in names) for family in families), page.name


def test_the_dashboard_is_one_by_the_types_of_grafana():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(BOARD)] == []


def test_the_schema_sees_a_mistake():
    broken = json.loads(json.dumps(BOARD))
    broken["panels"][2]["options"]["textMode"] = "loud"
    assert list(jsonschema.Draft7Validator(SCHEMA).iter_errors(broken))


def test_panels_have_ids_and_places_of_their_own():
    ids = [panel.data["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        x, _, w, h = panel.place
        assert x >= 0 and w > 0 and h > 0 and x + w <= 24, panel.title
    for one, other in combinations(PANELS, 2):
        assert not overlap(one.place, other.place), (one.title, other.title)


def overlap(one, other):
    apart = one[0] + one[2] <= other[0] or other[0] + other[2] <= one[0]
    return not apart and one[1] < other[1] + other[3] and other[1] < one[1] + one[3]


@pytest.mark.parametrize("panel", SHOWING, ids=lambda each: each.title)
def test_a_panel_says_what_it_shows_and_takes_the_chosen_prometheus(panel):
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    assert panel.data["description"].endswith((".", "model.")) and panel.defaults["unit"]
    assert panel.data["datasource"] == wanted
    assert all(target["datasource"] == wanted for target in panel.data["targets"])
    letters = [target["refId"] for target in panel.data["targets"]]
    assert len(set(letters)) == len(letters) > 0
    filling = dict.fromkeys([*VARIABLES, "__rate_interval"], "x")
    assert all("$" not in target.filled(filling) for target in panel.targets)


def test_series_with_a_colour_or_an_axis_of_their_own_exist():
    for panel in SHOWING:
        names = {target.legend for target in panel.targets}
        values = (
            {*REASONS, "free", "cached", "used", "shared"} if any("{{" in name for name in names) else set()
        )
        for each in panel.data["fieldConfig"]["overrides"]:
            wanted = each["matcher"]["options"]
            regular = each["matcher"]["id"] == "byRegexp"
            assert (
                any(re.search(wanted.strip("/"), name) for name in names)
                if regular
                else wanted in names | values
            )


def test_every_query_is_told_which_instances():
    for target in TARGETS:
        for name, matched in used(target.expression):
            if name == "ALERTS":
                continue
            assert re.fullmatch(r"\$(server|gateway|device|server\|\$gateway)", matched["instance"]), name


def test_variables_list_the_instances_of_the_chosen_prometheus():
    assert VARIABLES["datasource"]["query"] == "prometheus" and len(CHOOSERS) == len(VARIABLES) - 1
    for variable in CHOOSERS:
        assert variable["datasource"]["uid"] == "${datasource}" and variable["includeAll"]


def test_grafana_finds_the_dashboard_and_prometheus():
    made = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((made / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((made / "dashboards/opensled.yml").read_text())["providers"]
    mounts = dict(volume.rsplit(":", 2)[:2] for volume in COMPOSE["grafana"]["volumes"])
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090"
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    place = mounts["./deploy/grafana/opensled.json"]
    assert place.rpartition("/")[0] == provider["options"]["path"]
    assert COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == place


def test_the_picture_is_there_and_light():
    picture = ROOT / "docs/images/dashboard.png"
    assert (
        20_000 < picture.stat().st_size < 400_000
        and "images/dashboard.png" in (ROOT / "docs/operations.md").read_text()
    )


# -- rules --------------------------------------------------------------------------------------------------------


OPERATIONS = ROOT / "docs/operations.md"
CASES = yaml.safe_load((FOLDER / "rules.test.yml").read_text())["tests"]
SCRAPE = yaml.safe_load((FOLDER / "prometheus.yml").read_text())


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
    assert re.findall(r"^\| \[`OpenSLED.*\|$", OPERATIONS.read_text(), re.M) == list(map(row, ALERTS))


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
