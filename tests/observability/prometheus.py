"""A real Prometheus with the rules of deploy/, on targets of our own, and what it answers."""

import math
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from lab.testbed.processes import free_port
from tests.observability.dashboard import ROOT

FOLDER = ROOT / "deploy/prometheus"
READY_S = 60.0


@dataclass(frozen=True)
class Series:
    """One series of an answer."""

    labels: dict
    points: list  # of (seconds since 1970, value); NaN has no point


def configuration(targets):
    """deploy/prometheus/prometheus.yml with {job: {instance: HOST:PORT}} for its targets, scraped every second."""
    made = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    made["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "2s"}
    made["rule_files"] = [str(FOLDER / name) for name in made["rule_files"]]
    made["scrape_configs"] = [
        {
            "job_name": job,
            "static_configs": [
                {"targets": [address], "labels": {"instance": name}} for name, address in of.items()
            ],
        }
        for job, of in targets.items()
    ]
    return made


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url):
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def get(self, path, **parameters):
        """The data of an answer; AssertionError with Prometheus' own words for a refusal."""
        answer = self._http.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]

    def ready(self):
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def range(self, expression, start, end, step):
        """The series of a query between two times, in seconds since 1970."""
        data = self.get("query_range", query=expression, start=start, end=end, step=step)
        return [Series(each["metric"], _points(each["values"])) for each in data["result"]]

    def label_values(self, metric, label):
        """What a variable of the dashboard finds."""
        return self.get(f"label/{label}/values", **{"match[]": metric})

    def targets_up(self):
        """{instance: whether its last scrape went well}."""
        return {
            each["labels"]["instance"]: each["health"] == "up"
            for each in self.get("targets")["activeTargets"]
        }

    def rules(self):
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


def _points(values):
    return [(at, float(value)) for at, value in values if math.isfinite(float(value))]


@contextmanager
def running(targets):
    """Prometheus while inside, started with `targets` as `configuration` takes them."""
    with tempfile.TemporaryDirectory(prefix="opensled-prometheus-") as folder:
        file, port = Path(folder) / "prometheus.yml", free_port()
        file.write_text(yaml.safe_dump(configuration(targets)))
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ]
        )
        try:
            found = Prometheus(f"http://127.0.0.1:{port}")
            await_ready(found, process)
            yield found
        finally:
            process.terminate()
            process.wait(30)


def await_ready(found, process):
    deadline = time.monotonic() + READY_S
    while not found.ready():
        assert process.poll() is None and time.monotonic() < deadline, "prometheus does not start"
        time.sleep(0.1)
