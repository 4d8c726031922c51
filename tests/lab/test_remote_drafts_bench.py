"""Figure `remote_drafts`: the peers' blocking loop changes no text, and what both sides did is summed up rightly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec

import pytest

from hw_profiles import catalog
from lab.benchmarks.peer_server import command, running
from lab.benchmarks.remote_drafts import main
from lab.benchmarks.remote_drafts_document import changed, finished, put, runs, summary, write
from lab.benchmarks.remote_drafts_peer import BlockingTarget, DraftServer, right
from lab.benchmarks.remote_drafts_sides import OWN, PEER_PLAIN, PLAIN, SERVER, contenders, exchanged
from lab.benchmarks.remote_drafts_view import section
from lab.benchmarks.server_drafts_document import keep, read_kept
from lab.testbed.plain_llama import plain_llama
from lab.testbed.processes import free_port
from lab.testbed.target_text import text_of
from opensled.core.errors import OpenSledError
from opensled.core.messages import ChatMessage
from opensled.models.store import model_file
from tests.answering import answering
from verify_server.engine.llamacpp import llama_engine

TARGET = model_file("tiny", "*.gguf")
ASKED = ("turn on the kitchen light", "what can you do?", "tell me a story about a fox")
TOKENS = 24
HTTP = "peer, K = 3"


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    text = text_of("tiny")
    return [text.render([ChatMessage("user", asked)]) for asked in ASKED]


@pytest.fixture(scope="module")
def target() -> BlockingTarget:
    return BlockingTarget(llama_engine.load(TARGET, threads=1, kv_tokens=len(ASKED) * 512), len(ASKED))


@pytest.fixture(scope="module")
def alone(target, prompts) -> list[list[int]]:
    """What the target writes without drafts."""
    return target.answers(prompts, TOKENS).texts


class Scripted:
    """Drafts with `wrong` of every three tokens wrong, and junk behind the end of the text."""

    def __init__(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], wrong: int) -> None:
        self.prompts, self.texts, self.wrong = prompts, texts, wrong
        self.asked: list[int] = []

    def block(self, slot: int, ids: Sequence[int], count: int) -> list[int]:
        prompt = self.prompts[slot]
        written = len(ids) - len(prompt)
        assert list(ids) == [*prompt, *self.texts[slot][:written]]
        self.asked.append(count)
        follows = [*self.texts[slot][written:], *[7] * count][:count]
        return [(token + (at % 3 < self.wrong)) % 2000 for at, token in enumerate(follows, written)]


def test_without_drafts_it_is_llama_cpp_alone(target, prompts, alone) -> None:
    """Also behind a prompt that it reads in several passes."""
    long = (prompts[1] * 40)[:400]
    turn = target.answers([long], TOKENS)
    assert turn.steps > len(turn.texts[0])
    llama = plain_llama(TARGET, n_ctx=512)
    for prompt, text in zip([*prompts, long], [*alone, *turn.texts]):
        llama.reset()
        llama.eval(list(prompt))
        for token in text:
            assert int(llama.scores[llama.n_tokens - 1].argmax()) == token
            llama.eval([token])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("wrong", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_no_draft_changes_a_text(target, prompts, alone, count, wrong, together) -> None:
    drafts = Scripted(prompts, alone, wrong)
    turn = target.answers(prompts, TOKENS, count, drafts, together)
    assert turn.texts == alone
    assert (
        turn.rounds == len(drafts.asked) and turn.drafted == sum(drafts.asked) and max(drafts.asked) <= count
    )
    # A pass that reads a prompt, or has no draft, commits a token as well.
    assert turn.round_tokens <= turn.accepted + turn.rounds
    if wrong == 3:
        assert turn.accepted == 0


def test_steps_are_passes_of_the_target(target, prompts, alone) -> None:
    perfect = Scripted(prompts, alone, 0)
    turn = target.answers(prompts[:1], TOKENS, 3, perfect)
    tokens = len(alone[0])
    # One pass reads the prompt and gives a token; the others give four each, while there are as many.
    assert turn.steps == 1 + -(-(tokens - 1) // 4)
    in_turns = target.answers(prompts, TOKENS, 3, perfect)
    at_once = target.answers(prompts, TOKENS, 3, perfect, together=True)
    each = [1 + -(-(len(text) - 1) // 4) for text in alone]
    assert in_turns.steps == sum(each) and at_once.steps == max(each)
    assert in_turns.seconds > 0 and in_turns.draft_s > 0


def test_an_answer_ends_with_its_end_whatever_follows_in_the_draft(target, prompts) -> None:
    ends = frozenset(text_of("tiny").eos_ids)
    whole = target.answers(prompts, 200).texts
    assert any(text[-1] in ends for text in whole), "no answer ends by itself: this shows nothing"
    assert target.answers(prompts, 200, 8, Scripted(prompts, whole, 0)).texts == whole
    assert all(token not in ends for text in whole for token in text[:-1])


def test_a_draft_is_right_up_to_its_first_wrong_token() -> None:
    assert right([1, 2, 3], [1, 2, 3, 4]) == 3
    assert right([1, 9, 3], [1, 2, 3, 4]) == 1
    assert right([], [5]) == 0


def test_a_block_is_asked_for_as_ids_and_greedily() -> None:
    asked = []

    def reply(path: str, body: bytes) -> tuple[int, bytes]:
        asked.append((path, json.loads(body)))
        return 200, json.dumps({"tokens": [4, 5, 6, 7]}).encode()

    with answering(reply) as address, closing(DraftServer(address)) as drafts:
        assert drafts.block(2, (1, 2, 3), 3) == [4, 5, 6]
        assert drafts.block(2, (1, 2, 3), 8) == [4, 5, 6, 7]
    path, body = asked[0]
    assert path == "/completion" and body["prompt"] == [1, 2, 3] and body["n_predict"] == 3
    assert (
        body["id_slot"] == 2 and body["temperature"] == 0 and body["cache_prompt"] and body["return_tokens"]
    )


def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    replies = [(200, b'{"tokens": [1]}'), None, (200, b'{"tokens": [2]}')]
    with answering(lambda path, body: replies.pop(0)) as address, closing(DraftServer(address)) as drafts:
        assert [drafts.block(0, (1,), 3), drafts.block(0, (1,), 3)] == [[1], [2]]


def test_a_draft_server_that_refuses_or_breaks_off_ends_the_run_with_its_name() -> None:
    for reply, told in (((500, b"no slot"), "HTTP 500: b'no slot'"), (None, "broke off")):
        with (
            answering(lambda path, body, reply=reply: reply) as address,
            closing(DraftServer(address)) as drafts,
            pytest.raises(OpenSledError) as caught,
        ):
            drafts.block(0, (1,), 3)
        assert address in str(caught.value) and told in str(caught.value)


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs extra bench: llama.cpp's server")
def test_a_real_llama_server_drafts_and_changes_no_text(target, prompts, alone) -> None:
    port = free_port()
    server = running(command(model_file("tiny-draft", "*.gguf"), port, len(ASKED), 512), port)
    with server, closing(DraftServer(f"127.0.0.1:{port}")) as drafts:
        turn = target.answers(prompts, TOKENS, 3, drafts)
    assert turn.texts == alone
    assert turn.accepted > turn.drafted / 3  # the pair was trained on the same replies


@pytest.mark.parametrize("link", ["lte", "wifi-good"])
def test_the_peers_see_a_link_from_its_other_end(link, tmp_path) -> None:
    ours, theirs = catalog.link(link), catalog.link(exchanged(link, tmp_path))
    assert (theirs.up_mbit_s, theirs.down_mbit_s) == (ours.down_mbit_s, ours.up_mbit_s)
    same = ("name", "rtt_p50_ms", "rtt_p99_ms", "loss", "burst")
    assert all(getattr(theirs, name) == getattr(ours, name) for name in same)


def test_one_user_has_no_pass_for_all() -> None:
    assert list(contenders([3, 8], 1)) == [PEER_PLAIN, HTTP, "peer, K = 8", PLAIN, SERVER, OWN]
    assert "peer, K = 8, one pass for all" in contenders([3, 8], 4)
    assert [name for name, each in contenders([3], 1).items() if each.asks] == [HTTP, SERVER]


def _turn(seconds: float, rounds: int = 0, load: float = 1.0, other: int = 0) -> dict:
    """60 tokens; drafts of 3 tokens of which 2 stand."""
    counts = {"rounds": rounds, "round_tokens": 3 * rounds, "drafted": 3 * rounds, "accepted": 2 * rounds}
    took = {"tokens": 60, "seconds": seconds, "steps": 60 - 2 * rounds, "cpu_s": 1.5, "draft_cpu_s": 0.6}
    return {**took, **counts, "texts": ["t"], "load": load, "other": other}


def _unit(kind: str, number: int, http: dict, server: dict) -> dict:
    """Plain decoding takes two seconds on both sides."""
    answers = {PEER_PLAIN: _turn(2.0), HTTP: http, PLAIN: _turn(2.0), SERVER: server, OWN: _turn(2.0, 5)}
    place = {
        "engine": "torch",
        "way": "as ever",
        "link": "lte",
        "draft": "distilled",
        "users": 1,
        "kind": kind,
        "number": number,
    }
    about = {"target": "t.gguf (0)", "draft_file": "d.gguf (1)", "max_tokens": 60}
    return {**place, **about, "prompts": [number], "answers": answers}


def _units() -> list[dict]:
    return [
        _unit("code", 0, http=_turn(4.0, 20), server=_turn(1.0, 15, load=2.5)),
        _unit("chat", 0, http=_turn(8.0, 20), server=_turn(2.0, 5, other=1)),
    ]


def test_the_summary_has_ratios_of_pairs_and_totals() -> None:
    ((run, units),) = runs(_units()).items()
    found = summary(run, units)
    assert found["groups"] == {"chat": 1, "code": 1}
    http = found["over plain"][HTTP]
    assert http["mean"] == pytest.approx(0.354, abs=1e-3)
    assert (http["lowest"], http["highest"]) == (0.25, 0.5)
    assert found["over plain"][SERVER]["mean"] == pytest.approx(1.414, abs=1e-3)
    assert found["over peers"][SERVER][HTTP]["mean"] == 4.0
    assert found["contenders"][HTTP] == {
        "tokens/s": 10.0,
        "steps a token": 0.333,
        "CPU, ms a token": [25.0, 10.0],
        "tokens a round": 3.0,
        "drafted": 120,
        "stood": 0.6667,
        "texts": 2,
        "other texts": 0,
    }
    assert found["contenders"][PLAIN]["tokens a round"] is None
    assert found["contenders"][SERVER]["other texts"] == 1 and found["load"] == [1.0, 2.5]


def test_the_section_has_losses_in_the_same_table() -> None:
    document = finished({"units": _units(), "pieces": []})
    text = "\n".join(section(document))
    assert "### torch, lte, distilled draft, 1 user" in text
    assert "| peer, K = 3 | 10.0 | ▼ 0.35 | 0.33 | 25.0 + 10.0 | 3.00 | 67% of 120 | 0 of 2 |" in text
    assert f"| {PLAIN} | 30.0 |  | 1.00 | 25.0 + 10.0 |  |  | 0 of 2 |" in text
    assert f"| {SERVER} | 4.00 |" in text and "Load of the machine: 1 to 2.5." in text
    head = next(line for line in text.splitlines() if line.startswith("| contender"))
    assert head.count("|") == text.split("| peer, K = 3 | 10.0 ")[1].split("\n")[0].count("|") + 2
    assert document["ratios"][0]["name"] == f"torch, lte, distilled draft, 1 user: {SERVER} over {HTTP}"
    assert document["ratios"][0]["ratio"] == 4.0 and document["label"] == "real"


def test_a_run_that_was_ended_goes_on_with_what_it_kept(tmp_path) -> None:
    path = tmp_path / "remote_drafts.json"
    raw = read_kept(path)
    for unit in _units():
        put(raw, unit)
        keep(path, raw)
    again = _unit("chat", 0, http=_turn(1.0), server=_turn(1.0))
    put(raw := read_kept(path), again)
    assert len(raw["units"]) == 2 and raw["units"][-1] == again
    write(path, raw)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_changed_text_at_level_exact_is_told() -> None:
    fast = _unit("chat", 0, http=_turn(4.0, 20, other=1), server=_turn(1.0))
    exact = {**fast, "way": "engine torch, level exact"}
    assert list(changed([fast])) == []
    assert list(changed([exact])) == [f"torch, lte, distilled draft, 1 user: {HTTP}, chat, 1 of 1 answers"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--users", "four"), "--users four has what is no number; write some, such as --users 1,4"),
        (("--counts", "0"), "--counts has 0, which is too few"),
        (("--laps", "0"), "--laps has 0"),
        (("--links", "pigeon"), "no profile 'pigeon' among links"),
        (("--drafts", "magic"), "'magic' is none of "),
        (("--engines", "magic"), "'magic' is none of llamacpp, torch"),
        (("--kinds", "poetry"), "'poetry' is none of chat, "),
    ],
)
def test_what_cannot_be_measured_is_refused(words, told, capsys) -> None:
    assert main(["--target", "tiny", "--distilled", "tiny-draft", "--quick", *words]) in (2, 3)
    assert told in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs extra bench: llama.cpp's server")
def test_a_run_on_the_bundled_models(tmp_path) -> None:
    words = ("--target", "tiny", "--distilled", "tiny-draft", "--links", "ethernet", "--kinds", "chat")
    words += ("--engines", "llamacpp")
    more = ("--users", "2", "--counts", "3", "--laps", "1", "--max-tokens", "24", "--out", str(tmp_path))
    subprocess.run(
        [sys.executable, "-m", "lab.benchmarks.remote_drafts", *words, *more], check=True, timeout=300
    )
    document = json.loads((tmp_path / "remote_drafts.json").read_text())
    (unit,) = document["raw"]["units"]
    assert list(unit["answers"]) == list(contenders([3], 2))
    assert not unit["answers"][PLAIN]["drafted"] and not unit["answers"][PEER_PLAIN]["drafted"]
    assert all(unit["answers"][name]["rounds"] for name, each in contenders([3], 2).items() if each.block)
    assert all(0 < answer["steps"] <= answer["tokens"] for answer in unit["answers"].values())
    assert "### llamacpp, ethernet, distilled draft, 2 users" in "\n".join(section(document))
