"""What the demo says about its devices."""

import pytest

from lab.testbed.client import StreamedReply
from lab.testbed.demo_device import DemoDevice, why_low


def device(drafter, accepted):
    reply = StreamedReply(usage={"opensled": {"drafted": 100, "accepted": accepted}})
    return DemoDevice("hub", drafter, [], [reply])


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"llamacpp": 60, "lookup": 50}, []),
        ({"llamacpp": 20, "lookup": 60}, ["blocks are never cut short"]),
        ({"llamacpp": 60, "lookup": 9}, ["lookup has no draft model"]),
        ({"llamacpp": 20, "lookup": 9}, ["blocks are never cut short", "lookup has no draft model"]),
    ],
)
def test_one_line_says_why_accepted_is_low(shares, said):
    line = why_low([device(*share) for share in shares.items()])
    assert bool(line) == bool(said) and "\n" not in line
    assert all(words in line for words in said) and line.count(";") == max(0, len(said) - 1)


def test_a_device_without_drafts_is_not_low():
    assert why_low([DemoDevice("hub", "none", [])]) == ""
