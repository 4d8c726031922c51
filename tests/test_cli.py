"""The command line: what it lists, how fast, which flags it makes, and how it fails."""

import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import opensled
from opensled.cli import main as cli
from opensled.cli.config import options
from opensled.cli.help_page import MOST
from opensled.core.errors import NotFound, OpenSledError, Overloaded, Unauthorized, Unreachable, UsageError
from opensled.models import models_command

# What `opensled --help` may take; a loaded machine gets room, the product's own bound is 150 ms.
HELP_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable], int]]:
    """Run `opensled models list` with another function behind it."""

    def run(function: Callable) -> int:
        monkeypatch.setattr(models_command, "list_models", function)
        return cli.main(["models", "list"])

    yield run


def raising(error: BaseException) -> Callable:
    def command(config: object) -> int:
        raise error

    return command


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"], ["--help-all"]])
def test_help_lists_every_verb(argv, capsys):
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and verb.summary in shown for name, verb in cli.VERBS.items())
    assert max(map(len, shown.splitlines())) <= 80


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"opensled {opensled.__version__}\n"


def help_of(name: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The page that a terminal of 80 columns gets."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit:
        cli.main([*name.split(), flag])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.endswith(f"example:\n  {cli.VERBS[name].example}\n")
    return shown


def flags_in(page: str) -> list[str]:
    """The first flag of each entry; a switch that is on may also be named by its opposite."""
    return re.findall(r"^  (--[a-z0-9-]+)", page.split("example:")[0], re.M)


@pytest.mark.parametrize("name", cli.VERBS)
def test_the_short_help_of_every_verb_is_short(name, capsys, monkeypatch):
    shown = help_of(name, "--help", capsys, monkeypatch)
    known = [item for item in options(cli.CONFIGS.get(name)) if item.flags and not item.positional]
    flags = flags_in(shown)
    assert len(flags) <= MOST and set(flags) <= {item.flag for item in known}
    assert len(flags) == len(known) or (len(flags) >= 5 and f"opensled {name} --help-all" in shown)


def test_the_short_help_of_a_device_has_what_its_owner_sets(capsys, monkeypatch):
    shown = help_of("edge", "--help", capsys, monkeypatch)
    assert {"--server", "--token-file", "--tls-ca", "--device-name", "--offline"} <= set(flags_in(shown))
    assert "These are 13 of " in shown, "the argument HOST among them"
    assert "--tls-ca" not in flags_in(help_of("chat", "--help", capsys, monkeypatch)), (
        "a class that they share"
    )


@pytest.mark.parametrize("name", cli.VERBS)
def test_the_long_help_of_every_verb_has_every_flag(name, capsys, monkeypatch):
    shown = help_of(name, "--help-all", capsys, monkeypatch)
    every = options(cli.CONFIGS.get(name))
    found = [item for item in every if not item.file_only]
    assert sorted(flags_in(shown)) == sorted(item.flag for item in found if not item.positional)
    rest = len(every) - len(found)
    assert (f"\n{rest} more are set in a configuration file: opensled config init\n" in shown) == (rest > 0)
    for item in found:
        assert item.metavar in shown if item.positional else item.variable in "".join(shown.split())
    assert all(f"\n{item.group}:\n" in shown for item in found if item.group)
    assert shown.count("\noptions:\n") == any(not item.group and not item.positional for item in found)


@pytest.mark.parametrize(("name", "most"), [("serve", 45), ("edge", 35), ("chat", 35)])
def test_a_command_line_has_no_more_flags(name, most):
    """What is set once and rarely belongs into a file."""
    assert len([item for item in options(cli.CONFIGS.get(name)) if not item.file_only]) <= most


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            "serve --tenant-sessions 8",
            "[limits] tenant-sessions = 8 (or by the variable OPENSLED_TENANT_SESSIONS)",
        ),
        ("serve --tenant-sessions=8 --model tiny", "[limits] tenant-sessions = 8 (or"),
        ("relay --shared-address", "[limits] shared-address = true (or"),
        ("serve --no-shared-address", "[limits] shared-address = false (or"),
        ("serve --rules match", '[serve] rules = "match" (or'),
        ("serve --rules", '[serve] rules = "NAMES" (or'),
        ("serve --max-step-tokens", "[serve] max-step-tokens = 512 (or"),
        ("edge --no-look-ahead", "[edge] look-ahead = false (or"),
        ("chat --repetition-penalty 1.5", "[chat] repetition-penalty = 1.5 (or"),
        ("profile calibrate --cache-dir here", '[profile.calibrate] cache-dir = "here" (or'),
    ],
)
def test_an_option_without_a_flag_is_said_to_be_in_the_file(argv, line, capsys):
    assert cli.main(argv.split()) == 2
    said = capsys.readouterr().err
    assert f" is set in the configuration file: {line}" in said and said.count("\n") == 1


def test_that_line_of_the_file_is_taken(tmp_path, capsys):
    (tmp_path / "opensled.toml").write_text("[limits]\ntenant-sessions = 8\n[serve]\nrules = 'match'\n")
    assert cli.main(["serve", "--model", "nowhere.gguf"]) == 3
    assert "opensled.toml of this folder sets rules, tenant_sessions\n" in capsys.readouterr().err
    assert cli.main(["models", "list"]) == 0, "other commands have the table"


def test_a_misspelt_flag_may_mean_a_key(capsys):
    assert cli.main(["serve", "--tenant-sesions", "8"]) == 2
    said = capsys.readouterr().err
    assert "no option --tenant-sesions; --tenant-sessions is set in the configuration file: [limits] " in said


@pytest.mark.parametrize("name", ["serve", "edge", "generate", "chat", "doctor", "plan", "bench serve"])
def test_long_verbs_have_named_groups(name):
    found = options(cli.CONFIGS.get(name))
    assert all(item.group for item in found) and len({item.group for item in found}) >= 4


def test_a_verbs_own_options_come_first(capsys, monkeypatch):
    flags = flags_in(help_of("generate", "--help", capsys, monkeypatch))
    assert flags.index("--image") < flags.index("--max-tokens") < flags.index("--server")


def test_help_may_be_a_verb(capsys):
    with pytest.raises(SystemExit):
        cli.main(["help", "models", "path"])
    assert "usage: opensled models path NAME" in capsys.readouterr().out
    assert cli.main(["help", "models"]) == 0
    assert "models path" in capsys.readouterr().out


def test_help_tells_which_switches_are_on(capsys, monkeypatch):
    short = " ".join(help_of("chat", "--help", capsys, monkeypatch).split())
    assert "--history, --no-history" in short and "next conversation (default on)" in short
    assert "--no-show-drafts" not in short
    complete = " ".join(help_of("chat", "--help-all", capsys, monkeypatch).split())
    assert "next conversation (default on; env OPENSLED_HISTORY)" in complete
    assert "--show-drafts, --no-show-drafts" in complete
    assert "by its origin: this device or the server (env" in complete


@pytest.mark.parametrize("columns", ["20", "60", "300"])
def test_help_fits_narrow_and_wide_terminals(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        cli.main(["top", "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= max(60, min(int(columns), 100))


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_exists_and_its_example_parses(name):
    argv = shlex.split(cli.VERBS[name].example.replace("\\\n", ""))[1 + len(name.split()) :]
    assert cli._parser(name, options(cli.CONFIGS.get(name))).parse_args(argv)
    assert callable(cli.RUNS.get(name))


@pytest.mark.parametrize("name", ["serve", "edge", "generate", "chat", "doctor"])
def test_what_logs_advise_is_a_flag(name):
    """opensled/process/logs.py: "texts of libraries: --log-level debug"."""
    parser = cli._parser(name, options(cli.CONFIGS.get(name)))
    assert parser.parse_args(["--log-level", "debug", "--log-json"]).log_json


def test_a_group_lists_its_verbs(capsys):
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "models path" in shown
    assert "serve" not in shown.replace("one server", "")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serv"], "no command 'serv'; did you mean: opensled serve"),
        (
            ["frobnicate"],
            "serve, pair, kept, relay, edge, service, generate, chat, run, top, selftest, doctor, demo, plan, bench, "
            "quality, profile, draft-tables, train-head, train-pivots, adapt, drafts, pull, config, models",
        ),
        (["models", "lst"], "did you mean: opensled models list"),
        (["models", "path"], "the following arguments are required: NAME (see: opensled models path --help)"),
        (["serve", "--modle", "x"], "no option --modle; did you mean --model? (see: opensled serve --help)"),
        (
            ["generate", "Hi", "there"],
            "'there' is one argument too many; give one TEXT, in quotes where it has spaces (see: opensled generate",
        ),
        (["generate", "--prompt", "Hi"], "no option --prompt (see: opensled generate --help)"),
        (
            ["doctor", "hub:7411"],
            "'hub:7411' follows no option; write it behind one, such as --server HOST:PORT",
        ),
        (["config", "init", "x"], "'x' follows no option (see: opensled config init --help)"),
        (["serve", "--model"], "argument --model: expected one argument"),
        (["serve", "--max-sessions", "0"], "--max-sessions: 0 is out of range: it must be at least 1"),
        (["serve", "--max-draft", "0"], "--max-draft: 0 is out of range: it must be at least 1"),
        (["relay", "--bound", "2"], "--bound: 2.0 is out of range: it must be from 0 to 1"),
        (["serve", "--dtype", "int3"], "--dtype: 'int3' is not one of auto, float64"),
        (
            ["edge", "--http", "8411:"],
            "--http: '8411:' is not an address; write HOST:PORT, a host or a port, such as 127.0.0.1:8411",
        ),
        (["edge", "--server", "http://hub:7411"], "--server: 'http://hub:7411' is not an address"),
        (["generate", "--max-tokens", "0"], "it must be from 1 to 2147483647"),
        (["serve", "tiny", "--model", "smollm2"], "tiny and smollm2; give one of them"),
        (["serve", "--port", "80"], "no option --port; did you mean --listen HOST:PORT or --http"),
        (["serve", "--server-drafter", "lokup"], "choose from auto, none, lookup, cacheback"),
        (["serve", "--policy", "gooput"], "did you mean goodput?"),
        (["serve", "--rules", "match,ratoi"], "--rules: unknown rule 'ratoi'"),
        (["serve", "--loose-rules", "flyy"], "did you mean fly?"),
        (["serve", "--engine", "llamacp"], "did you mean llamacpp?"),
        (["edge", "--drafter", "chain:lookup,lamacpp"], "--drafter: unknown drafter 'lamacpp'"),
        (["edge", "--stop", "fixd"], "did you mean fixed?"),
        (["run", "tiny", "--drafter", "lookpu"], "did you mean lookup?"),
        (["chat", "--offline", "local-onyl"], "did you mean local-only?"),
    ],
)
def test_usage_errors(argv, said, capsys):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["serve", "tiyn"], "tiny"),
        (["serve", "--model", "tiyn"], "tiny"),
        (["serve", "--draft-model", "tiny-drat"], "tiny-draft"),
        (["edge", "--draft-model", "tiny-darft"], "tiny-draft"),
        (["run", "tiny", "--draft-model", "tiny-darft"], "tiny-draft"),
        (["run", "--model", "smolm2"], "smollm2"),
        (["relay", "tiny-hubb"], "tiny-hub"),
        (["profile", "show", "rtx-4091"], "rtx-4090"),
    ],
)
def test_a_model_that_is_spelt_wrong_is_told_before_anything_loads(argv, near, capsys, monkeypatch):
    monkeypatch.setenv("OPENSLED_NO_CONFIG", "1")
    assert cli.main(argv) == 3
    said = capsys.readouterr().err
    assert f"did you mean {near}?" in said and "starting" not in said and "loading" not in said


def test_a_variable_that_no_command_reads_is_told_once(capsys, monkeypatch):
    monkeypatch.setenv("OPENSLED_MODLE", "tiny")
    monkeypatch.setenv("OPENSLED_DRAFTER", "lookup")  # of other commands
    assert cli.main(["models", "path", "tiny-draft"]) == 0
    said = capsys.readouterr().err
    assert said.count("OPENSLED_MODLE") == 1 and "did you mean OPENSLED_MODEL?" in said
    assert "OPENSLED_DRAFTER" not in said


@pytest.mark.parametrize(
    "argv",
    [["tiny-hub"], ["--model", "tiny-hub"], ["--context", "9", "tiny-hub"], ["tiny-hub", "--context", "9"]],
)
def test_a_model_may_stand_without_its_flag(argv):
    assert cli.parse_flags("serve", argv)["model"] == "tiny-hub"
    assert "model" not in cli.parse_flags("serve", ["--context", "9"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OpenSledError("two\nlines"), 1),
        (UsageError("senseless"), 2),
        (NotFound("gone"), 3),
        (Unauthorized("no token"), 4),
        (Unreachable("nobody there"), 5),
        (Overloaded("later"), 6),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error, code, run_with, capsys):
    assert run_with(raising(error)) == code
    assert capsys.readouterr().err == "error: " + str(error).replace("\n", " ") + "\n"


def test_interruption_is_quiet(run_with, capsys):
    assert run_with(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


def test_a_gone_reader_is_quiet():
    line = f"{sys.executable} -m opensled models list --json | true"
    script = f"for i in 1 2 3; do {line}; done"
    run = subprocess.run(["bash", "-c", script], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert run.stderr == ""


def test_a_variable_reaches_the_command_and_a_flag_turns_its_switch_off(run_with, monkeypatch):
    seen = []
    monkeypatch.setenv("OPENSLED_JSON", "yes")
    assert run_with(lambda config: seen.append(config) or 0) == 0
    assert cli.main(["models", "list", "--no-json"]) == 0
    assert [config.json for config in seen] == [True, False]


def test_the_file_is_read(tmp_path, capsys):
    (tmp_path / "opensled.toml").write_text("[serve]\nmodel = 'tiny'\n[models.list]\njson = true\n")
    assert cli.main(["models", "list"]) == 0
    assert capsys.readouterr().out.startswith("{")
    (tmp_path / "opensled.toml").write_text("[models.list]\njsno = true\n")
    assert cli.main(["models", "list"]) == 2
    assert "opensled.toml: unknown key 'jsno' in [models.list]" in capsys.readouterr().err


def test_models_path(capsys):
    assert cli.main(["models", "path", "tiny-draft"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_dir()
    assert cli.main(["models", "path", "huge"]) == 3
    assert "no model 'huge'" in capsys.readouterr().err


_ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timed
def test_help_is_quick_and_light():
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "opensled", "--help"], cwd=_ROOT, capture_output=True, check=True
        )
        return time.perf_counter() - start

    assert statistics.median(seconds() for _ in range(5)) < HELP_SECONDS


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from opensled.cli.main import main; main(['--help']);"
        "print([name for name in ('numpy', 'grpc', 'tomllib', 'edge_client', 'asyncio') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.endswith("[]\n")
