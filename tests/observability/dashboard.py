"""deploy/grafana/opensled.json as data: its panels, their queries and what Grafana would write into their legends."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/grafana/opensled.json"


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    panel: str  # its title
    expression: str
    legend: str

    def filled(self, variables):
        """PromQL with Grafana's variables, {name: value}, filled in; raises KeyError for one that is not among them."""
        return re.sub(r"\$(\w+)", lambda found: variables[found[1]], self.expression)

    def name(self, labels):
        """The name of a series in the legend."""
        return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True)
class Panel:
    """One panel, as its JSON says."""

    data: dict

    @property
    def kind(self):
        return self.data["type"]

    @property
    def title(self):
        return self.data["title"]

    @property
    def place(self):
        """(x, y, width, height) in Grafana's grid of 24 columns."""
        grid = self.data["gridPos"]
        return grid["x"], grid["y"], grid["w"], grid["h"]

    @property
    def targets(self):
        return [
            Target(self.title, each["expr"], each["legendFormat"]) for each in self.data.get("targets", [])
        ]

    @cached_property
    def defaults(self):
        """What holds for every series without an override."""
        return self.data["fieldConfig"]["defaults"]

    def overrides(self, name):
        """{property: value} of what differs for the series `name`."""
        found = {}
        for each in self.data["fieldConfig"]["overrides"]:
            kind, wanted = each["matcher"]["id"], each["matcher"]["options"]
            hit = re.search(wanted.strip("/"), name) if kind == "byRegexp" else wanted == name
            if hit:
                found |= {each["id"]: each["value"] for each in each["properties"]}
        return found


def read():
    """The dashboard's JSON."""
    return json.loads(FILE.read_text())


def panels(dashboard):
    """Every panel, rows included, from top to bottom."""
    return [Panel(each) for each in dashboard["panels"]]
