"""The attacks by name: what each does, with how many connections, and what its tenant is allowed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from lab.benchmarks.attacks import floods, holds, messages
from lab.benchmarks.attacks.connection import Peer, Running
from lab.benchmarks.attacks.floods import Tally

Work = Callable[[Peer, Running, Tally], None]  # on one connection, until `Running` says no


@dataclass(frozen=True)
class Attack:
    """One way to spend another tenant's time, places or memory."""

    work: Work
    unit: str  # of the tally, whose rate is the attacker's
    does: str
    connections: int = 1
    limits: str = "max_sessions=2"  # of the attacker's line in the token file
    readers: int = 1  # of the victim
    front: bool = False  # a flood of streams, which the front has to stop
    quota: int = 0  # MB of text that the server keeps of the attacker; 0 = none
    before: Work | None = None  # what its tenant asks for in its own right, until the attack begins


def _refused(message: Callable[[], bytes], does: str) -> Attack:
    return Attack(partial(floods.refused, message), "messages", does, connections=4)


def _asked(count: int, message: Callable[[], bytes], does: str, limits: str = "max_sessions=2") -> Attack:
    return Attack(partial(holds.asked, count, message), "sequences", does, limits=limits)


_SENTENCE = partial(messages.short, max_tokens=48)

ATTACKS: Mapping[str, Attack] = {
    "empty turns": _refused(messages.empty_turns, "chats of 2,000,000 empty turns"),
    "million ids": _refused(messages.million_ids, "prompts of 1,000,000 ids"),
    "equal stop ids": Attack(
        partial(floods.held, messages.equal_stop_ids),
        "messages",
        "2^20 equal stop ids, 16 streams held",
        limits="",
    ),
    "resume token": _refused(messages.long_resume_token, "resume tokens of 4,000,000 bytes"),
    "tool description": _refused(messages.long_description, "tools described in 4,000,000 bytes"),
    "bad opens": Attack(
        partial(floods.refused, messages.bad_open),
        "messages",
        "small requests with a bad value",
        connections=4,
        front=True,
    ),
    "stale drafts": Attack(
        partial(floods.stale_drafts, 8),
        "drafts",
        "late drafts on 8 streams",
        limits="",
        before=partial(holds.sequences, 8),
    ),
    "wrong token": Attack(
        floods.wrong_tokens, "streams", "streams with a wrong token", connections=2, front=True
    ),
    "rapid resets": Attack(
        partial(floods.rapid_resets, bytes),
        "streams",
        "streams that are reset at once",
        connections=2,
        front=True,
    ),
    "resets of opens": Attack(
        partial(floods.rapid_resets, messages.opening),
        "streams",
        "sequences that are reset before their answer",
        connections=2,
        front=True,
    ),
    "left answers": _refused(messages.opening, "sequences that are left as soon as they have begun"),
    "left guided answers": replace(
        _refused(messages.guided, "the same, each with a schema of 2,000 properties"), limits=""
    ),
    "streams without Open": Attack(
        partial(holds.silent, 2_000), "streams", "20,000 streams that say nothing", connections=10, front=True
    ),
    "unread finished": Attack(
        partial(holds.unread, 500, messages.short),
        "streams",
        "1,500 answers of one token, unread",
        connections=3,
        front=True,
    ),
    "unread live": Attack(
        partial(holds.unread, 256, messages.opening), "streams", "256 answers, unread", limits=""
    ),
    "cancel after Failure": Attack(
        floods.failed, "streams", "sequences that fail, cancelled at once", connections=4
    ),
    "multipleOf": Attack(
        partial(holds.grammars, 6), "schemas", "six schemas with multipleOf 99999989", limits="max_sessions=8"
    ),
    "pace": Attack(
        holds.pace,
        "sequences",
        "two sequences that ask for 1,000,000 tokens/s each",
        connections=2,
        readers=16,
    ),
    "resumed texts": Attack(
        partial(holds.resumed_texts, 32), "texts", "32 long texts at a time under a known resume token"
    ),
    # The same questions of two tenants: the server keeps the text of one
    "answers": _asked(8, _SENTENCE, "answers of 48 tokens, eight at a time", "max_sessions=8"),
    "answers that are kept": replace(
        _asked(8, _SENTENCE, "the same, which the server keeps", "max_sessions=8 keep=1"), quota=1
    ),
}
