"""`opensled quality`: its statistics against brute force, its page, and a small run."""

import json
import random
import statistics
from html.parser import HTMLParser

import numpy as np
import pytest

from lab.testbed.load.interval import Interval
from lab.testbed.quality.asking import Asked, Reply, pieces_of, prompt_of
from lab.testbed.quality.bootstrap import mean_difference, ratio_of_rates
from lab.testbed.quality.config import QualityConfig
from lab.testbed.quality.figures import (
    FEWEST,
    INFERIOR,
    NOT_INFERIOR,
    OVERALL,
    UNDECIDED,
    Compared,
    Row,
    repetition,
    rows_of,
)
from lab.testbed.quality.items import fresh_items, in_turn, tasks_for
from lab.testbed.quality.page import page
from lab.testbed.quality.samples import MOST, samples
from lab.testbed.quality.site import limits, serve_words
from lab.testbed.quality.table import table
from lab.training.item import Item
from opensled.cli import main as cli
from opensled.core.errors import UsageError
from opensled.models.store import model_path
from opensled.text.tokenizer import TargetTokenizer

NAMES = {"match": "match", "fly": "fly:theta=0.1"}
ORIGIN = {"command": "x", "commit": "c", "date": "d", "machine": {"cpu": "cpu", "cores": 2}}
HOSTILE = "<script>alert('&')</script>"


def reply(right=True, ids=(1, 2), *, nats=1.0, loose=0, rounds=1, seconds=1.0, pieces=()) -> Reply:
    return Reply("r", tuple(pieces), right, tuple(ids), nats, loose, rounds, len(ids), seconds)


def asked(match: Reply, fly: Reply, text="question") -> Asked:
    return Asked(Item("t", text, "", answer="42"), {"match": match, "fly": fly})


# Statistics.


def test_the_interval_of_a_difference_is_that_of_brute_force():
    rng = random.Random(1)
    ours = [float(rng.random() < 0.7) for _ in range(150)]
    theirs = [x if rng.random() < 0.8 else 1 - x for x in ours]
    differences = [a - b for a, b in zip(ours, theirs)]
    drawn = sorted(statistics.fmean(rng.choices(differences, k=150)) for _ in range(4000))
    found = mean_difference(np.array(ours), np.array(theirs), seed=0)
    assert found.mean == pytest.approx(statistics.fmean(ours) - statistics.fmean(theirs))
    assert found.low == pytest.approx(drawn[100], abs=0.012) and found.high == pytest.approx(
        drawn[3900], abs=0.012
    )
    assert found.low < found.mean < found.high


def test_the_interval_is_paired():
    """Unpaired, the spread of the items themselves would be in it."""
    theirs = np.arange(100.0)
    assert mean_difference(theirs - 3, theirs, seed=0) == pytest.approx((-3, -3, -3))
    seconds = np.arange(1.0, 101)
    twice = ratio_of_rates((seconds, seconds), (seconds, 2 * seconds), seed=0)
    assert twice == pytest.approx((2, 2, 2))


def test_a_ratio_of_rates_is_that_of_the_sums_and_has_the_interval_of_brute_force():
    rng = random.Random(2)
    rows = [
        (rng.randint(5, 40), rng.uniform(0.5, 2), rng.randint(5, 40), rng.uniform(1, 4)) for _ in range(60)
    ]

    def ratio(chosen):
        a, b, c, d = map(sum, zip(*chosen))
        return (a / b) / (c / d)

    drawn = sorted(ratio(rng.choices(rows, k=60)) for _ in range(4000))
    columns = np.array(rows, np.float64).T
    found = ratio_of_rates((columns[0], columns[1]), (columns[2], columns[3]), seed=0)
    assert found.mean == pytest.approx(ratio(rows))
    assert found.low == pytest.approx(drawn[100], rel=0.03)
    assert found.high == pytest.approx(drawn[3900], rel=0.03)


def test_intervals_are_seeded():
    ours, theirs = np.arange(30.0) % 2, np.arange(30.0) % 3 == 0
    first = mean_difference(ours, theirs.astype(np.float64), seed=0)
    assert first == mean_difference(ours, theirs.astype(np.float64), seed=0)


def test_repetition_is_that_of_brute_force():
    rng = random.Random(3)
    answers = [[rng.randrange(2) for _ in range(length)] for length in (0, 3, 4, 12, 40)]
    runs = [[tuple(ids[i : i + 4]) for i in range(len(ids) - 3)] for ids in answers]
    again = sum(run in found[:place] for found in runs for place, run in enumerate(found))
    assert repetition(answers) == pytest.approx(again / sum(map(len, runs))) and again
    assert repetition([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0  # in two answers
    assert repetition([[1, 2]]) == 0


@pytest.mark.parametrize(
    ("low", "high", "items", "verdict"),
    [
        (-0.02, 0.01, FEWEST, NOT_INFERIOR),
        (-0.0201, 0.01, FEWEST, UNDECIDED),
        (-0.1, -0.02, FEWEST, UNDECIDED),
        (-0.1, -0.0201, FEWEST, INFERIOR),
        (0.0, 0.0, FEWEST - 1, UNDECIDED),
    ],
)
def test_the_verdict_is_that_of_the_interval(low, high, items, verdict):
    found = Compared(Interval((low + high) / 2, low, high), 0, 0, 0.0, Interval(1, 1, 1))
    assert Row("t", items, 1.0, 0, 0, 0, 1, 1, found).verdict == verdict
    assert Row("t", items, 1.0, 0, 0, 0, 1, 1, None).verdict == ""


def test_a_loss_of_the_margin_rarely_shows_in_no_item():
    assert 0.98**FEWEST < 0.05 < 0.98 ** (FEWEST - 1)


def test_rows_are_of_tasks_and_of_all_items():
    one = [asked(reply(True), reply(False, (1, 3, 4, 5), nats=6, loose=1, rounds=2, seconds=0.5))]
    two = [asked(reply(False), reply(True)), asked(reply(True), reply(True, (1, 2), seconds=2))]
    rows = rows_of({"a": one, "b": two}, ["match", "fly"], seed=0)
    assert [(row.task, row.items) for row in rows["fly"]] == [("a", 1), ("b", 2), (OVERALL, 3)]
    assert all(row.compared is None for row in rows["match"])
    first, _, overall = rows["fly"]
    assert (first.accuracy, first.loose, first.nats_per_token, first.tokens_per_round) == (0, 0.25, 1.5, 2)
    assert first.compared.speed.mean == pytest.approx(4)  # 8 tokens/s against 2
    assert (overall.compared.lost, overall.compared.gained) == (1, 1)
    assert overall.compared.changed == pytest.approx(1 / 3)
    assert overall.accuracy == rows["match"][-1].accuracy == pytest.approx(2 / 3)
    assert overall.compared.difference.mean == pytest.approx(0)
    json.dumps([row.as_json() for found in rows.values() for row in found])


# What is asked.


def test_items_are_held_out_fresh_and_as_many_as_asked():
    for task in [*tasks_for("tiny"), *tasks_for("smollm2")]:
        items = fresh_items(task, 400, 0)
        assert len(items) == 400
        assert len({json.dumps(item.messages) for item in items}) == 400
        assert {item.split for item in items} == {"heldout"}
        assert items[:5] == fresh_items(task, 5, 0) != fresh_items(task, 5, 1)


def test_a_kind_with_few_items_gives_all_it_has():
    task = tasks_for("tiny")[0]
    few = type(task)("few", lambda rng: Item("few", f"item {rng.randrange(60)}", ""), 1.0, task.check)
    assert len(fresh_items(few, 60, 0)) == sum(
        Item("few", f"item {n}", "").split == "heldout" for n in range(60)
    )


def test_only_checkable_kinds_are_asked():
    assert [task.name for task in tasks_for("tiny")] == ["smart_home", "arithmetic", "units"]
    assert [task.name for task in tasks_for("tiny", "units, units")] == ["units"]
    assert "letters" in {task.name for task in tasks_for("some.gguf")}
    with pytest.raises(UsageError, match="no task 'stories' for tiny; choose from smart_home"):
        tasks_for("tiny", "stories")


def test_every_rule_is_asked_in_every_place_equally_often():
    places = [in_turn(["a", "b", "c"], index) for index in range(6)]
    assert all(sorted(place) == ["a", "b", "c"] for place in places)
    assert all([place[k] for place in places].count("a") == 2 for k in range(3))


def test_rules_of_the_command_line():
    assert QualityConfig(rule=" fly:theta=0.1,window=2  pad fly:theta=0.1,window=2").rules == [
        "match",
        "fly:theta=0.1,window=2",
        "pad",
    ]
    with pytest.raises(UsageError, match="is the same as --baseline"):
        print(QualityConfig(rule="match").rules)
    with pytest.raises(UsageError, match="unknown rule 'flie'"):
        serve_words(QualityConfig(rule="flie"))
    config = QualityConfig(rule="fly:theta=0.1 pad", draft_length=20, pivots="p")
    words = serve_words(config)
    told = dict(zip(words[1::2], words[2::2]))
    assert (told["--loose-rules"], told["--pivots"]) == ("fly,pad", "p")
    assert limits(config) == {"OPENSLED_MAX_DRAFT": "20"}


def test_prompts_of_raw_text_stay_raw():
    assert prompt_of(Item("t", "def f(", "", chat=False)) == "def f("
    [before, last] = prompt_of(Item("t", "Hi", "", history=(("system", "Be brief."),)))
    assert (before.role, last.role, last.content) == ("system", "user", "Hi")


# What is shown.


def test_pieces_are_the_text_with_its_loose_tokens():
    tokenizer = TargetTokenizer((model_path("tiny") / "tokenizer.json").read_bytes())
    ids = tokenizer.encode_rendered("Turn on the light \N{BLACK HEART SUIT} now.")
    marks = [index == 2 for index in range(len(ids))]
    pieces = pieces_of(tokenizer, ids, marks)
    assert "".join(text for text, _ in pieces) == tokenizer.decode(ids)
    assert [text for text, loose in pieces if loose] == [
        tokenizer.decode(ids[:3])[len(tokenizer.decode(ids[:2])) :]
    ]


class Tags(HTMLParser):
    """The open tags; `closed`: how many were closed, each the one opened last."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.closed, self.names = 0, set[str]()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.open += [tag] * (tag not in self.VOID)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.closed += 1


def test_the_page_is_whole_and_escapes_what_models_and_users_write():
    spoilt = reply(False, (1, 9), loose=1, pieces=[(HOSTILE, False), (f"loose{HOSTILE}", True)])
    found = {"a": [asked(reply(pieces=[(HOSTILE, False)]), spoilt, text=HOSTILE)]}
    origin = {**ORIGIN, "command": f"opensled {HOSTILE}"}
    text = page(found, rows_of(found, ["match", "fly"], 0), {**NAMES, "fly": f"fly:{HOSTILE}"}, origin)
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and tags.closed > 40
    assert "script" not in tags.names and text.count("&lt;script&gt;") >= 6
    assert text.count("<mark") == 1 and "✓ right" in text and "✗ wrong" in text and "wanted: 42" in text
    assert "http" not in text.replace("http-equiv", "")  # it needs nothing beside it


def test_spoilt_answers_are_shown_first_and_unchanged_ones_not_at_all():
    def changed(before, after, text):
        return asked(reply(before), reply(after, (1, 3)), text)

    found = [changed(True, True, f"same{n}.") for n in range(MOST)]
    found += [
        changed(False, True, "mended."),
        changed(True, False, "spoilt."),
        asked(reply(), reply(), "kept."),
    ]
    text = samples({"a": found}, "fly", "match", NAMES)
    assert 0 < text.index("spoilt.") < text.index("mended.") < text.index("same0.")
    assert (
        "kept." not in text
        and f"{MOST} of {MOST + 2} changed texts" in text
        and text.count("same") == MOST - 2
    )
    assert "changed no text" in samples({"a": found[-1:]}, "fly", "match", NAMES)


def test_the_table_names_rules_and_verdicts():
    found = {"a": [asked(reply(True), reply(False, (1, 3), loose=1))] * 200}
    shown = table(rows_of(found, ["match", "fly"], 0), NAMES)
    assert shown.startswith("match (baseline)\n") and "\nfly:theta=0.1\n" in shown
    assert "inferior: -100.0 [-100.0, -100.0] points, 200 right answers lost, 0 gained\n  1.00x [" in shown
    assert max(map(len, shown.splitlines())) <= 120


# A run.


def test_a_strict_rule_changes_nothing_and_a_reckless_one_costs_answers(tmp_path, capsys):
    rules = "fly:theta=9,window=0 fly:theta=0,window=0"
    words = ["--rule", rules, "--tasks", "arithmetic,units", "--items", "6", "--out", str(tmp_path), "--json"]
    assert cli.main(["quality", "--model", "tiny", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "quality.json").read_text())
    assert document["provenance"]["command"] and document["baseline"] == "match"
    match, strict, reckless = (rows[-1] for rows in document["rules"].values())
    assert [row["items"] for row in (match, strict, reckless)] == [12] * 3
    assert match["loose"] == strict["loose"] == strict["compared"]["changed"] == 0
    assert strict["nats_per_token"] == pytest.approx(match["nats_per_token"], abs=1e-6)
    assert reckless["compared"]["changed"] > 0.3 and reckless["loose"] > 0.05
    assert reckless["nats_per_token"] > match["nats_per_token"] + 0.05
    assert reckless["tokens_per_round"] > match["tokens_per_round"] + 1
    assert reckless["accuracy"] <= match["accuracy"]
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    replies = [reply for answer in answers for reply in answer["replies"].values()]
    assert len(answers) == 12 and len(replies) == 12 * 3 and all(reply["nats"] > 0 for reply in replies)
    assert "<mark" in (tmp_path / "quality.html").read_text()
    goes_on(tmp_path, words, document, capsys)


def goes_on(folder, words, document, capsys):
    """A run that was killed, in the middle of a line, asks only what is missing."""
    answers = folder / "answers.jsonl"
    lines = answers.read_text().splitlines(keepends=True)
    answers.write_text("".join(lines[:-1]) + lines[-1][:50])
    (folder / "quality.json").unlink()
    assert cli.main(["quality", "--model", "tiny", *words]) == 0
    again = capsys.readouterr()
    assert f"{len(lines) - 1} items are answered in {folder} already" in again.err
    assert answers.read_text().splitlines(keepends=True)[:-1] == lines[:-1]
    assert json.loads(again.out)["rules"].keys() == document["rules"].keys()
    assert json.loads(again.out)["provenance"] == document["provenance"]
    assert cli.main(["quality", "--model", "tiny", *words, "--seed", "1"]) == 2
    assert "has answers of a run with another seed; name another folder" in capsys.readouterr().err


def test_what_cannot_be_asked_is_an_error_at_once(capsys):
    assert cli.main(["quality", "--tasks", "chess"]) == 2
    assert cli.main(["quality", "--rule", "flie"]) == 2
    assert cli.main(["quality", "--rule", ""]) == 2
    assert capsys.readouterr().err.count("error: ") == 3
