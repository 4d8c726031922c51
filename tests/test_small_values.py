"""Numbers that no library bears: a start that fails with one says why in a line, and what is small is served."""

import json

import pytest

from lab.testbed.processes import Process

pytestmark = pytest.mark.system
SERVE = ("serve", "--model", "tiny", "--threads", "1", "--listen", "127.0.0.1:0")
TOO_LITTLE, TOO_MUCH = "holds no draft of 16; raise --kv-tokens", "is out of range: it must be from "
# The flags of a start that fails, and its error
REFUSED = [
    (("--engine", "torch", "--kv-tokens", "1"), TOO_LITTLE),
    (("--engine", "torch", "--kv-tokens", "8"), TOO_LITTLE),
    (("--engine", "llamacpp", "--kv-tokens", "1"), TOO_LITTLE),
    (("--engine", "llamacpp", "--kv-tokens", "8"), TOO_LITTLE),
    *(
        (("--engine", "torch", name, str(10**12)), TOO_MUCH)
        for name in ("--kv-tokens", "--max-sessions", "--threads")
    ),
]
SMALL = ("--engine", "llamacpp", "--context", "8", "--max-sessions", str(10**9))


def test_numbers_that_no_library_bears(tmp_path):
    words = [json.dumps((*SERVE, *flags)) for flags, _ in REFUSED]
    log = tmp_path / "log"
    small = json.dumps((*SERVE, *SMALL))
    with Process([*words, small], module="tests.many_commands", log=log) as process:
        process.wait_ready(300)
    lines = log.read_text().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert [said in line for line, (_, said) in zip(errors, REFUSED, strict=True)] == [True] * len(REFUSED)
    assert not [line for line in lines if "Traceback" in line or "ASSERT" in line]
