"""What lab/benchmarks/server_drafts.py asks, and how its turns are summed up; a run on real servers is marked long."""

import json
import subprocess
import sys

import pytest

from lab.benchmarks.program import names_of
from lab.benchmarks.real_contenders import NONE
from lab.benchmarks.real_plot import write_plot
from lab.benchmarks.real_texts import KINDS, prompts
from lab.benchmarks.server_drafts import main
from lab.benchmarks.server_drafts_document import (
    changed,
    check_alike,
    finished,
    first_difference,
    is_done,
    keep,
    put,
    read_kept,
    summary,
    write,
)
from lab.benchmarks.server_drafts_plan import Run, laps, turned
from lab.benchmarks.server_drafts_view import section, title
from opensled.core.errors import UsageError

RUN = Run("torch", "greedy", 4)
ABOUT = {"target": "smollm2", "draft": "", "max_tokens": 60, "streamed": True}


@pytest.mark.parametrize(("users", "count"), [(1, 10), (4, 1), (4, 7), (8, 3)])
def test_no_server_is_asked_a_prompt_twice(users, count):
    found = list(laps(KINDS, users, count))
    for lap in found:
        texts = [prompt.text for group in lap for prompt in group.prompts]
        assert len(set(texts)) == len(texts) == users * len(lap)
    places = [(group.kind, group.number) for lap in found for group in lap]
    assert sorted(places) == sorted((kind, number) for kind in KINDS for number in range(count))


def test_a_later_lap_has_other_groups_and_every_run_the_same_ones():
    first, second = laps(["chat"], 8, 2)
    assert [prompt.number for prompt in first[0].prompts] == list(range(8))
    assert [prompt.number for prompt in second[0].prompts] != list(range(8))
    assert [first, second] == list(laps(["chat"], 8, 2))


def test_kinds_take_turns_and_one_user_is_asked_no_prompt_twice():
    (lap,) = laps(["chat", "code"], 1, 99)
    assert [(group.kind, group.number) for group in lap[:3]] == [("chat", 0), ("code", 0), ("chat", 1)]
    assert len(lap) == len(prompts("chat")) + len(prompts("code"))


def test_more_users_than_prompts_are_refused():
    with pytest.raises(UsageError, match="chat has 12 prompts, too few for 13 users"):
        list(laps(["chat"], 13, 1))


def test_every_drafter_is_the_first_one_of_a_turn_some_time():
    names = ["none", "lookup", "model"]
    assert [turned(names, number)[0] for number in range(4)] == ["none", "lookup", "model", "none"]
    assert all(sorted(turned(names, number)) == sorted(names) for number in range(4))


def test_the_first_other_character_is_found():
    assert first_difference("same", "same") is None
    assert first_difference("abcd", "abXd") == 2
    assert first_difference("ab", "abc") == first_difference("abc", "ab") == 2


def _turn(
    seconds: float,
    drafts: int = 0,
    other: tuple[tuple[int, int], ...] = (),
    idle: float = 0.0,
    share: float = 1.0,
) -> dict:
    """120 tokens in 40 steps of a session; drafts of 4 tokens, of which 3 stand."""
    counts = {"steps": 10, "places": 40, "drafts": drafts, "drafted": 4 * drafts, "accepted": 3 * drafts}
    times = {
        "seconds": seconds,
        "group_s": seconds,
        "first_s": seconds / 8,
        "drafting_s": 0.0,
        "cpu_s": share * seconds,
    }
    return {"tokens": 120, **times, **counts, "idle_cpu_s": idle, "texts": ["t"] * 4, "other": list(other)}


def _unit(kind: str, number: int, lookup: dict, model: dict, **more) -> dict:
    """No drafts take 6 seconds."""
    answers = {NONE: _turn(6.0), "lookup": lookup, "model": model}
    place = {"kind": kind, "number": number, "prompts": [0, 1, 2, 3], "long": 0}
    return {**RUN._asdict(), **ABOUT, "level": "exact", **place, "answers": answers, **more}


def _units() -> list[dict]:
    return [
        _unit("chat", 0, lookup=_turn(8.0, drafts=4), model=_turn(3.0, drafts=30)),
        _unit("chat", 1, lookup=_turn(8.0, drafts=4), model=_turn(3.0, drafts=10)),
        _unit("extraction", 0, lookup=_turn(3.0, drafts=20), model=_turn(6.0)),
    ]


def test_the_summary_has_ratios_of_pairs_and_what_was_drafted():
    found = summary(RUN, _units())
    assert found["ratios"]["chat"]["lookup"] == {"mean": 0.75, "low": 0.75, "high": 0.75}
    assert found["over the kinds"]["model"]["mean"] == pytest.approx(2**0.5, abs=1e-3)
    assert found["first text, sooner"]["lookup"]["mean"] == found["over the kinds"]["lookup"]["mean"]
    assert found["drafting"]["chat"]["model"] == {
        "places": 80,
        "drafts": 40,
        "drafted": 160,
        "accepted": 120,
        "tokens": 240,
        "share": 0.5,
        "tokens a step": 2.0,
    }
    assert found["none, tokens/s"] == {"chat": 20.0, "extraction": 20.0}


def test_what_is_missed_is_named_and_copying_kinds_must_reach_more():
    found = summary(RUN, _units())
    missed = {(each["drafter"], each["kind"]): each["required"] for each in found["missed"]}
    assert missed == {("lookup", "chat"): 0.97, ("model", "extraction"): 1.5}
    assert found["never drafted"] == [["model", "extraction"]]


def test_names_with_commas_stand_between_semicolons():
    known = ("torch", "torch, fast")
    assert names_of("torch", known) == ["torch"]
    assert names_of("torch, fast;", known) == ["torch, fast"]
    assert names_of("torch; torch, fast", known) == ["torch", "torch, fast"]


def test_heads_copy_nothing_and_need_not_nor_does_the_default():
    unit = _unit("extraction", 0, lookup=_turn(5.0), model=_turn(5.0))
    unit["answers"] |= {"ctc": _turn(5.0), "specformer": _turn(5.0), "auto": _turn(5.0)}
    assert {each["drafter"] for each in summary(RUN, [unit])["missed"]} == {"lookup", "model"}


def test_a_changed_text_is_told_at_level_exact_only_and_asked_again():
    wrong = _turn(3.0, drafts=1, other=((2, 17),))
    exact = _unit("chat", 0, lookup=wrong, model=_turn(3.0))
    assert list(changed([exact])) == [
        "torch, greedy, 4 users: lookup, chat 2, from character 17 of the answer on"
    ]
    assert not is_done(exact, [NONE, "lookup"])
    fast = {**exact, "level": "fast"}
    assert not list(changed([fast])) and is_done(fast, [NONE, "lookup"])
    assert not is_done(fast, [NONE, "lookup", "cacheback"])
    assert "other texts than without drafts: lookup 1" in "\n".join(section(_document([fast])))


def test_a_run_that_was_ended_goes_on_with_what_it_kept(tmp_path):
    path = tmp_path / "server_drafts.json"
    raw = read_kept(path)
    for unit in reversed(_units()):
        put(raw, unit)
        keep(path, raw)
    assert not path.exists() and read_kept(path) == raw
    put(raw, _unit("chat", 1, lookup=_turn(2.0), model=_turn(2.0)))
    write(path, raw)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    again = read_kept(path)["units"]
    assert [(unit["kind"], unit["number"]) for unit in again] == [("chat", 0), ("chat", 1), ("extraction", 0)]
    assert again[1]["answers"]["lookup"]["seconds"] == 2.0


def test_turns_of_other_settings_are_not_mixed():
    raw = {"units": _units(), "pieces": []}
    check_alike(raw, ABOUT)
    with pytest.raises(UsageError, match=r"has max_tokens 60, not 16.*--out"):
        check_alike(raw, {**ABOUT, "max_tokens": 16})


def _document(units: list[dict]) -> dict:
    return finished({"units": units, "pieces": []})


def test_the_section_says_what_was_missed_and_what_shows_nothing(tmp_path):
    document = _document(_units())
    text = "\n".join(section(document))
    assert "### torch, greedy, 4 users" in text and "| ▼ 0.75 |" in text
    assert "- `lookup`: MISSED: chat 0.75 (required 0.97)." in text
    assert "extraction 1.00 (required 1.5); never drafted, which shows nothing: extraction." in text
    assert "Level exact: all texts are equal. A server had 100% of its core at least" in text
    assert "DISTURBED" not in text
    write_plot({title(run): run for run in document["facts"]["runs"]}, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert "torch, greedy, 4 users" in drawn and "extraction" in drawn and "all kinds" in drawn


def test_answers_in_one_piece_have_no_time_to_a_first_text():
    units = _units()
    for unit in units:
        for answer in unit["answers"].values():
            answer["first_s"] = None
    assert "first text sooner" not in "\n".join(section(_document(units)))


def test_servers_that_disturb_each_other_are_told():
    units = [_unit("chat", 0, lookup=_turn(6.0, idle=3.0), model=_turn(6.0))]
    told = "all others took 16.7% meanwhile. DISTURBED: the others took more than 2%."
    assert told in "\n".join(section(_document(units)))


def test_answers_for_which_a_server_had_not_its_core_alone_are_counted():
    units = [_unit("chat", 0, lookup=_turn(6.0, share=0.6), model=_turn(6.0, share=0.95))]
    text = "\n".join(section(_document(units)))
    assert "had 60% of its core at least" in text
    assert "DISTURBED: 1 of 3 answers had less than 90% of the core." in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--kinds", "poetry"), "'poetry' is none of chat, "),
        (("--engines", "magic"), "'magic' is none of default, "),
        (("--users", "four"), "'four' is no number of users"),
        (("--users", "0"), "0 is too few"),
        (("--prompts", "0"), "0 is too few"),
        (("--drafters", "none"), "nothing to compare with none"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, told, capsys):
    assert main(["--target", "tiny", "--quick", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.long
def test_a_run_in_two_pieces_on_the_bundled_models(tmp_path):
    words = ("--target", "tiny", "--draft-model", "tiny-draft", "--engines", "torch", "--kinds", "chat")
    for users, drafters in (("2", "lookup"), ("1,2", "lookup,cacheback")):
        command = [sys.executable, "-m", "lab.benchmarks.server_drafts", *words, "--out", str(tmp_path)]
        more = ("--users", users, "--drafters", drafters, "--prompts", "1", "--max-tokens", "24")
        subprocess.run([*command, *more], check=True, timeout=300)
    document = json.loads((tmp_path / "server_drafts.json").read_text())
    units = document["raw"]["units"]
    # The group of two was asked again, for a drafter was new
    assert [unit["users"] for unit in units] == [1, 2] and len(document["raw"]["pieces"]) == 2
    for unit in units:
        assert list(unit["answers"]) == [NONE, "lookup", "cacheback"]
        assert not unit["answers"][NONE]["drafts"] and all(
            not each["other"] for each in unit["answers"].values()
        )
        assert all(each["first_s"] <= each["seconds"] for each in unit["answers"].values())
        assert all(len(each["texts"]) == unit["users"] for each in unit["answers"].values())
    assert (tmp_path / "server_drafts.svg").exists()
    assert "### torch, greedy, 2 users" in (tmp_path / "README.md").read_text()
