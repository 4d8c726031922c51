"""What hatchling runs before it packs the wheel: files of models that git does not carry are made of what it carries.

A checkout, and an editable install of it, makes them at first use (opensled/models/shipped.py).
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # of this source tree, not of a version that is installed
        from opensled.models.shipped import make_all

        make_all(Path(self.root) / "models")
