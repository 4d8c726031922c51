"""Commands of ours as processes that run to their end."""

import os
import subprocess
import sys
from collections.abc import Mapping


def opensled(
    *words: str, variables: Mapping[str, str] = os.environ, **options
) -> subprocess.CompletedProcess:
    """`opensled WORDS`; `variables` of the environment come on top of this process's own."""
    options = {"capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run(
        [sys.executable, "-m", "opensled", *words], env={**os.environ, **variables}, **options
    )
