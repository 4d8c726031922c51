"""Every rule and every panel of deploy/ against a real Prometheus that scrapes real processes.

    python -m tests.observability [--seconds N]

Fails where promtool refuses a file, a rule cannot be evaluated, a target cannot be scraped, or a query of the dashboard
is refused or finds nothing although this fleet has it. Grafana itself has no part in it.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import threading
import time

from tests.observability import dashboard, fleet, prometheus

SECONDS = 120.0
BREAK = 0.4  # share of that time after which the relay is killed
AWAY_S = 6.0  # how long the relay is gone
RATE = "10s"  # stands for Grafana's $__rate_interval
# Queries that may find nothing here, by the start of their PromQL or their legend, and why.
MAY_BE_EMPTY = {
    "failed: {{code}}": "no step fails in a sound fleet",
    "charge: {{instance}}": "a machine without a battery",
    "throttled: {{instance}}": "a machine that does not tell whether it slows down",
    "max by (instance) (opensled:board_temperature_celsius": "a machine without thermal zones, such as a container",
    "limit: {{limit}}": "a client meets a limit under floods only",
}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.observability")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    wanted = parser.parse_args()
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print(
            "prometheus and promtool are not installed; Debian: apt-get install prometheus", file=sys.stderr
        )
        return 2
    promtool()
    with fleet.running() as running, prometheus.running(running.targets) as found:
        print(f"fleet: {', '.join(name for of in running.targets.values() for name in of)}", flush=True)
        began = time.time()
        load(running, wanted.seconds)
        answers = ask(found, began, began + wanted.seconds)
        problems = [*unscraped(found, running), *unhealthy(found), *empty(answers)]
    print("\n".join(f"PROBLEM: {problem}" for problem in problems) or "observability check: ok")
    return 1 if problems else 0


def promtool():
    """The files of deploy/prometheus, and the unit tests of the alerts."""
    for words in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules.test.yml"),
    ):
        subprocess.run(["promtool", *words], cwd=prometheus.FOLDER, check=True, stdout=subprocess.DEVNULL)
        print(f"promtool {' '.join(words)}: ok", flush=True)


def load(running, seconds):
    """Readers for so long; on the way, the relay is killed and started again."""
    breaker = threading.Timer(seconds * BREAK, running.restart_relay, [AWAY_S])
    breaker.start()
    answers = asyncio.run(fleet.read(running, seconds))
    breaker.join()
    print(f"answers: {answers}", flush=True)


def ask(found, began, ended):
    """{panel id: [(target, its series)]} of every query, with the variables that the dashboard would find."""
    variables = {"__rate_interval": RATE}
    for each in dashboard.read()["templating"]["list"]:
        if each["type"] == "query":
            metric, label = each["query"]["query"].removeprefix("label_values(").removesuffix(")").split(", ")
            variables[each["name"]] = "(" + "|".join(found.label_values(metric, label)) + ")"
    print(f"variables: {variables}", flush=True)
    step = max(1.0, (ended - began) / 120)
    return {
        panel.data["id"]: [
            (target, found.range(target.filled(variables), began + 3, ended, step))
            for target in panel.targets
        ]
        for panel in dashboard.panels(dashboard.read())
    }


def unscraped(found, running):
    """Targets that Prometheus does not get anything from."""
    up = found.targets_up()
    expected = {name for of in running.targets.values() for name in of}
    return [f"{name} is not scraped" for name in sorted(expected) if not up.get(name)]


def unhealthy(found):
    """Rules that Prometheus cannot evaluate; prints the alerts that are on."""
    rules = found.rules()
    on = [rule["name"] for rule in rules if rule.get("state", "inactive") != "inactive"]
    print(f"rules: {len(rules)} evaluated; alerts pending or firing: {', '.join(on) or 'none'}")
    return [f"rule {rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]


def empty(answers):
    """Queries without a single number, although this fleet should have some."""
    queries = [(target, found) for each in answers.values() for target, found in each]
    nothing = [target for target, found in queries if not any(series.points for series in found)]
    print(f"queries: {len(queries)}, of which {len(queries) - len(nothing)} found data")
    problems = []
    for target in nothing:
        reason = next(
            (
                why
                for key, why in MAY_BE_EMPTY.items()
                if key in (target.legend, target.expression[: len(key)])
            ),
            None,
        )
        print(f"  nothing: {target.panel}, {target.legend or target.expression}: {reason or '?'}")
        problems += [] if reason else [f"{target.panel}: no data for {target.expression}"]
    return problems


if __name__ == "__main__":
    sys.exit(main())
