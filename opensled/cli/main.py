"""The command line: finds the verb, resolves its configuration, runs it. Heavy modules are imported only then."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import opensled
from opensled.cli.colour import prepare_streams, require_utf8
from opensled.cli.verbs import VERBS
from opensled.core.errors import INTERRUPTED, OpenSledError, UsageError
from opensled.core.suggestion import did_you_mean, nearest
from opensled.process import distribution
from opensled.process.registry import Registry, remedy_of

CONFIGS = Registry("command", {name: verb.config for name, verb in VERBS.items()})
RUNS = Registry("command", {name: verb.run for name, verb in VERBS.items()})

HEADER = """\
usage: opensled COMMAND [OPTION...]

Speculative LLM decoding from the edge: devices draft, one server verifies,
the text stays exact.
"""

START = """\
Start with `opensled run tiny` or `opensled run smollm2` (downloads 98 MB once)
to chat with a model on this machine."""
DEMO = " `opensled demo` shows four devices."

FOOTER = """\
opensled COMMAND --help shows the most important options, --help-all shows all.
An option --name VALUE can also be set by the environment (OPENSLED_NAME), by
./opensled.toml or by ~/.config/opensled/config.toml; this is the order of
precedence (opensled config init prints a sample file).

exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 auth, 5 unreachable,
            6 overloaded, 130 interrupted (Ctrl-C)
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; an error that a user can cause becomes one line on stderr and an exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its log lines repeat what our errors say
    # The system's resolver: gRPC's own one knows no names in .local, which homes use (nss-mdns, systemd-resolved).
    os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
    # Threads of a step wait 70 us for the slowest, then sleep: libgomp's own milliseconds would be taken from it where
    # it shares its core (opensled/models/step_threads.py). A library reads it once.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if argv is None:
        require_utf8()
        distribution.find_own_first()
        if os.getpid() == 1:  # of a container: there the kernel drops a signal without a handler
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    prepare_streams()
    try:
        code = run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # what cannot be written is an error now, not after the last word
        return code
    except OpenSledError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        _complain(f"{error}{remedy_of(error)}")
        return 1
    except BrokenPipeError:
        # The reader of our output is gone (`opensled ... | head`): print nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        _complain(named + (error.strerror or str(error)))
        return 1


def _complain(message: str) -> None:
    from opensled.process import logs

    logs.last_word(message)


def run(argv: list[str]) -> int:
    """Like `main`, but errors are raised."""
    distribution.require_one()
    first = argv[0] if argv else "--help"
    if first == "help" and len(argv) > 1:
        return run([*argv[1:], "--help"])
    if first in ("-h", "--help", "--help-all", "help"):
        print(overview(""))
        return 0
    if first == "--version":
        package = distribution.name()
        print(f"opensled {opensled.__version__}{'' if package == distribution.WHOLE else f' ({package})'}")
        return 0
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in VERBS:
            distribution.require(name, VERBS[name].modules)
            return _run_verb(name, argv[words:])
    return _group(first, argv[1:])


def _group(name: str, rest: list[str]) -> int:
    """A first word that needs a second one, such as `models`."""
    choices = [verb.removeprefix(f"{name} ") for verb in VERBS if verb.startswith(f"{name} ")]
    if not choices:
        raise UsageError(_unknown(name, list(dict.fromkeys(verb.split()[0] for verb in VERBS))))
    verbs = [VERBS[f"{name} {choice}"] for choice in choices]
    if not any(verb.here for verb in verbs):
        distribution.require(name, verbs[0].modules)
    if not rest or rest[0] in ("-h", "--help", "--help-all"):
        print(overview(f"{name} "))
        return 0
    raise UsageError(_unknown(rest[0], choices, f"{name} "))


def _unknown(word: str, choices: list[str], prefix: str = "") -> str:
    near = nearest(word, choices)
    hint = f"did you mean: opensled {prefix}{near}" if near else f"choose from {', '.join(choices)}"
    return f"no command {prefix + word!r}; {hint} (see: opensled {prefix}--help)"


def overview(prefix: str) -> str:
    """The list of the verbs that start with `prefix`."""
    shown = {name: verb.summary for name, verb in VERBS.items() if name.startswith(prefix) and verb.here}
    width = max(map(len, shown)) + 2
    lines = [f"  {name:{width}}{summary}" for name, summary in shown.items()]
    absent = [name for name, verb in VERBS.items() if name.startswith(prefix) and not verb.here]
    start = [f"{START}{DEMO if 'demo' in shown else ''}\n"] if "run" in shown else []
    return "\n".join(
        [HEADER, *start, "commands:", *lines, *distribution.absence(absent), "", FOOTER.rstrip()]
    )


def _run_verb(name: str, argv: list[str]) -> int:
    from opensled.cli.config import FOLDER_FILE
    from opensled.cli.config_file import TABLES
    from opensled.cli.config_layers import merge_layers
    from opensled.process import logs

    kind, flags = CONFIGS.get(name), parse_flags(name, argv)
    sections = {verb.split()[0] for verb in VERBS} | set(TABLES)
    values, from_folder = merge_layers(kind, name.replace(" ", "."), flags, sections=sections, keys=_keys)
    resolved = kind(**values)
    logs.configure(getattr(resolved, "log_level", "warning"), getattr(resolved, "log_json", False))
    _tell_unknown_variables(kind)
    if from_folder:
        logs.announce(f"{FOLDER_FILE} of this folder sets {', '.join(sorted(from_folder))}")
    command: Callable[[Any], int] = RUNS.get(name)
    if not getattr(resolved, "log_json", False):
        return command(resolved)
    from opensled.process import foreign_lines

    with foreign_lines.capture():
        return command(resolved)


def _tell_unknown_variables(kind: type) -> None:
    """One line of the variables that no command reads."""
    from opensled.cli.config import FOREIGN, SWITCHES, options

    named = {name for name in os.environ if name.startswith("OPENSLED_") and not FOREIGN.fullmatch(name)}
    ours = named - {*SWITCHES}
    if not ours - {item.variable for item in options(kind)}:
        return  # else the options of all commands are imported
    known = [f"OPENSLED_{key.upper()}" for key in _keys()]
    from opensled.process import logs

    for name in sorted(ours - {*known}):
        logs.announce(f"no command reads the variable {name}{did_you_mean(name, [*known, *SWITCHES])}")


def parse_flags(name: str, argv: list[str]) -> dict[str, Any]:
    """The given flags of a verb, by field name; raises UsageError."""
    from opensled.cli import config

    found = vars(_parser(name, config.options(CONFIGS.get(name))).parse_args(argv))
    return {key: "\n".join(value) if isinstance(value, list) else value for key, value in found.items()}


def _keys() -> list[str]:
    """The keys of all verbs of this copy; imports the configuration of each."""
    from opensled.cli import config

    found = [name for name, verb in VERBS.items() if verb.here]
    return sorted({item.name for name in found for item in config.options(CONFIGS.get(name))})


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print and exit. `rest`: name for all that follows `--`, "" = not taken."""

    rest = ""
    twice = ""  # the error of one value with its flag and another one without it, which may be that of an unknown flag

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, which would mix up what follows `--` with arguments before it."""
        end = args.index("--") if self.rest and "--" in args else len(args)
        self.given = dict[bool, str]()  # the value that may stand without its flag: by whether it does
        found, extra = super().parse_known_args(args[:end], namespace)
        if self.twice and not extra:
            raise UsageError(self.twice)
        if end < len(args):
            setattr(found, self.rest, tuple(args[end + 1 :]))
        return found, extra

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._stray(message) or message} (see: {self.prog} --help)")

    def _stray(self, message: str) -> str:
        """The error of a word that is no option, or of a value without one; "" for other errors."""
        if message.endswith("ignored explicit argument 'f'"):
            return "no option -hf; give the model's name alone: ORG/REPO:QUANT"
        if not message.startswith("unrecognized arguments: "):
            return ""
        word = message.removeprefix("unrecognized arguments: ").split()[0]
        taken = next((action.metavar for action in self._actions if not action.option_strings), None)
        if not word.startswith("-") and taken:
            return f"{word!r} is one argument too many; give one {taken}, in quotes where it has spaces"
        if not word.startswith("-"):
            return f"{word!r} follows no option{self._such_as()}"
        flag = word.partition("=")[0]
        near = self._option_string_actions.get(nearest(flag, self._option_string_actions) or "")
        if isinstance(near, _InFile):
            return f"no option {flag}; {near.remedy()}"
        rest = "; flags of the service follow `--`" if self.rest else self._of_address(flag)
        return f"no option {flag}{did_you_mean(flag, self._option_string_actions) or rest}"

    def _of_address(self, flag: str) -> str:
        """The options with an address, for the flag of a part of one, such as --port."""
        part = flag.lstrip("-").upper()
        addresses = [each for each in self._actions if ":" in str(each.metavar) and each.option_strings]
        takes = [each for each in addresses if part in re.findall("[A-Z]+", str(each.metavar))]
        named = " or ".join(f"{each.option_strings[0]} {each.metavar}" for each in takes[:3])
        return f"; did you mean {named}?" if named else ""

    def _such_as(self) -> str:
        """An option of this command's example that takes a value."""
        words = VERBS[self.prog.removeprefix("opensled ")].example.split()
        named = [self._option_string_actions[word] for word in words if word in self._option_string_actions]
        action = next((each for each in named if each.nargs != 0), None)
        return f"; write it behind one, such as {action.option_strings[0]} {action.metavar}" if action else ""


class _ShowHelp(argparse.Action):
    """Prints the help, `const`, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(self.const())
        parser.exit()


def _parser(name: str, options: list[Any]) -> _Parser:
    from opensled.cli.help_page import help_page

    parser = _Parser(
        prog=f"opensled {name}", add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    page = partial(help_page, name, VERBS[name].summary, VERBS[name].example, options)
    parser.add_argument("-h", "--help", action=_ShowHelp, nargs=0, const=page)
    parser.add_argument("--help-all", action=_ShowHelp, nargs=0, const=partial(page, everything=True))
    for item in options:
        _add(parser, item)
    return parser


class _Once(argparse.Action):
    """Of a value that may stand with its flag or without it; tells the parser of two that differ."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        flag: str | None = None,
    ) -> None:
        assert isinstance(parser, _Parser)
        parser.given[flag is None] = values  # of a flag that is repeated the last value counts
        if len(set(parser.given.values())) > 1:
            parser.twice = f"{self.metavar}: {' and '.join(parser.given.values())}; give one of them"
        setattr(namespace, self.dest, values)


class _InFile(argparse.Action):
    """Raises UsageError for an option that has no flag; `table` of the file has its key."""

    item: Any
    table: str

    def __call__(self, _parser: object, _namespace: object, value: Any, flag: str | None = None) -> NoReturn:
        if self.item.kind is bool and value is None:
            value = "false" if str(flag).startswith("--no-") else "true"
        raise UsageError(self.remedy(value))

    def remedy(self, value: str | None = None) -> str:
        """Where the option is set, to `value`."""
        from opensled.cli.config_command import line_of

        line = line_of(self.item, None if value is None else self.item.parse(value, self.item.flag))
        return (
            f"{self.item.flag} is set in the configuration file: [{self.table}] {line} "
            f"(or by the variable {self.item.variable})"
        )


def _add(parser: _Parser, item: Any) -> None:
    """A flag without its own default: only given flags override the other layers."""
    if item.file_only:
        words = (item.flag, f"--no-{item.flag[2:]}") if item.kind is bool else (item.flag,)
        table = item.table or parser.prog.removeprefix("opensled ").replace(" ", ".")
        action = parser.add_argument(*words, action=_InFile, nargs="?")
        assert isinstance(action, _InFile)
        action.item, action.table = item, table
    elif item.rest:
        parser.rest = item.name
    elif item.positional:
        nargs = "?" if item.optional else None
        parser.add_argument(
            item.name,
            metavar=item.metavar,
            nargs=nargs,
            default=argparse.SUPPRESS,
            type=lambda text: item.parse(text, item.metavar),
        )
    elif item.kind is bool:
        parser.add_argument(item.flag, action=argparse.BooleanOptionalAction)
    else:
        kind: Any = "append" if item.several else _Once if item.bare else "store"
        parser.add_argument(
            item.flag, action=kind, type=lambda text: item.parse(text, item.flag), metavar=item.metavar
        )
    if item.bare:
        parser.add_argument(
            item.name, action=_Once, nargs="?", metavar=item.metavar, default=argparse.SUPPRESS,
            type=lambda text: item.parse(text, item.metavar),
        )  # fmt: skip
