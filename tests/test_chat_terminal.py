"""`opensled chat` against a real server: in a real terminal, and through a pipe."""

import json
import stat

import pytest

from lab.testbed.processes import Process, settings
from opensled.cli.colour import CODES
from opensled.text.origins import ORIGINS
from tests.commands import opensled
from tests.gated_target import GATE
from tests.terminal import Screen

UP, CTRL_C, CTRL_D = "\x1b[A", "\x03", "\x04"


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def server(gate):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(GATE, str(gate))
        engine = ["--engine", "tests.gated_target:load", "--server-drafter", "none"]
        arguments = ["serve", "fake", *engine, "--listen", "127.0.0.1:0"]
        with Process(arguments) as process:
            yield process.wait_ready()


def chat(server, tmp_path, *arguments, **variables):
    common = ["chat", "--server", server, "--drafter", "lookup"]
    own = settings(cache_dir=tmp_path / "cache") | {"XDG_STATE_HOME": str(tmp_path / "state")}
    return Screen(*common, *arguments, **own, **variables)


def piped(server, tmp_path, text, *arguments):
    words = ("chat", "--server", server, "--drafter", "lookup", *arguments)
    return opensled(*words, input=text, text=False, variables=settings(cache_dir=tmp_path / "cache"))


def leave(screen):
    """Ctrl-D counts at the prompt only, as in a shell."""
    screen.expect("> ")
    screen.type(CTRL_D)
    assert screen.finish() == 0


# -- in a terminal ---------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_answer_and_keeps_what_was_written(server, gate, tmp_path):
    saved = tmp_path / "saved.json"
    with chat(server, tmp_path, "--max-tokens", "100") as screen:
        screen.expect("> ")
        screen.type("go\n")
        screen.expect("go\r\n")
        screen.expect("E")  # the target's 17th position: the answer is under way
        screen.type(CTRL_C)
        screen.expect("stopped, ")
        gate.touch()
        screen.expect("> ")
        screen.type("more\n")
        screen.expect("100 tokens")
        screen.type(f"/save {saved}\n")
        screen.expect("saved to")
        leave(screen)
    gate.unlink()
    first, answer, second, _ = json.loads(saved.read_text())["messages"]
    assert (first, second["content"]) == ({"role": "user", "content": "go"}, "more")
    assert answer["stopped"] is True and answer["content"] in screen.text
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_lines_are_edited_and_remembered_over_conversations(server, tmp_path):
    with chat(server, tmp_path, "--max-tokens", "5") as screen:
        screen.expect("> ")
        screen.type("a question 👍\n")
        screen.expect("5 tokens")
        screen.expect("> ")
        screen.type("given up")
        screen.expect("given up")
        screen.type(CTRL_C)
        screen.expect("> ")
        screen.type("/he\t")
        screen.expect("/help")
        screen.type("\n")
        screen.expect("this list")
        screen.expect("> ")
        screen.type("/stats\n")
        screen.expect("1 finished answer, 5 tokens")
        screen.type("/exit\n")
        assert screen.finish() == 0
    path = tmp_path / "state" / "opensled" / "chat_history.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        "a question 👍",
        "/help",
        "/stats",
        "/exit",
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with chat(server, tmp_path, "--max-tokens", "5") as screen:
        screen.expect("> ")
        screen.type(UP * 4)
        screen.expect("a question 👍")
        screen.type("\n")
        screen.expect("5 tokens")
        leave(screen)


def test_tokens_are_coloured_and_the_text_is_the_same(server, tmp_path):
    with chat(server, tmp_path, "--max-tokens", "40", "--show-drafts", "--no-history") as screen:
        legend = screen.expect("decoded by the server")
        assert [name for name in ORIGINS if f"{name} (" in legend] == [
            "accepted",
            "recovered",
            "bonus",
            "server",
        ]
        assert all(f"\x1b[{CODES[colour]}m" in legend for colour in ("green", "yellow", "cyan"))
        screen.expect("> ")
        screen.type("hello\n")
        screen.expect("hello\r\n")
        answer = screen.expect("40 tokens")
        leave(screen)
    assert f"\x1b[{CODES['green']}m" in answer
    plain = piped(server, tmp_path, b"hello\n", "--max-tokens", "40").stdout.decode()
    assert plain.strip() in screen.text
    assert not (tmp_path / "state").exists()


PASTE = "one\n  two\nthree"
WAYS = {
    "marked by the terminal": ({}, [f"\x1b[200~{PASTE}\x1b[201~", "\n"], PASTE),
    "too fast to be typed": ({"TERM": "dumb"}, [PASTE, " more\n"], f"{PASTE} more"),
    "between quotes": ({}, ['"""one\n', "  two\n", 'three"""\n'], PASTE),
}


@pytest.mark.parametrize("way", WAYS)
def test_several_lines_are_one_message(server, tmp_path, way):
    variables, typed, expected = WAYS[way]
    saved = tmp_path / "saved.json"
    with chat(server, tmp_path, "--max-tokens", "5", **variables) as screen:
        screen.expect("> ")
        for text in typed:
            screen.type(text)
            screen.expect(text.split("\n")[-1].removesuffix("\x1b[201~") or "\n")
        screen.expect("5 tokens")
        screen.expect("> ")
        screen.type(f"/save {saved}\n")
        screen.expect("saved to")
        leave(screen)
    assert json.loads(saved.read_text())["messages"][0]["content"] == expected
    history = (tmp_path / "state" / "opensled" / "chat_history.jsonl").read_text()
    assert json.loads(history.splitlines()[0]) == expected


def test_ctrl_c_discards_a_message_of_several_lines(server, tmp_path):
    with chat(server, tmp_path, "--max-tokens", "5") as screen:
        screen.expect("> ")
        screen.type('"""one\n')
        screen.expect("... ")
        screen.type("two" + CTRL_C)
        screen.expect("> ")
        screen.type("/stats\n")
        screen.expect("0 finished answers")
        leave(screen)


@pytest.mark.parametrize("columns", [24, 100])
def test_notes_fit_the_terminal_and_keep_their_words_whole(server, tmp_path, columns):
    with chat(server, tmp_path, "--max-tokens", "5", "--show-drafts", columns=columns) as screen:
        screen.expect("> ")
        screen.type("/help\n")
        screen.expect("as Ctrl-D does")
        leave(screen)
    lines = [line for line in screen.text.split("\n") if not line.startswith("> ")]
    assert max(map(len, lines)) < columns
    said = " ".join(" ".join(lines).split())
    for words in ("A conversation has room for 2,000 tokens.", "in place of a draft token that it rejected"):
        assert words in said


def test_no_color_is_obeyed(server, tmp_path):
    with chat(server, tmp_path, "--max-tokens", "5", NO_COLOR="1") as screen:
        screen.expect("> ")
        screen.type("hello\n")
        screen.expect("5 tokens")
        leave(screen)
    assert "\x1b[2m" not in screen.output and "\x1b[1m" not in screen.output


# -- through a pipe --------------------------------------------------------------------------------------


def test_a_pipe_gets_the_answers_and_nothing_else(server, tmp_path):
    done = piped(server, tmp_path, b'one\n\n/reset\n"""two\nlines"""\n//three\n', "--max-tokens", "5")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) == 3 and b"\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("line", "arguments", "code", "said"),
    [
        (b"caf\xe9\n", (), 1, "character 4 of that line is not valid UTF-8"),
        (b"/frobnicate\n", (), 2, "no command /frobnicate"),
        (b"x" * 3000 + b"\n", (), 1, "context"),
        (b'"""never\n', (), 2, 'end the message with """'),
        (b"hello\n", ("--show-drafts",), 2, "--color always"),
    ],
)
def test_a_pipe_ends_at_the_first_error(server, tmp_path, line, arguments, code, said):
    done = piped(server, tmp_path, line + b"never asked\n", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode() and done.stderr.count(b"\n") == 1
