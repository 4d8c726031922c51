"""`opensled bench drafts`: what it makes of answers and their times, and what it says follows; contributed rows."""

import json
from itertools import repeat
from math import isclose
from pathlib import Path

import httpx
import pytest

from lab.benchmarks.program import write_json
from lab.testbed.bench_drafts import command, prediction, target
from lab.testbed.bench_drafts.agreement import stood
from lab.testbed.bench_drafts.view import row_of, text_of
from lab.testbed.client import StreamedReply
from opensled.cli import main as cli
from tests.draft_stubs import CompletionsHandler, narrator, stub_of
from tests.loops import in_loop

PAGE = Path(__file__).parents[2] / "docs" / "leaderboard.md"


STEPS = {  # seconds over rows
    "flat": lambda rows: 0.1 + 0.0001 * rows,  # a large dense model on a machine that computes much
    "knee": lambda rows: 0.1 + 0.0001 * rows + 0.02 * max(0, rows - 8),  # llama.cpp on a Mac
    "steep": lambda rows: 0.05 * rows,  # each row costs as much as the first
    "even": lambda rows: 0.1,
}


def levels_of(kind, most=32, drafted=0):
    times = {rows: STEPS[kind](rows) for rows in command.ROWS if rows <= most}
    return [{"texts": n, "ms": 1000 * s, "tokens_per_s": n / s, "drafted": drafted} for n, s in times.items()]


@pytest.mark.parametrize(
    ("kind", "most", "ms", "pays"),
    [
        ("flat", 32, 10, ["both", "both", "both"]),
        ("flat", 32, 400, ["none", "none", "none"]),  # a slow draft
        ("steep", 32, 1, ["none", "none", "none"]),
        ("knee", 32, 1, ["both", "both", "none"]),
        ("flat", 8, 10, ["both", "both", "unknown"]),  # of more rows nothing is known
        ("flat", 4, 10, ["both", "unknown"]),
        ("flat", 1, 10, ["unknown"]),
        ("flat", 32, None, ["unknown", "unknown", "unknown"]),  # no draft
    ],
)
def test_who_should_draft_follows_from_measured_steps(kind, most, ms, pays):
    agreed = {"ms": ms, "kinds": {"all": [[80, 100]] * 8}}
    levels, step_s = levels_of(kind, most), STEPS[kind]
    levels[0]["ms"] *= 1 + (most > 1 and kind != "steep")  # a slower step of fewer rows is noise
    found = prediction.predict(levels, agreed, "ethernet")["users"]
    assert [each["pays"] for each in found.values()] == pays
    for users, each in ((int(users), each) for users, each in found.items()):
        assert each["alone"] == pytest.approx(1 / step_s(users), rel=2e-3)
        lengths = [k for k in range(1, 9) if users * (k + 1) <= most] if ms else []
        rates = [(1 - 0.8 ** (k + 1)) / 0.2 / (step_s(users * (k + 1)) + k * ms / 1000) for k in lengths]
        assert each.get("server") == (pytest.approx(max(rates), rel=0.06) if rates else None)


BOTH = ["alone", "server"]


@pytest.mark.parametrize(
    ("curve", "drafted", "ways", "found"),
    [
        (0, 0, BOTH, {"way": "alone", "errors": {"1": 0.25}}),
        (0, 9, BOTH, {"way": "server", "errors": {"1": 0.25}}),
        (0, 9, BOTH[:1], "name its draft model"),
        (9, 9, BOTH, "start it without drafts"),
        (None, None, BOTH, "does not tell"),
    ],
)
def test_a_prediction_is_checked_where_the_server_tells_whether_it_drafts(curve, drafted, ways, found):
    curve, measured = levels_of("flat", drafted=curve), levels_of("even", 4, drafted)
    checked = prediction.check({"1": dict.fromkeys(ways, 12.5)}, curve, measured)
    assert checked == found or found in checked["why"]


@in_loop
async def found_of(work, answer):
    """`work` with a target whose server answers so: a status, or a text."""

    def handle(request):
        said = answer(request)
        return httpx.Response(said) if isinstance(said, int) else httpx.Response(200, text=said)

    async with httpx.AsyncClient(base_url="http://made", transport=httpx.MockTransport(handle)) as http:
        return await work(target.Target(http, "completions", {"model": "made"}))


EVEN = [0.1 * n for n in range(1, 11)]


@pytest.mark.parametrize(
    ("replies", "step_s"),
    [
        ([(EVEN, 1.0, 10)], 0.1),
        ([(EVEN, 1.0, 10), ([0.4, *EVEN[4:], 1.1, 1.2, 1.3], 1.3, 10)], 0.1),
        ([(EVEN[:3], 1.0, 10), (EVEN, 1.0, 10)], 0.1),  # special tokens show nothing
        ([(EVEN[::3], 1.0, 10)], 0.1),  # several tokens come in one piece
        ([(EVEN, 1.0, 10), ([1.1, 1.2, 1.3], 1.3, 3)], 0),  # one waits until the other ends
        ([(EVEN[:2], 0.2, 2)], 0),  # too short
        ([([0.999], 1.0, 10)], 0),  # all at once
    ],
)
def test_a_step_is_timed_while_all_texts_are_written(replies, step_s, monkeypatch):
    async def ask(*asked):
        times, end, tokens = answers.pop(0)
        return StreamedReply("", "", {"completion_tokens": tokens}, end, 0, [(at, "w") for at in times])

    answers = [*replies]
    monkeypatch.setattr(target.Target, "ask", ask)
    seconds, _ = found_of(lambda made: made.together(replies, {}), lambda request: 404)
    assert seconds == pytest.approx(step_s, rel=0.12)


NAME, LABELS = "vllm:spec_decode_num", '{engine="0",model_name="a b"}'
COUNTS = f"# HELP\n{NAME}_draft_tokens_total{LABELS} 8.0\n{NAME}_accepted_tokens_total{LABELS} 5.0\n"


def test_servers_tell_of_drafts():
    replies = [{"timings": {"draft_n": 8, "draft_n_accepted": 3}}, {"timings": {"predicted_n": 8}}]
    replies += [{"usage": {"opensled": {"drafted": 5, "accepted": 4}}}, {"usage": {"completion_tokens": 5}}]
    assert [target._drafts(StreamedReply(**told)) for told in replies] == [[8, 3], [0, 0], [5, 4], []]
    pages = {
        f"{COUNTS}{NAME}_accepted_tokens_per_pos_total{LABELS} 9.0": [8, 5],
        "vllm:up 1": [0, 0],
        404: [],
    }
    for page, told in pages.items():
        assert found_of(lambda made: made._metrics(), lambda request, page=page: page) == told


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(("refused", "taken"), [("min_tokens", ["ignore_eos"]), ("another", [*target.FIXED])])
def test_words_that_a_server_refuses_are_left_out(api, refused, taken):
    choice = {"completions": {"text": " w"}, "chat": {"delta": {"reasoning_content": " w"}}}[api]

    def answer(request):
        if ("chat" in request.url.path) != (api == "chat"):
            return 404
        return (
            400 if refused in json.loads(request.content) else f"data: {json.dumps({'choices': [choice]})}\n"
        )

    found = found_of(lambda made: target.find(made.http, "made", 8), answer)
    assert found.api == api and [*found.body] == ["model", "max_tokens", "temperature", *taken]


def test_places_of_a_draft_count_until_one_differs_or_nothing_is_said():
    told = {b"one two": (2, 0), b"one tw": (1, 0), b"one to": (1, 1), b"one\xff": (1, 1), b"": (0, 0)}
    assert {said: stood([b"one", b" two", b" three"], said) for said in told} == told


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["127.0.0.1:1"], "no API answers at http://127.0.0.1:1"),
        (["ftp://127.0.0.1:1/v1"], "is no address of an API; write it as http://HOST:PORT/v1"),
        (["127.0.0.1:1", "--token-file", "/nowhere"], "/nowhere"),
        (["{stub}/other"], "lists no model; name one with --model"),
        (["{stub}", "--out", "{key}"], "HTTP 401 to /v1/models: it wants a key"),
        (["{stub}", "--model", "some", "--out", "{key}"], "Invalid API Key"),
    ],
)
def test_a_fault_is_one_line_with_the_next_step(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with stub_of(CompletionsHandler, writer=narrator(""), key="s3same" * ("{key}" in argv)) as stub:
        code = cli.main(["bench", "drafts", *(word.format(stub=stub.url, key="x.json") for word in argv)])
    (line,) = capsys.readouterr().err.splitlines()
    assert code and said in line


def require_sound(found):
    """A file of the leaderboard is as the command wrote it."""
    origin, users, rows = found["provenance"], found["prediction"]["users"], found["rows"]["levels"]
    assert found["machine"] and found["model"] and origin["command"] and origin["version"]
    assert origin["date"][:19] <= found["prediction"]["at"][:19] <= origin["ended"][:19]
    assert [each["texts"] for each in rows] == [*command.ROWS[: len(rows)]]
    assert [*users] == [f"{number}" for number in prediction.USERS if number <= rows[-1]["texts"]]
    for each in (*rows, *found["users"]["levels"]):
        assert min(each["samples_ms"]) <= each["ms"] <= max(each["samples_ms"])
        assert isclose(each["ms"] * each["tokens_per_s"], 1000 * each["texts"], rel_tol=0.02)
    assert set(found["checked"]) in ({"way", "errors"}, {"why"}) and len(text_of(found)) > 500


def test_a_prediction_is_written_before_it_is_checked_and_can_be_contributed(tmp_path, monkeypatch, capsys):
    asked = []  # first questions of users, by the time of each writing

    def write(path, found):
        asked.append(sum("User: (1)" in body.get("prompt", "") for _, body in stub.heard))
        write_json(path, found)

    monkeypatch.setattr(command, "ROWS", (1, 2))
    monkeypatch.setattr(command, "write_json", write)
    path = tmp_path / "made" / "made.json"
    with stub_of(CompletionsHandler, writer=lambda text: repeat(" w"), pause=0.004) as stub:
        options = ("--draft-url", stub.url, "--quick", "--machine", "mine", "--out", str(path))
        assert cli.main(["bench", "drafts", stub.url, *options]) == 0
    found, (table, _) = json.loads(path.read_text()), capsys.readouterr()
    assert asked == [0, 1] and found["acceptance"]["kinds"]["all"][0] == [24, 24]
    assert all(len(line) <= 80 for line in table.splitlines()) and "the server does not tell" in table
    require_sound(found)
    assert row_of(found).startswith("| mine | draft | ")
    found["rows"]["levels"][0]["ms"] /= 2
    with pytest.raises(AssertionError):
        require_sound(found)


@pytest.mark.parametrize("path", sorted(PAGE.with_suffix("").glob("*.json")), ids=lambda path: path.stem)
def test_a_contributed_file_is_sound_and_has_its_row(path):
    found = json.loads(path.read_text())
    require_sound(found)
    assert row_of(found) in PAGE.read_text().splitlines()
