"""A server with a draft model of vLLM's that rests: texts stay, and what it lacks of a text leaves no trace."""

from __future__ import annotations

import json

from tests.vllm.answers import QUESTIONS, TINY
from tests.vllm.known_devices import STYLES, write
from tests.vllm.servers import USERS, Setup, assert_alike, serving
from tests.vllm.testing_plugins import DRAFTS, WITH_DRAFTER

OWN = {"method": "draft_model", "model": str(TINY.parent / "tiny-draft"), "num_speculative_tokens": 4}
ALWAYS, SELDOM = 120, 119  # tokens of answers: see testing_plugins.rests
FAULTS = [part for parts in reversed(WITH_DRAFTER.values()) for part in parts]


def test_a_draft_model_that_rests_drafts_on_as_if_it_had_read_all(tmp_path, known, monkeypatch):
    for most in (ALWAYS, SELDOM):
        monkeypatch.setitem(USERS, str(most), {"temperature": 0, "ignore_eos": True, "max_tokens": most})
    setup = Setup(("--speculative-config", json.dumps(OWN)), ("testing_rests",), {})
    with serving(tmp_path, "draft model", setup) as server:
        whole, again = (server.ask(str(most), QUESTIONS[1]) for most in (ALWAYS, SELDOM))
        assert again[0][0] == whole[0][0][:SELDOM]
        lines = server.fault.with_name(f"fault{DRAFTS}").read_text().splitlines()
        rows = [json.loads(f"[{line}]") for line in lines]
        always, seldom = (
            {length: draft for most, length, draft in rows if most == limit and draft}
            for limit in (ALWAYS, SELDOM)
        )
        both = always.keys() & seldom.keys()
        assert len(both) > 8 and len(seldom) < len(always) / 2
        assert [seldom[length] for length in both] == [always[length] for length in both]
        for part in ("", *FAULTS):
            server.fault.write_text(part)
            written = write(server.endpoint, known["8, greedy"], STYLES["long, 90 % right"])
            assert bool(part) != server.fault.exists(), "the part ran"
            for found, answer in zip(written, known["8, greedy"], strict=True):
                found.assert_same(answer)
            assert_alike(server.ask(str(ALWAYS), QUESTIONS[1]), whole)
