"""deploy/grafana/opensled.json as data: its panels and their queries."""

import json
import re
from dataclasses import dataclass
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

    @property
    def defaults(self):
        """What holds for every series without an override."""
        return self.data["fieldConfig"]["defaults"]


def read():
    """The dashboard's JSON."""
    return json.loads(FILE.read_text())


def panels(dashboard):
    """Every panel, rows included, from top to bottom."""
    return [Panel(each) for each in dashboard["panels"]]
