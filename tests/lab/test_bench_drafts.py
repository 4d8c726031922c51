"""`opensled bench drafts` on a made-up server with a time of its own; contributed rows of docs/leaderboard.md."""

import asyncio
import json
from math import isclose
from pathlib import Path
from random import Random

import httpx
import pytest

from edge_client.drafters.by_text import Piece
from lab.benchmarks.program import write_json
from lab.testbed.bench_drafts import command, leaderboard
from lab.testbed.bench_drafts.agreement import DraftText, Recorded, agreement, served_draft
from lab.testbed.bench_drafts.config import BenchDraftsConfig
from lab.testbed.bench_drafts.target import find_target
from lab.testbed.bench_drafts.view import PAYS, table_of
from opensled.cli import main as cli
from tests.draft_stubs import STORY, CompletionsHandler, narrator, stub_of

ROOT = Path(__file__).parents[2]


def word(place):
    return f" w{place % 7}"


def is_right(prompt, place):
    """Whether the draft knows the word at a place of a text: four of five."""
    return Random(f"{prompt} {place}").random() < 0.8


class Server:
    """Writes as many texts at once as it has slots, a token of each in steps that last `step_s(rows)` of its own time.

    Drafts, where it has any, are `drafted` tokens long.
    """

    def __init__(self, step_s, slots=64, drafted=0, draft_s=0.0, tells="timings", **kind):
        """`kind`: chat (it has no completions), strict (about a word), always (it drafts)."""
        self.step_s, self.drafted, self.draft_s, self.tells, self.kind = step_s, drafted, draft_s, tells, kind
        self.now, self.slots = 0.0, asyncio.Semaphore(slots)
        self.waiting, self.running = [], 0
        self.counts = [0, 0]

    def clock(self):
        return self.now

    async def answer(self, request):
        path = request.url.path
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "made"}]})
        if path == "/metrics" and self.tells == "metrics":
            names = ("draft", "accepted")
            lines = [
                f'vllm:spec_decode_num_{name}_tokens_total{{a="b"}} {n}.0'
                for name, n in zip(names, self.counts)
            ]
            return httpx.Response(200, text="\n".join(["vllm:up 1", *lines]))
        if path != ("/v1/chat/completions" if self.kind.get("chat") else "/v1/completions"):
            return httpx.Response(404, json={"error": {"message": "no such path"}})
        body = json.loads(request.content)
        if self.kind.get("strict") in body:
            return httpx.Response(400, json={"error": {"message": "extra inputs are not permitted"}})
        return httpx.Response(200, content=self.stream(body))

    async def stream(self, body):
        async with self.slots:
            self.running += 1
            drafts = self.drafted if self.kind.get("always") or body.get("speculative.n_max", 1) else 0
            place, drafted, accepted, prompt = 0, 0, 0, body.get("prompt")
            while place < body["max_tokens"]:
                await self.step(1 + drafts)
                right = next(n for n in range(drafts + 1) if n == drafts or not is_right(prompt, place + n))
                drafted, accepted = drafted + drafts, accepted + right
                for _ in range(min(right + 1, body["max_tokens"] - place)):
                    yield self.event({"choices": [self.choice(word(place))]})
                    place += 1
            self.counts = [self.counts[0] + drafted, self.counts[1] + accepted]
            self.running -= 1
            self.release()
        told = (
            {"timings": {"draft_n": drafted, "draft_n_accepted": accepted}} if self.tells == "timings" else {}
        )
        yield self.event({"choices": [], "usage": {"completion_tokens": place}, **told})
        yield b"data: [DONE]\n\n"

    def choice(self, text):
        return {"delta": {"content": text}} if self.kind.get("chat") else {"text": text}

    def event(self, document):
        return f"data: {json.dumps(document)}\n\n".encode()

    async def step(self, rows):
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((rows, turn))
        if len(self.waiting) == self.running:
            await self.settle()
        await turn

    async def settle(self):
        for _ in range(20):  # others that are asked at the same time begin
            await asyncio.sleep(0)
        self.release()

    def release(self):
        """The next step, once everybody waits for it."""
        if len(self.waiting) < self.running or not self.waiting:
            return
        rows = sum(rows for rows, _ in self.waiting)
        longest = max(rows for rows, _ in self.waiting) - 1
        self.now += self.step_s(rows) + longest * self.draft_s
        waiting, self.waiting = self.waiting, []
        for _, turn in waiting:
            turn.set_result(None)


def draft(server, draft_s):
    def after(text):
        prompt, begun, written = text.rpartition("Assistant:")
        for place in range(written.count(" w"), written.count(" w") + 12):
            server.now += draft_s
            yield Piece((word(place) if is_right(prompt + begun, place) else " no").encode())

    return DraftText("made-draft", after)


def measured(server, draft_s=None):
    written = []

    async def run():
        transport = httpx.MockTransport(server.answer)
        async with httpx.AsyncClient(base_url="http://made", transport=transport) as http:
            target = await find_target(http, "", server.clock)
            named = None if draft_s is None else draft(server, draft_s)
            config = BenchDraftsConfig(
                url="http://made",
                tokens=32,
                quick=not server.drafted,
                link="ethernet",
                machine="made machine",
            )
            return await command.measure(
                target, named, config, lambda d: written.append(dict(d)), server.clock
            )

    document = asyncio.run(asyncio.wait_for(run(), 60))
    before, after = written
    assert "prediction" in before and "users" not in before and "users" in after
    assert all(len(line) <= 80 for line in table_of(document))
    return document


def flat(rows):
    """A large dense model on a machine that computes much: 64 rows cost as one."""
    return 0.1 + 0.0001 * rows


def steep(rows):
    """Each row costs as much as the first."""
    return 0.05 * rows


FAST = {"step_s": flat, "drafted": 4, "draft_s": 0.01}


def knee(rows):
    """As steps of llama.cpp on a Mac: nearly free up to 8 rows, then not."""
    return 0.1 + 0.0001 * rows + 0.02 * max(0, rows - 8)


FAST = {"step_s": flat, "drafted": 4, "draft_s": 0.01}


@pytest.mark.parametrize(
    ("server", "draft_s", "pays", "way"),
    [
        ({"step_s": flat}, 0.01, ["both", "both", "both"], "alone"),
        ({"step_s": flat}, 0.4, ["none", "none", "none"], "alone"),  # a slow draft
        ({"step_s": steep}, 0.001, ["none", "none", "none"], "alone"),
        ({"step_s": knee}, 0.001, ["both", "both", "none"], "alone"),
        ({"step_s": flat, "chat": True}, 0.01, ["both", "both", "both"], "alone"),
        ({"step_s": flat, "strict": "ignore_eos", "tells": ""}, 0.01, ["both", "both", "both"], "not tell"),
        ({"step_s": flat}, None, ["none", "none", "none"], "alone"),
        ({"step_s": flat, "strict": "speculative.n_max"}, None, ["none", "none", "none"], "alone"),
        (FAST, 0.01, ["both", "both", "both"], "server"),
        (FAST, None, ["none", "none", "none"], "name its draft model"),
        (
            {**FAST, "tells": "metrics", "always": True},
            0.01,
            ["none", "none", "none"],
            "start it without drafts",
        ),
        ({"step_s": flat, "tells": "metrics"}, 0.01, ["both", "both", "both"], "alone"),
    ],
)
def test_a_prediction_is_written_first_and_comes_true(server, draft_s, pays, way):
    found = measured(Server(**server), draft_s)
    if not server.get("always"):
        assert [level["ms"] for level in found["rows"]["levels"]] == [
            pytest.approx(1000 * server["step_s"](rows), rel=0.01) for rows in command.ROWS
        ]
        assert [PAYS[tuple(each["pays"])] for each in found["prediction"]["users"].values()] == pays
    if "errors" not in found["checked"]:
        assert way in found["checked"]["why"]
        return
    assert found["checked"]["way"] == way
    assert list(found["checked"]["errors"]) == ["1", "4", "8"]
    assert all(abs(error) < 0.15 for error in found["checked"]["errors"].values())
    assert found["same"] == {"alone": True, "among_others": True}


def test_a_curve_ends_where_texts_wait():
    found = measured(Server(flat, slots=4), 0.01)
    assert [level["texts"] for level in found["rows"]["levels"]] == [1, 2, 4]
    assert "of 8 texts at once some wait" in found["rows"]["end"]
    assert [*found["checked"]["errors"]] == ["1", "4"]


def test_acceptance_is_counted_by_place_and_kind_until_a_token_differs_or_nothing_is_said():
    def after(text):
        yield from (
            Piece(piece) for piece in {"": [b"o", b"ne tw"], "one": [b" t", b"wo"], "one two": [b" x"]}[text]
        )

    texts = [Recorded("code", "", ["one", " two", " three"])]
    found = agreement(texts, DraftText("made", after), 1, lambda: 0.0)
    assert {kind: counts["reached"][:3] for kind, counts in found["kinds"].items()} == {"code": [3, 0, 0]}
    assert found["by_place"] == [round(2 / 3, 4)]


def test_a_draft_server_goes_on_with_a_text():
    with stub_of(CompletionsHandler, writer=narrator(STORY)) as stub:
        draft = served_draft(stub.url, "", "")
        said = b"".join(piece.text for piece in draft.after(STORY[:20]))
    assert said and STORY[20:].startswith(said.decode())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["127.0.0.1:1"], "no API answers at http://127.0.0.1:1"),
        (["ftp://127.0.0.1:1/v1"], "is no address of an API; write it as http://HOST:PORT/v1"),
        ([], "the following arguments are required: URL"),
        (["127.0.0.1:1", "--token-file", "/nowhere"], "/nowhere"),
        (["{stub}/other"], "lists no model; name one with --model"),
        (["{stub}", "--out", "{key}"], "wants a key (HTTP 401)"),
    ],
)
def test_a_fault_is_one_line_with_the_next_step(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with stub_of(CompletionsHandler, writer=narrator(""), key="s3same" * ("{key}" in argv)) as stub:
        code = cli.main(["bench", "drafts", *(word.format(stub=stub.url, key="x.json") for word in argv)])
    (line,) = capsys.readouterr().err.splitlines()
    assert code and said in line


FOLDER = (ROOT / leaderboard.PAGE).with_suffix("")


def require_sound(found):
    """A file of the leaderboard is as the command wrote it."""
    origin, users = found["provenance"], found["prediction"]["users"]
    assert all(
        [found["machine"], found["model"], origin["command"], origin["version"], origin["machine"]["cpu"]]
    )
    assert origin["date"][:19] <= found["prediction"]["at"][:19] <= origin["ended"][:19]
    texts = [level["texts"] for level in found["rows"]["levels"]]
    assert texts[0] == 1 and texts == sorted(set(texts)) and [*users] == ["1", "4", "8"][: len(users)]
    for level in (*found["rows"]["levels"], *found["users"]["levels"]):
        assert 0.01 < level["ms"] < 100_000
        assert isclose(level["ms"] * level["tokens_per_s"], 1000 * level["texts"], rel_tol=0.01)
    assert all(0 <= share <= 1 for share in (found["acceptance"] or {"by_place": []})["by_place"])
    assert set(found["checked"]) in ({"way", "errors"}, {"why"}) and len(table_of(found)) > 10


def test_what_the_command_writes_can_be_contributed(tmp_path):
    write_json(tmp_path / "made.json", measured(Server(flat), 0.01))
    found = json.loads((tmp_path / "made.json").read_text())
    require_sound(found)
    assert "| made machine | made | 9.99 | 79.36 | 1.01x | made-draft |" in leaderboard.rows_table(tmp_path)
    found["rows"]["levels"][0]["ms"] /= 2
    with pytest.raises(AssertionError):
        require_sound(found)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_contributed_file_is_sound(path):
    require_sound(json.loads(path.read_text()))


def test_the_page_has_the_row_of_each_contributed_file():
    table = (ROOT / leaderboard.PAGE).read_text().split(leaderboard.BEGIN)[1].partition(leaderboard.END)[0]
    assert table == leaderboard.rows_table(FOLDER)
