"""Draft tables: least recently used out first, as files, built from texts, and kept for one user."""

import json
import logging
import platform
import random
import stat
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client.drafters.cacheback import PersonalTable
from edge_client.drafters.tables_command import TableBuilder
from lab.training import draft_table
from lab.training.item import Task
from lab.training.tasks import TASKS
from opensled.core.errors import NotFound, UnsupportedModel, VocabularyMismatch
from opensled.drafting import table_file
from opensled.drafting.tables import FrozenTable, LruTable, TableShape, each
from opensled.models.store import model_file
from tests.tiny_drafts import TRACE, some_table, tiny_info

SMALL = TableShape(leader=1, follower=2, followers=2, leaders=100)


class NaiveTable:
    """The same, as it is told: a list of leaders, each with a list of followers, moved about by hand."""

    def __init__(self, shape: TableShape) -> None:
        self.shape, self.text = shape, []
        self.leaders: OrderedDict[tuple, list] = OrderedDict()

    def push(self, token: int) -> None:
        self.text.append(token)
        window = tuple(self.text[-self.shape.span :])
        if len(window) < self.shape.span:
            return
        leader, follower = window[: self.shape.leader], window[self.shape.leader :]
        row = self.leaders.pop(leader, [])
        if follower in row:
            row.remove(follower)
        elif len(row) == self.shape.followers:
            row.pop()
        row.insert(0, follower)
        self.leaders[leader] = row
        if len(self.leaders) > self.shape.leaders:
            del self.leaders[next(iter(self.leaders))]

    def items(self) -> list:
        return [(leader, tuple(row)) for leader, row in self.leaders.items()]


@pytest.mark.parametrize(
    "shape",
    [TableShape(1, 3, 4, 20), TableShape(2, 2, 3, 60), TableShape(1, 1, 1, 5), TableShape(3, 4, 8, 1000)],
)
def test_the_table_is_the_naive_one_after_100_000_random_operations(shape):
    """A quarter of them for each shape: tokens in pieces of any length, with looks in between."""
    draw = random.Random(shape.span)
    table, naive, tail, done = LruTable(shape), NaiveTable(shape), (), 0
    while done < 25_000:
        piece = [min(draw.randrange(40), draw.randrange(40)) for _ in range(draw.choice((0, 1, 1, 2, 5, 30)))]
        tail = table.update(tail, piece)
        for token in piece:
            naive.push(token)
        for _ in range(3):  # a look changes no order
            leader = tuple(draw.randrange(40) for _ in range(shape.leader))
            assert table.followers((1, *leader)) == tuple(naive.leaders.get(leader, ()))
        done += len(piece) + 3
        if done % 50 < 5:
            assert table.items() == naive.items()
    assert table.items() == naive.items() and len(table) <= shape.leaders


# No JSON reader goes so deep
NESTED = table_file.FORMAT + table_file.VERSION + b"\n" + b"[" * 100_000 + b"\n"


def test_the_trace_of_the_paper():
    table = LruTable(SMALL)
    table.update((), TRACE)
    assert dict(table.items()) == {(5,): ((7, 8), (7, 9)), (7,): ((8, 5), (9, 5)), (9,): ((5, 7),)}


@pytest.mark.parametrize("cut", range(len(TRACE) + 1))
def test_windows_straddle_updates(cut):
    whole, parts = LruTable(SMALL), LruTable(SMALL)
    whole.update((), TRACE)
    tail = parts.update((), TRACE[:cut])
    parts.update(tail, TRACE[cut:])
    assert parts.items() == whole.items()


class TestFile:
    @pytest.mark.parametrize("vocab_size", [2048, 151_936])
    def test_what_is_written_is_read(self, tmp_path, vocab_size):
        table = some_table(vocab_size=vocab_size)
        table_file.write(tmp_path / "new" / "a.table", table)
        found = table_file.read(tmp_path / "new" / "a.table")
        assert list(each(found.rows)) == list(each(table.rows))
        assert (found.vocab_size, found.fingerprint, found.source) == (vocab_size, "f" * 64, "made up")
        assert table_file.encode(found) == table_file.encode(table)
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.table"]

    def test_a_frozen_table_finds_what_the_other_one_finds(self, tmp_path):
        table = some_table(300)
        frozen, lru = FrozenTable(table.rows, 2048), LruTable(table.shape)
        lru.restore(table.rows)
        for leader, followers in lru.items():
            assert frozen.followers((9, *leader)) == lru.followers(leader) == followers
        assert frozen.followers((1,)) == frozen.followers(()) == frozen.followers((2047, 2047, 2047)) == ()
        assert len(frozen) == len(lru) >= 300

    def test_an_empty_table_knows_nothing(self):
        assert FrozenTable(some_table(0).rows, 2048).followers((1, 2)) == ()

    def test_every_cut_and_every_flipped_bit_is_noticed(self, tmp_path):
        content, path = table_file.encode(some_table(8)), tmp_path / "a.table"
        body = content.index(b"}\n") + 2
        for length in range(0, len(content), 3):
            path.write_bytes(content[:length])
            with pytest.raises(UnsupportedModel, match=r"draft-tables build"):
                table_file.read(path)
        for place in range(body, len(content)):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(UnsupportedModel, match="damaged"):
                table_file.read(path)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("leader_length", 0), ("leader_length", 9), ("follower_length", "3"), ("follower_length", 17),
            ("leaders", -1), ("leaders", 10**12), ("leaders", None), ("vocab_size", 5), ("vocab_size", 1 << 20),
        ],
    )  # fmt: skip
    def test_a_header_that_does_not_fit_is_noticed(self, tmp_path, field, value):
        first, header, payload = table_file.encode(some_table(8)).split(b"\n", 2)
        changed = json.dumps({**json.loads(header), field: value}).encode()
        (tmp_path / "a.table").write_bytes(b"\n".join((first, changed, payload)))
        with pytest.raises(UnsupportedModel, match="damaged"):
            table_file.read(tmp_path / "a.table")

    def test_other_formats_say_what_they_are(self, tmp_path):
        path = tmp_path / "a.table"
        path.write_bytes(b"OpenSLED draft table 2\n{}\n")
        with pytest.raises(UnsupportedModel, match="format that this version does not know"):
            table_file.read(path)
        path.write_bytes(b"GGUF")
        with pytest.raises(UnsupportedModel, match="not a draft table"):
            table_file.read(path)
        with pytest.raises(NotFound):
            table_file.read(tmp_path / "nothing")


class TestBuilder:
    def test_the_most_frequent_come_first_and_stay(self):
        builder = TableBuilder(TableShape(1, 2, followers=2, leaders=2))
        for text in ((1, 2, 3), (1, 2, 4), (1, 2, 4), (1, 9, 9), (1, 0, 0), (7, 1, 1), (6, 5, 5), (6, 5, 5)):
            builder.read(text)
        frozen = FrozenTable(builder.rows(), 10)
        assert frozen.followers((1,)) == ((2, 4), (0, 0))  # of those seen once the one of lower ids
        assert frozen.followers((6,)) == ((5, 5),) and frozen.followers((7,)) == ()
        assert builder.tokens == 24

    def test_no_window_reaches_across_two_documents(self):
        builder = TableBuilder(TableShape(1, 1))
        for text in ((1, 2), (), (3, 4)):
            builder.read(text)
        assert dict(each(builder.rows())) == {(1,): ((2,),), (3,): ((4,),)}

    def test_rare_windows_are_forgotten_before_memory_runs_out(self):
        builder, draw = TableBuilder(TableShape(1, 1, followers=1), max_windows=100), random.Random(1)
        for _ in range(60):
            builder.read([500, 501, *(draw.randrange(500) for _ in range(10))])
            assert len(builder._windows) <= 100
        assert FrozenTable(builder.rows(), 1000).followers((500,)) == ((501,),)


class TestShipped:
    def test_comes_with_the_draft_model_and_has_the_targets_vocabulary(self):
        path = model_file("tiny-draft", "*.table")
        table = table_file.read(path)
        table.require(tiny_info(), path)
        assert table.shape.leader == draft_table.SHAPE.leader and len(table.rows.leaders) > 10_000
        with pytest.raises(VocabularyMismatch, match="draft-tables build"):
            table.require(tiny_info(fingerprint="another"), path)

    @pytest.mark.long
    def test_is_made_of_the_training_split_alone(self, monkeypatch):
        splits, draw_from = [], Task.draw_from
        monkeypatch.setattr(Task, "draw_from", lambda *given: splits.append(given[2]) or draw_from(*given))
        assert sum(1 for _ in draft_table.replies(3)) == len(splits) == 3 * (len(TASKS) - 1)
        assert set(splits) == {"train"}

    def test_a_part_of_it_comes_out_the_same_again(self):
        first, second = (draft_table.build(5, with_code=False) for _ in range(2))
        assert table_file.encode(first) == table_file.encode(second)

    @pytest.mark.long
    def test_a_rebuild_gives_the_same_bytes(self, tmp_path):
        path = model_file("tiny-draft", "*.table")
        if platform.python_version() not in table_file.read(path).source:
            pytest.skip("made from another Python's standard library")
        (tmp_path / "tiny-draft").mkdir()
        assert draft_table.write(tmp_path).read_bytes() == path.read_bytes()


class TestPersonal:
    TEXT = (*range(20), *range(20))

    def learned(self, path: Path) -> PersonalTable:
        personal = PersonalTable(path, tiny_info())
        personal.table.update((), self.TEXT)
        return personal

    def test_is_kept_from_one_run_to_the_next_for_its_user_alone(self, tmp_path):
        path = tmp_path / "state" / "mine.table"
        self.learned(path).save(now=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert PersonalTable(path, tiny_info()).table.items() == self.learned(tmp_path / "x").table.items()
        assert list(path.parent.iterdir()) == [path]

    def test_is_not_written_at_every_turn(self, tmp_path, monkeypatch):
        path, now = tmp_path / "mine.table", [100.0]
        monkeypatch.setattr("edge_client.drafters.cacheback.time.monotonic", lambda: now[0])
        personal = self.learned(path)
        personal.save()
        assert not path.exists()
        now[0] += 31
        personal.save()
        written = path.stat().st_mtime_ns
        now[0] += 31
        personal.save(now=True)  # nothing new
        assert path.stat().st_mtime_ns == written

    @pytest.mark.parametrize("content", [b"", b"nonsense", table_file.encode(some_table(9))[:-3], NESTED])
    def test_a_damaged_one_is_reported_and_replaced(self, tmp_path, caplog, content):
        path = tmp_path / "mine.table"
        path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            personal = self.learned(path)
        assert "starts empty" in caplog.text and str(path) in caplog.text
        personal.save(now=True)
        assert len(table_file.read(path).rows.leaders) == 20

    def test_another_vocabularys_is_refused_and_left_alone(self, tmp_path):
        path = tmp_path / "mine.table"
        self.learned(path).save(now=True)
        before = path.read_bytes()
        with pytest.raises(VocabularyMismatch, match="another vocabulary"):
            PersonalTable(path, tiny_info(fingerprint="another"))
        assert path.read_bytes() == before

    def test_one_of_other_sizes_starts_empty(self, tmp_path, caplog):
        path = tmp_path / "mine.table"
        info = tiny_info()
        table_file.write(
            path, replace(some_table(), vocab_size=info.vocab_size, fingerprint=info.fingerprint)
        )
        assert len(PersonalTable(path, info).table) == 0 and "other sizes" in caplog.text

    def test_a_disk_that_fails_is_told_and_no_more(self, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        personal = PersonalTable(tmp_path / "none.table", tiny_info())
        personal.path = tmp_path / "file" / "mine.table"
        personal.table.update((), self.TEXT)
        personal.save(now=True)
        assert "cannot be written" in caplog.text

    def test_is_bounded(self, tmp_path):
        personal = PersonalTable(tmp_path / "mine.table", tiny_info())
        personal.table.update((), range(40_000))
        assert len(personal.table) == personal.table.shape.leaders == 32_768
