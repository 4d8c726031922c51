"""Words at line ends: whatever pieces a text comes in and however narrow the terminal, each stays whole."""

import random
import textwrap

import pytest

from edge_client.terminal.word_wrap import WordWrap
from opensled.cli.colour import CODES, Palette
from tests.vt import Terminal

ROWS = 300


def laid_out(pieces, columns, takes_back=True, colours=False):
    """What a terminal of so many columns shows, its last column free, and what was written."""
    wrap = WordWrap(Palette(colours), lambda: columns - 1, takes_back)
    written = "".join(wrap.push(piece, "green" if colours else "") for piece in pieces) + wrap.finish()
    terminal = Terminal(columns, ROWS)
    terminal.feed(written)
    return terminal.lines, written


def cut(text, draw):
    """The text in pieces, as tokens come."""
    while text:
        length = draw.randint(1, 6)
        yield text[:length]
        text = text[length:]


@pytest.mark.parametrize("takes_back", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_lines_are_those_of_the_whole_text(seed, takes_back):
    draw = random.Random(seed)
    columns = draw.randint(13, 60)
    paragraphs = [
        " ".join("x" * draw.randint(1, 12) for _ in range(draw.randint(0, 40)))
        for _ in range(draw.randint(1, 4))
    ]
    expected = [line for each in paragraphs for line in textwrap.wrap(each, columns - 1) or [""]]
    while expected and not expected[-1]:
        expected.pop()
    lines, written = laid_out(cut("\n".join(paragraphs), draw), columns, takes_back, colours=bool(seed % 2))
    assert lines == expected
    if not takes_back:
        assert "\x1b[K" not in written and "\r" not in written


def test_a_word_is_shown_as_it_comes_and_moves_when_it_gets_too_long():
    wrap = WordWrap(Palette(True), lambda: 10)
    assert wrap.push("Turn ", "") == "Turn "
    assert wrap.push("kitc", "green") == "\x1b[32mkitc\x1b[0m"
    green, yellow = f"\x1b[{CODES['green']}m", f"\x1b[{CODES['yellow']}m"
    moved = wrap.push("hen now", "yellow")
    assert moved == f"\r\x1b[5C\x1b[K\n{green}kitc\x1b[0m{yellow}hen \x1b[0m\n{yellow}now\x1b[0m"


def test_where_nothing_can_be_taken_back_a_word_waits_for_its_end():
    wrap = WordWrap(Palette(False), lambda: 10, takes_back=False)
    shown = [wrap.push("Turn kitc"), wrap.push("hen"), wrap.push(" on"), wrap.finish()]
    assert shown == ["Turn ", "", "\nkitchen ", "on"]


def test_a_word_longer_than_a_line_is_broken_and_waits_for_no_end():
    lines, _ = laid_out(["see ", "a" * 7, "b" * 9, " end"], 11)
    assert lines == ["see", "aaaaaaabbb", "bbbbbb end"]
    assert WordWrap(Palette(False), lambda: 10, takes_back=False).push("c" * 10) == "c" * 10


def test_wide_characters_are_broken_anywhere_and_joined_ones_stay_together():
    assert laid_out(["漢字漢", "字漢字"], 8)[0] == ["漢字漢", "字漢字"]
    wrap = WordWrap(Palette(False), lambda: 5)
    assert wrap.push("ab 👍") + wrap.push("\ufe0f漢") == "ab 👍\ufe0f\n漢"


def test_indents_line_ends_and_tabs_stay():
    code = "def f():\n    return 1\n\n\n  end"
    assert laid_out([code], 30)[0] == code.split("\n")
    wrap = WordWrap(Palette(False), lambda: 12)
    assert wrap.push("\tabcd") == "\tabcd" and wrap.push("e") == "\r\x1b[8C\x1b[K\nabcde"


def test_blanks_at_a_line_end_do_not_begin_the_next_line():
    assert laid_out(["12345 ", "  abc"], 6)[0] == ["12345", "abc"]


def test_the_width_may_change_meanwhile():
    width = [20]
    wrap = WordWrap(Palette(False), lambda: width[0])
    written = wrap.push("one two three ")
    width[0] = 16
    assert written + wrap.push("four ") + wrap.push("five") == "one two three \nfour five"
