"""The options of a program that say which drafts it takes: a recorded pair's, or made-up ones."""

from argparse import ArgumentParser, Namespace

from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.task_acceptance import TASKS, rates_of
from lab.testbed.recordings import PAIRS, check_pair


def add_drafts(parser: ArgumentParser, pair: str) -> None:
    """`pair`: the default."""
    parser.add_argument("--pair", default=pair, choices=PAIRS, help="whose drafts; default %(default)s")
    parser.add_argument(
        "--acceptance",
        default="",
        metavar="A",
        help=f"of made-up drafts: a number, or a name: {', '.join(TASKS)}",
    )


def drafts_of(arguments: Namespace) -> RecordedDrafts:
    """Raises UsageError for a pair without a recording, and for no acceptance."""
    check_pair(arguments.pair)
    rates_of(arguments.acceptance)
    return RecordedDrafts(arguments.pair, arguments.acceptance)
