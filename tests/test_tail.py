"""Words that are taken back: whatever a terminal showed meanwhile, in the end it shows what was confirmed."""

import io
import os
import random

import pytest

from edge_client.terminal.chat_view import View
from edge_client.terminal.tail import DumbTail, LiveTail, Tail, tail_of
from opensled.cli.colour import CODES, Palette
from tests.vt import Output, Terminal

LETTERS = "abc dé 漢字👍\n"


class SizedTail(LiveTail):
    size = os.terminal_size((20, 8))

    def _size(self):
        return self.size


def view_of(size, colours=True):
    out = Output()
    palette = Palette(colours)
    view = View(palette, chatty=True, out=out)
    view._tail = SizedTail(palette, out)
    view._tail.size = os.terminal_size(size)
    return view, out


def read(out, size):
    terminal = Terminal(*size)
    terminal.feed(out.getvalue())
    return terminal.lines


def words(draw, most):
    return "".join(draw.choice(LETTERS) for _ in range(draw.randint(0, most)))


@pytest.mark.parametrize("seed", range(60))
def test_guesses_leave_no_trace_whatever_the_width(seed):
    draw = random.Random(seed)
    size = (draw.randint(7, 24), draw.randint(4, 12))
    view, out = view_of(size, colours=bool(seed % 2))
    plain = ""
    for _ in range(40):
        if draw.random() < 0.5:
            view.guess(words(draw, 60), draw.choice([0, 5.2, 12]))
        else:
            piece = words(draw, 12)
            view.text(piece)
            plain += piece
    view.guess("", "")
    # Line ends differ, the rest does not.
    assert "".join("".join(read(out, size)).split()) == "".join(plain.split())


def test_a_guess_follows_the_text_marked_and_the_status_after_it():
    view, out = view_of((20, 8))
    view.text("It was a dark and ")
    view.guess("stormy night", "waiting for the server, 12 s")
    assert read(out, (20, 8)) == ["It was a dark and", "stormy night", "(waiting for the", "server, 12 s)"]
    assert f"\n\x1b[{CODES['guess']}mstormy night\x1b[0m" in out.getvalue()
    view.text("rainy")
    assert read(out, (20, 8)) == ["It was a dark and", "rainy"]


@pytest.mark.parametrize(
    ("columns", "text", "guess", "shown", "more", "then"),
    [
        (19, "Turn on the kit", "chen light", ["Turn on the", "kitchen light"], "e", ["Turn on the", "kite"]),
        (5, "1234", "abc", ["1234", "abc"], "678", ["1234", "678"]),
    ],
    ids=["it completes a word", "a word longer than a line goes on after it"],
)
def test_a_guess_gives_way_to_the_text(columns, text, guess, shown, more, then):
    view, out = view_of((columns, 8))
    view.text(text)
    view.guess(guess, "")
    assert read(out, (columns, 8)) == shown
    view.text(more)
    assert read(out, (columns, 8)) == then


def test_without_colours_a_guess_stands_between_brackets():
    view, out = view_of((40, 8), colours=False)
    view.text("so ")
    view.guess("far", "")
    assert read(out, (40, 8)) == ["so [far]"]


def test_a_guess_that_is_higher_than_the_screen_is_cut():
    view, out = view_of((10, 6))
    view.text("yes")
    view.guess("no " * 100, "waiting for the server, 3 s")
    assert len(read(out, (10, 6))) <= 6 and "…" in "".join(read(out, (10, 6)))
    view.guess("", "")
    assert read(out, (10, 6)) == ["yes"]


def test_a_guess_cannot_send_commands_to_the_terminal():
    view, out = view_of((60, 6))
    view.guess("\x1b]0;title\x07", "")
    assert "\x1b]0" not in out.getvalue() and "\\x1b]0" in out.getvalue()


def test_a_dumb_terminal_reads_a_guess_and_that_a_prompt_is_read_once(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Output()
    view = View(Palette(False), chatty=True, out=out)
    for computed in (512, 1024):
        view.guess("", f"reading the prompt, {computed} of 6,596")
    view.text("Once ")
    for guess in ("", "upon", "upon a", "upon a"):
        view.guess(guess, "waiting for the server, 3 s")
    view.text("there was")
    view.guess("judged", "")
    view.text(".")
    view.end_line()
    told = " [reading the prompt]\nOnce  [waiting for the server; not confirmed: upon a]\nthere was.\n"
    assert out.getvalue() == told


def test_pipes_get_nothing_but_text():
    out = io.StringIO()
    view = View(Palette(False), chatty=False, out=out)
    view.text("a")
    view.guess("b", "waiting for the server, 3 s")
    assert out.getvalue() == "a" and type(tail_of(out, Palette(False))) is Tail


def test_the_tail_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(tail_of(Output(), Palette(True)), LiveTail)
    monkeypatch.delenv("TERM")
    assert isinstance(tail_of(Output(), Palette(True)), DumbTail)
