"""The measurement of the way to a draft server: its counts, and what it makes of them."""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import pytest

from lab.benchmarks import draft_server, peer_server, serving
from lab.benchmarks.draft_server import BLOCK, BY_IDS, OWN, _figure, _table, block_ms, follow, main, share
from opensled.core.messages import SamplingParams
from opensled.core.sampling import Sampler
from tests.fakes import OracleDrafter, continuation

PROMPT = (3, 1, 4)


def test_drafts_that_are_all_right_stand():
    class Written:
        prompt_ids, target_ids = PROMPT, tuple(continuation(PROMPT, 26))

    found = follow(OracleDrafter(1.0, 1), Written(), Sampler(SamplingParams(temperature=0.0), b"key"))
    assert found["accepted"] == found["drafted"] and found["tokens"] == 26
    assert len(found["block_ms"]) == -(-26 // (BLOCK + 1)) - 1
    wrong = follow(OracleDrafter(0.0, 1), Written(), Sampler(SamplingParams(temperature=0.0), b"key"))
    assert wrong["accepted"] == 0 and len(wrong["block_ms"]) == 25


def test_the_table_compares_with_the_built_in_drafter():
    times = count(10)
    raw = {
        name: [
            {"sampling": sampling, "drafted": 4, "accepted": 2, "block_ms": [float(next(times))] * 3}
            for sampling in ("greedy", "T = 0.8")
        ]
        for name in (OWN, BY_IDS)
    }
    assert share(raw[OWN]) == 0.5 and block_ms(raw[OWN][:1]) == 10.0
    assert "| llama-server, by ids | greedy | 0.500 of 4 | 12.0 | +2.0 | 1.20 |" in _table(raw)
    document = _figure(raw, 0.5).as_json({})
    assert document["ratios"][0]["ratio"] == pytest.approx(10 / 12, abs=0.01)  # below 1: it takes longer
    assert document["facts"]["request_ms"] == 0.5


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--items" in capsys.readouterr().out


@pytest.mark.parametrize("figure", [draft_server, serving])
def test_a_peer_that_is_not_installed_is_named_before_anything_is_loaded(
    figure, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(peer_server, "find_spec", lambda name: None)
    assert figure.main(["--quick"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: llama.cpp's server needs one more package: ") and "[bench]" in line


@pytest.mark.parametrize(("figure", "library"), [("serving", "llama_cpp"), ("grid", "numpy")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(figure, library):
    program = f"sys.modules[{library!r}] = None; run_module('lab.benchmarks.{figure}', run_name='__main__')"
    words = [sys.executable, "-c", f"import sys; from runpy import run_module; {program}"]
    ended = subprocess.run(words, capture_output=True, text=True)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1 and line.startswith("error: ") and "pip install" in line
