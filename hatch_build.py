"""Hatchling's step before it packs a wheel or installs a checkout: makes the models' files that git does not carry."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)  # of this source tree, not of a version that is installed
        from lab.shipped.recipes import make_all

        make_all(Path(self.root) / "models")
