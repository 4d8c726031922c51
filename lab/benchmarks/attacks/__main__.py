"""What attacks on availability do to another tenant: a victim that reads beside each of them.

    python -m lab.benchmarks.attacks [--only NAME,...] [--front] [--server-path CHECKOUT] [--out FOLDER]

Server and victim have core 0, the attackers core 1. Every attack meets a new server and is measured before, during and
after it. With --front, server and victim are behind the HAProxy of deploy/front, on the attackers' core.
"""

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from lab.benchmarks.attacks.document import document, table
from lab.benchmarks.attacks.kinds import ATTACKS
from lab.benchmarks.attacks.measured import ATTACK_CORE, SERVER_CORE, Outcome, Windows, measure, reference
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, write_json
from lab.testbed.provenance import provenance
from opensled.core.errors import UsageError

HERE = Path(__file__).resolve().parents[3]
QUICK = ("empty turns", "wrong token")


def _parser() -> ArgumentParser:
    parser = parser_of("attacks", __doc__)
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(ATTACKS)}; default: all")
    parser.add_argument(
        "--front", action="store_true", help="through HAProxy; default attacks: floods of streams"
    )
    parser.add_argument(
        "--front-core", type=int, choices=(SERVER_CORE, ATTACK_CORE), default=ATTACK_CORE, help="of HAProxy"
    )
    parser.add_argument(
        "--server-path",
        type=Path,
        default=HERE,
        metavar="CHECKOUT",
        help="sources of the server; default: this",
    )
    parser.add_argument(
        "--server-flags",
        default="",
        metavar="FLAGS",
        help="more flags of the server, in one word: '--a 1 --b'",
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="before and during an attack; default %(default)g"
    )
    parser.add_argument("--repeats", type=int, default=1, help="of each attack; default %(default)d")
    add_quick_and_out(parser)
    return parser


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    return exit_code(lambda: _measure_all(arguments))


def _measure_all(arguments: Namespace) -> int:
    names = _names(arguments)
    if len(os.sched_getaffinity(0)) < 2:
        raise UsageError("attackers need a core beside the server's: run this on two cores or more")
    windows = Windows(2.0, 2.0, 2.0) if arguments.quick else Windows(arguments.seconds, arguments.seconds)
    origin = provenance()
    text, front = reference(arguments.server_path), arguments.front_core if arguments.front else None
    flags = tuple(shlex.split(arguments.server_flags))
    outcomes: list[Outcome] = []
    for name in [*names] * arguments.repeats:  # in turns
        outcomes.append(measure(name, arguments.server_path, windows, text, front, flags))
        say(table(outcomes[-1:])[-1])
    print("\n".join(table(outcomes)), flush=True)
    if out := folder_of(arguments):
        name = "attacks_front" if arguments.front else "attacks"
        write_json(
            out / f"{name}.json", document(name, outcomes, windows, arguments.server_path, front, origin)
        )
    return 0


def _names(arguments: Namespace) -> Sequence[str]:
    """The attacks asked for. Raises UsageError."""
    if arguments.only:
        names = [name.strip() for name in arguments.only.split(",")]
        if unknown := [name for name in names if name not in ATTACKS]:
            raise UsageError(f"unknown attack {unknown[0]!r}; choose from {', '.join(ATTACKS)}")
        return names
    if arguments.quick:
        return QUICK
    return [name for name, attack in ATTACKS.items() if attack.front or not arguments.front]


if __name__ == "__main__":
    sys.exit(main())
