"""`opensled chat` turn by turn over a fake device, who wrote which token, and its parts."""

import io
import json
from types import SimpleNamespace

import pytest

from edge_client.device.prompt_config import ChatConfig
from edge_client.round.commits import Commit
from edge_client.terminal.chat import Chat, Runner
from edge_client.terminal.chat_input import KEPT_LINES, History, history_path, message
from edge_client.terminal.chat_view import Answer, View, in_columns
from edge_client.terminal.greeting import TINY_SKILLS, greeting
from opensled.cli.colour import Palette, palette, require_text
from opensled.core.answer import Chunk, Stats
from opensled.core.errors import InvalidRequest, OpenSledError, Unreachable, Unsupported
from opensled.core.images import ImageFacts, digest_of
from opensled.core.messages import ChatMessage
from opensled.drafting.status import DraftStatus
from opensled.text.painter import Painter
from tests.five_tokenizers import TOKENIZERS
from tests.tiny_drafts import tiny_tokenizer
from tests.vision_models import picture

# -- turn by turn ----------------------------------------------------------------------------------------


SEES = ImageFacts(token_id=3, rows=9)


class FakeDevice:
    """Answers from a script: texts, or errors to raise."""

    drafter_name = "fake"
    status = DraftStatus(True, "drafts of 4 tokens; the server asks for them", 4)

    def __init__(self, *script, context=100, template=True, images=None):
        limits = SimpleNamespace(context_length=context)
        self.info = SimpleNamespace(model_id="fake", limits=limits, has_chat_template=template, images=images)
        self.tokenizer, self.script, self.prompts = tiny_tokenizer(), list(script), []

    async def answer(self, task):
        self.prompts.append(task.prompt)
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, tuple):  # half an answer, then an error
            yield Chunk(said[0], (), origins=())
            raise said[1]
        ids = self.tokenizer.encode(said)
        yield Chunk(said, ids, "length", Stats(60, len(ids), seconds=1.0), origins=("server",) * len(ids))


def talk(device, *lines, **config):
    """What a person sees on a terminal without colours."""
    out = io.StringIO()
    with Runner() as runner:
        Chat(ChatConfig(**config), device, View(Palette(False), chatty=True, out=out), runner).talk(lines)
    return out.getvalue()


def contents(prompt):
    return [(turn.role, turn.content) for turn in prompt]


def test_turns_add_up_and_can_be_taken_back():
    device = FakeDevice("one", "two", "three", "four")
    talk(device, "a", "b", "/undo", "c", "/system be brief", "/reset", "//d", system="be kind")
    assert device.prompts[0] == (ChatMessage("system", "be kind"), ChatMessage("user", "a"))
    assert contents(device.prompts[2])[1:] == [("user", "a"), ("assistant", "one"), ("user", "c")]
    assert contents(device.prompts[3]) == [("system", "be brief"), ("user", "/d")]


def test_a_picture_goes_with_the_next_question_and_stays_in_the_conversation(tmp_path):
    path = tmp_path / "door.png"
    path.write_bytes(picture(1))
    device = FakeDevice("one", "two", images=SEES)
    said = talk(device, f"/image {path}", "who?", "and now?", f"/save {tmp_path / 'saved.json'}")
    assert f"the next question is about {path}" in said
    [first], [again, answer, second] = device.prompts
    assert first.content == "who?" and [placed.image.data for placed in first.images] == [picture(1)]
    assert again == first and not answer.images and not second.images
    saved = json.loads((tmp_path / "saved.json").read_text())["messages"]
    assert saved[0]["images"] == [digest_of(picture(1)).hex()] and "images" not in saved[2]


@pytest.mark.parametrize(
    ("images", "line", "error"),
    [
        (None, "/image x.png", "reads text only"),
        (SEES, "/image", "write /image FILE"),
        (SEES, "/image /no/such.png", "cannot be read"),
        (SEES, f"/image {__file__}", "is not a readable image"),
        (None, "/save /no/such/folder/x", "/no/such/folder/x cannot be written"),
        (None, "/save", "write /save FILE"),
        (None, "/undo", "no question to take back"),
        (None, "/Reset", "no command /Reset"),
        (None, "\udcff", "not valid UTF-8"),
    ],
)
def test_a_bad_line_is_told_and_sends_nothing(images, line, error, capsys):
    device = FakeDevice("one", images=images)
    talk(device, line)
    assert error in capsys.readouterr().err and not device.prompts


@pytest.mark.parametrize("error", [Unreachable("gone"), InvalidRequest("9 tokens do not fit", "prompt")])
def test_an_error_keeps_the_conversation(error, capsys):
    device = FakeDevice("one", error, ("half", error), "four")
    talk(device, "a", "b", "c", "d")
    assert contents(device.prompts[-1]) == [("user", "a"), ("assistant", "one"), ("user", "d")]
    said = capsys.readouterr().err
    assert said.count(f"error: {error}") == 2
    assert said.count("/reset forgets") == (2 if isinstance(error, InvalidRequest) else 0)


def test_a_full_context_is_told(capsys):
    ids = tiny_tokenizer().encode("hello there")
    talk(FakeDevice("hello there", context=60 + len(ids)), "a")
    assert "is full: /reset forgets the conversation" in capsys.readouterr().err
    assert "--max-tokens allows more" in talk(FakeDevice("hello there", context=999), "a")


def test_the_commands_speak(tmp_path):
    path = tmp_path / "kept.json"
    shown = talk(
        FakeDevice("one"),
        "a",
        "/help",
        "/stats",
        "/status",
        f"/save {path}",
        "/system",
        "/exit",
        "never asked",
    )
    assert "drafts of 4 tokens; the server asks for them; gain: not enough yet" in shown
    assert "/system [TEXT]" in shown and "1 finished answer, " in shown and "no system message now" in shown
    assert json.loads(path.read_text())["messages"][1] == {"role": "assistant", "content": "one"}


def test_saving_never_overwrites(tmp_path, capsys):
    path = tmp_path / "precious"
    path.write_text("mine")
    talk(FakeDevice(), f"/save {path}")
    assert "File exists" in capsys.readouterr().err and path.read_text() == "mine"


def test_a_target_without_a_template_is_refused():
    with pytest.raises(Unsupported, match="generate --raw"):
        talk(FakeDevice(template=False))


# -- who wrote which token --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commit", "origins"),
    [
        (Commit((7, 8), 0, 0), ("server", "server")),
        (Commit((7, 8, 9), 4, 2), ("accepted", "accepted", "recovered")),
        (Commit((7, 8, 9), 2, 2, whole=True), ("accepted", "accepted", "bonus")),
        (Commit((9,), 4, 0, whole=True), ("bonus",)),  # the draft's own tokens were known before
        (Commit((7, 8), 4, 2), ("accepted", "accepted")),  # the end, in the middle of a draft
        # Stale: the server had gone on by itself
        (Commit((7, 8, 9), 4, 1), ("accepted", "server", "server")),
        (Commit((), 4, 0), ()),
    ],
)
def test_the_origins_of_a_commit(commit, origins):
    assert commit.origins == origins


# -- the parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["plain"], "plain"),
        (['say """ so'], 'say """ so'),
        (['"""one line"""'], "one line"),
        (['"""', "a", "", "  b", '"""'], "a\n\n  b"),
        (['"""a', 'b"""  '], "a\nb"),
        (['"""A docstring."""\ndef f(): ...'], '"""A docstring."""\ndef f(): ...'),  # a paste
        (['"""a\nb"""'], "a\nb"),
    ],
)
def test_messages_of_several_lines(lines, expected):
    rest = iter(lines[1:])
    assert message(lines[0], lambda: next(rest)) == expected
    assert not list(rest)


def test_a_pasted_path_is_a_question_and_a_long_system_message_a_command():
    device = FakeDevice("one", "two")
    talk(device, "/usr/bin:\n  ls\n", "/system be\nbrief", "//usr\n")
    assert contents(device.prompts[0]) == [("user", "/usr/bin:\n  ls")]
    assert contents(device.prompts[1]) == [
        ("system", "be\nbrief"),
        ("user", "/usr/bin:\n  ls"),
        ("assistant", "one"),
        ("user", "/usr"),
    ]


def counted(origins, stats=None):
    out = io.StringIO()
    View(Palette(False), chatty=True, out=out).statistics(Answer("", list(origins), stats), 2.0)
    return out.getvalue()


def test_counts_say_of_how_many():
    stats = Stats(9, 24, drafted=31, accepted=12, first_token=0.2, seconds=2.2)
    assert (
        counted([], stats)
        == "24 tokens, 12 tokens/s, the first after 0.20 s, 12 of 31 draft tokens accepted\n"
    )
    assert (
        counted(["accepted", "server", "server"])
        == "stopped, 3 tokens, 1.5 tokens/s, 1 of them from drafts\n"
    )
    said = "stopped, 3 tokens, 1.5 tokens/s, the last 1 by the draft model alone, 1 of them from drafts\n"
    assert counted(["accepted", "server", "local"]) == said


def test_the_greeting_says_what_the_bundled_model_was_made_for():
    from lab.training.tasks import TASKS

    assert set(TINY_SKILLS) == {task.name for task in TASKS}
    info = SimpleNamespace(model_id="tiny", limits=SimpleNamespace(context_length=1024), images=None)
    said = greeting(info, "hub:7411", "lookup")
    assert "tiny at hub:7411" in said[0] and "1,024 tokens" in said[0]
    assert "short stories" in said[1] and "writes nonsense" in said[1]
    info.model_id = "org/other"
    assert len(greeting(info, "hub:7411", "lookup")) == 2
    assert "this device drafts nothing." in greeting(info, "hub:7411", "none")[0]
    info.images = SEES
    assert "/image FILE" in greeting(info, "hub:7411", "none")[1]


@pytest.mark.parametrize("width", [10, 25, 40, 79])
def test_two_columns_fit_any_width(width):
    rows = {"/system [TEXT]": "set the system message", "//": "a slash"}
    lines = in_columns(rows, width, indent=2)
    assert all(len(line) <= max(width, len("  /system [TEXT]")) for line in lines)
    assert " ".join(" ".join(lines).split()) == "/system [TEXT] set the system message // a slash"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_painted_text_is_the_decoded_whole(name):
    tokenizer = TOKENIZERS[name]
    ids = [token for token in range(len(tokenizer.pieces)) for _ in range(2)]
    painter = Painter(tokenizer)
    origins = [("accepted", "bonus")[index % 2] for index in range(len(ids))]
    pieces = painter.push(ids, origins) + painter.flush()
    assert "".join(text for text, _ in pieces) == tokenizer.decode(ids)


def test_each_character_has_the_colour_of_the_token_that_completes_it():
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = [tokenizer.pieces.index(f"<0x{byte:02X}>") for byte in "你".encode()]
    painter = Painter(tokenizer)
    assert painter.push(ids, ["accepted", "accepted", "recovered"]) == []
    pieces = painter.push([tokenizer.pieces.index("a")], ["server"])
    assert [piece for piece in pieces if piece[0]] == [("你", "recovered"), ("a", "server")]


def test_lines_that_were_typed_are_kept_up_to_a_number(tmp_path):
    path = tmp_path / "deep" / "history"
    history = History(path)
    for number in range(2 * KEPT_LINES + 5):
        history.add(f"line {number}\nof two \udcff")
    lines = history.load()
    assert len(lines) == KEPT_LINES and lines[-1] == f"line {2 * KEPT_LINES + 4}\nof two \udcff"
    assert len(path.read_text().splitlines()) == KEPT_LINES
    path.write_text('{"no": "line"}\n"good"\nbroken\n')
    assert history.load() == ["good"]
    assert History(tmp_path).load() == [] and History(tmp_path).add("x") is None  # a folder: no failure


def test_the_history_is_in_the_state_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "opensled" / "chat_history.jsonl"


@pytest.mark.parametrize(
    ("choice", "variables", "tty", "on"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {}, True, False),
    ],
)
def test_when_there_are_colours(choice, variables, tty, on, monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert palette(choice, SimpleNamespace(isatty=lambda: tty)).on is on


def test_a_lone_surrogate_is_no_text():
    assert require_text("naïve 👍", "it") == "naïve 👍"
    with pytest.raises(OpenSledError, match="character 2"):
        require_text("a\udc80", "it")
