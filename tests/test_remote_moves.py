"""A sequence whose server sends it elsewhere, dies or is full: what a device says, to whom and when. No real time."""

import asyncio
from dataclasses import replace
from itertools import chain

import pytest

from edge_client.link.moves import MAX_MOVES, destination
from edge_client.link.remote import MAX_FRUITLESS, RemoteSession, ReopeningPace, RetryPolicy
from opensled.core.errors import Overloaded, ProtocolError, Unreachable
from opensled.core.messages import (
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    Limits,
    Moved,
    Open,
    Opened,
    SamplingParams,
    Verdict,
)
from opensled.core.turns import hear
from tests.by_hand import HandLoop

PROMPT, KEY = (3, 1, 4), bytes(16)
DEAD = None  # instead of a script: nobody answers


class World:
    """Addresses, and what is said there: a script for each stream that is started; the last one again and again."""

    def __init__(self, **scripts):
        """`home`: the address asked first; `b` and others: addresses of those names."""
        self.loop = HandLoop()
        self.scripts = {"" if name == "home" else name: list(script) for name, script in scripts.items()}
        self.started: list[tuple[str, float]] = []  # address and time of each stream
        self.sent: list[list] = []
        self.open_streams = 0

    def connect(self, address=""):
        self.started.append((address, self.loop.time()))
        self.sent.append([])
        scripts = self.scripts[address]
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        self.open_streams += 1
        return Stream(self, script, self.sent[-1])

    def run(self, work):
        """The result of `work`, however long it takes in this world's time."""
        asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(work)
        try:
            self.loop.settle()
            while not task.done():
                self.loop.advance(0.01)
                assert self.loop.now < 1000, "nothing happens any more"
            return task.result()
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


class Stream:
    def __init__(self, world, script, sent):
        self.world, self.script, self.sent = world, script, sent
        self.replies = iter(script or ())
        self.closed = False

    async def send(self, message):
        if self.script is DEAD:
            raise Unreachable("nobody there")
        self.sent.append(message)

    async def receive(self):
        reply = next(self.replies, None)
        if reply is None:
            raise Unreachable("lost")
        return reply

    async def close(self, linger=0.0):
        self.world.open_streams -= not self.closed
        self.closed = True


def opened(token=b"t", hint=None, max_draft=8) -> Opened:
    return Opened(PROMPT, KEY, token, Limits(max_draft, 100), hint)


async def told(world, verdicts, patience=RetryPolicy(), draft=None) -> RemoteSession:
    """A session after so many verdicts; `draft` is sent after the first one."""
    session = RemoteSession(world.connect, Open(PROMPT, SamplingParams(max_tokens=50)), patience)
    await session.open()
    for number in range(verdicts):
        hear(await session.next_verdict(), session.truth, session.turn)
        if draft and not number:
            await session.submit(draft)
    return session


def places(world):
    return [address for address, _ in world.started]


def test_a_sequence_moves_in_mid_answer_with_all_it_holds_and_without_a_pause():
    draft = Draft(1, DraftBlock(4, (DraftToken(9), DraftToken(8))), 0.25)
    before = [opened(hint=3), Verdict(3, (7,), hint=2), Moved("b:1", b"ticket")]
    world = World(home=[before], **{"b:1": [[opened(b"mine", max_draft=1), Verdict(4, (9,), 1, 1)]]})
    session = world.run(told(world, 2, draft=draft))
    again, resent = world.sent[1]
    assert (again.prompt, again.committed, again.noise_key, again.resume_token) == (
        PROMPT,
        (7,),
        KEY,
        b"ticket",
    )
    assert resent.block.ids == (9,) and resent.counter == 1, "the new server takes one token only"
    assert session.truth.generated == (7, 9) and session.reopened == 1
    assert session.turn.hint is None, "what one server hinted at says nothing of the next"
    assert world.loop.now == 0 and world.open_streams == 1


def test_a_tree_goes_to_a_server_without_trees_as_its_first_branch():
    tree = DraftBlock(4, (DraftToken(9), DraftToken(8), DraftToken(7)), (-1, -1, 0))
    before = [replace(opened(), limits=Limits(8, 100, 16)), Verdict(3, (7,)), Moved("b:1")]
    world = World(home=[before], **{"b:1": [[opened(), Verdict(4, (9,), 1, 1)]]})
    world.run(told(world, 2, draft=Draft(1, tree)))
    (_, tree_sent), (_, chain_sent) = world.sent
    assert tree_sent.block == tree
    assert chain_sent.block == DraftBlock(4, (DraftToken(9), DraftToken(7)))


def test_without_address_and_token_it_goes_where_it_asked_first_with_the_token_it_has():
    world = World(
        home=[[Moved("b:1")], [Moved("c:1", b"new")]],
        **{"b:1": [[opened(b"first"), Verdict(3, (7,)), Moved()]], "c:1": [[opened(), Verdict(4, (8,))]]},
    )
    session = world.run(told(world, 2))
    assert places(world) == ["", "b:1", "", "c:1"] and session.truth.generated == (7, 8)
    assert world.open_streams == session.reopened == 1, "before its first word it was only led on"
    assert [sent[0].resume_token for sent in world.sent] == [b"", b"", b"first", b"new"]


def test_a_lost_stream_is_opened_again_at_once_in_two_round_trips():
    """To where the device asks first, and from there to the server that has room."""
    lost = [opened(), Verdict(3, (7,))]
    world = World(
        home=[[Moved("b:1", b"x")], [Moved("c:1", b"y")]],
        **{"b:1": [lost], "c:1": [[opened(), Verdict(4, (8,))]]},
    )
    world.run(told(world, 2))
    assert places(world)[2:] == ["", "c:1"] and world.loop.now == 0


def test_when_nobody_is_there_it_goes_back_to_where_it_asked_first_at_once():
    before = [opened(), Verdict(3, (7,)), Moved("b:1")]
    world = World(home=[before, [opened(), Verdict(4, (8,))]], **{"b:1": [DEAD]})
    world.run(told(world, 2))
    assert places(world) == ["", "b:1", ""] and world.loop.now == 0


def test_retries_come_less_and_less_often():
    patience = RetryPolicy(first_retry=0.1, slowest_retry=0.4, give_up=50.0)
    world = World(home=[[opened(), Verdict(3, (7,))], *[DEAD] * 5, [opened(), Verdict(4, (8,))]])
    world.run(told(world, 2, patience))
    times = [time for _, time in world.started[1:]]
    assert times == pytest.approx([0, 0.1, 0.3, 0.7, 1.1, 1.5], abs=0.011)


def test_who_is_sent_around_in_circles_gives_up_in_time():
    world = World(home=[[Moved("b:1")]], **{"b:1": [[Moved("b:1")]]})
    with pytest.raises(Unreachable, match=f"{MAX_MOVES} servers in a row"):
        world.run(told(world, 0, RetryPolicy(first_open=1.0)))
    assert world.open_streams == 0 and len(world.started) < 40 and world.loop.now <= 1.0


# -- a server without room ------------------------------------------------------------------------------------


def full(seconds) -> list[Failure]:
    return [Failure("overloaded", "full", retry_after=seconds)]


def test_a_full_server_is_asked_again_when_it_says():
    world = World(home=[full(0.8), [opened()]])
    world.run(told(world, 0, RetryPolicy(first_open=1.5)))
    assert 0.8 <= world.started[1][1] <= 0.8 * 1.25 + 0.02


@pytest.mark.parametrize("patience", [RetryPolicy(first_open=1.5), RetryPolicy(first_open=0)])
def test_a_reader_is_told_at_once_that_there_will_be_no_room_in_time(patience):
    world = World(home=[full(5.0)])
    with pytest.raises(Overloaded) as caught:
        world.run(told(world, 0, patience))
    assert world.loop.now == 0 and caught.value.retry_after == 5.0


def test_a_server_that_is_full_for_long_is_not_asked_all_the_time():
    world = World(home=[full(0)])
    with pytest.raises(Overloaded):
        world.run(told(world, 0, RetryPolicy(first_open=1.5)))
    assert 3 <= len(world.started) <= 8 and world.open_streams == 0


# -- verdicts and drafts that are not there -------------------------------------------------------------------


def test_at_a_gap_it_reopens_with_what_it_has_however_much_is_said_after():
    rest = (Verdict(at, (9,)) for at in range(5, 50))
    world = World(home=[[opened(b"mine"), Verdict(3, (7,))], [opened(), Verdict(4, (8, 9, 9))]])
    world.scripts[""][0] = chain(world.scripts[""][0], rest)
    session = world.run(told(world, 2))
    again = world.sent[1][0]
    assert (again.committed, again.resume_token) == ((7,), b"mine")
    assert session.truth.generated == (7, 8, 9, 9) and session.reopened == 1 and world.open_streams == 1
    assert next(rest).base == 6, "nothing more was read there"


def test_a_server_that_always_leaves_gaps_is_not_asked_all_the_time():
    world = World(home=[*[[opened(), Verdict(4, (9,))]] * 20, [opened(), Verdict(3, (7,))]])
    world.run(told(world, 1, RetryPolicy(first_retry=0.05)))
    assert len(world.started) == 21 and world.loop.now >= 1.0


@pytest.mark.parametrize(("ids", "sent_again"), [((9, 8), 1), ((), 0)])
def test_only_a_draft_that_somebody_will_answer_is_sent_again(ids, sent_again):
    draft = Draft(1, DraftBlock(4, tuple(DraftToken(id) for id in ids)))
    world = World(home=[[opened(), Verdict(3, (7,))], [opened(), Verdict(4, (8,))]])
    world.run(told(world, 2, draft=draft))
    assert world.sent[0][1:] == [draft] and world.sent[1][1:] == [draft] * sent_again


# -- hints ----------------------------------------------------------------------------------------------------


def test_the_newest_hint_counts_and_a_repeated_verdict_has_none():
    verdicts = [
        Verdict(3, (7,), hint=0),
        Verdict(4, (8,), hint=5),
        Verdict(3, (7,), hint=0),  # late
        Verdict(5, (9,)),  # says nothing
        Verdict(4, (8, 9), hint=2),  # the same tokens again, and news
    ]
    world, hints = World(home=[[opened(hint=6), *verdicts]]), []

    async def read():
        session = await told(world, 0)
        hints.append(session.turn.hint)
        for _ in verdicts:
            hear(await session.next_verdict(), session.truth, session.turn)
            hints.append(session.turn.hint)

    world.run(read())
    assert hints == [6, 0, 5, 5, 5, 2]


# -- addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "home", "goes_to"),
    [
        ("b:1", "a:1", "b:1"),
        ("10.0.0.2:7411", "hub.example:7411", "10.0.0.2:7411"),
        ("[fd00::2]:7411", "hub.example:7411", "[fd00::2]:7411"),
        ("127.0.0.1:2", "127.0.0.1:1", "127.0.0.1:2"),
        ("10.0.0.2:1", "localhost:1", "10.0.0.2:1"),
        ("127.0.0.1:2", "LocalHost:1", "127.0.0.1:2"),
        ("mylocalhost:2", "hub.example:1", "mylocalhost:2"),
        ("a:1", "a:1", ""),
    ],
)
def test_where_a_device_goes(address, home, goes_to):
    assert destination(address, home, secret_in_clear=False) == goes_to


NO_ADDRESSES = (
    "b", "b:0", "b:x", ":1", "unix:/run/x:80", "ipv4:10.0.0.1,10.0.0.2:80", "dns:///b:1", "user@b:1", "b c:1",
    "[::g]:1", "1.2.3:4", "-b:1", "b:99999", "é:1", "%:1", "b:1\n",
)  # fmt: skip


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_no_address(address):
    with pytest.raises(ProtocolError, match="not HOST:PORT"):
        destination(address, "hub.example:7411", secret_in_clear=False)


OWN = (
    "127.0.0.1", "localhost", "[::1]", "127.1.2.3", "LocalHost", "localhost.", "a.localhost", "ip6-localhost",
    "localhost.localdomain", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0x7f.1", "0x7f000001",
    "[::1%lo]",
)  # fmt: skip


@pytest.mark.parametrize("address", [f"{host}:22" for host in OWN])
def test_a_server_elsewhere_sends_nobody_to_programs_on_the_devices_own_machine(address):
    with pytest.raises(ProtocolError, match="of this machine itself"):
        destination(address, "hub.example:7411", secret_in_clear=False)


def test_a_bearer_token_in_clear_text_goes_to_no_other_host():
    assert destination("Hub.example:9000", "hub.example:7411", secret_in_clear=True) == "Hub.example:9000"
    with pytest.raises(ProtocolError, match=r"clear text.*--tls"):
        destination("10.0.0.2:7411", "hub.example:7411", secret_in_clear=True)


# -- servers that drop a sequence again and again -----------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [[opened()], [opened(), Verdict(9, (9,))], [opened(), Moved()], [opened(), opened()]],
    ids=["lost", "gap", "moved", "opened twice"],
)
def test_a_server_that_drops_every_stream_is_given_up(script):
    world = World(home=[script] * 1000)
    with pytest.raises(Unreachable, match=f"accepted this answer {MAX_FRUITLESS} times"):
        world.run(told(world, 1))
    assert len(world.started) == MAX_FRUITLESS + 2 and 30 < world.loop.now < 120
    assert world.open_streams == 0


def test_a_token_each_time_buys_no_more_than_a_stream_in_two_seconds():
    world = World(home=[[opened(), Verdict(3 + at, (7,))] for at in range(40)])
    world.run(told(world, 40))
    assert len(world.started) == 40 and world.loop.now > 55


def test_times_are_forgiven():
    policy = RetryPolicy()
    pace = ReopeningPace(policy.first_retry, policy.slowest_retry)
    pauses = [pace.pause(now, length) for length, now in enumerate((10, 10, 10, 10, 15, 100), 1)]
    assert pauses == [0, 0.05, 0.1, 0.2, pytest.approx(0.1 / 2**0.5), 0]


def test_a_server_that_does_not_stop_is_cut():
    """The 50 tokens of the request arrive; of what comes after them none does."""
    world = World(home=[[opened(), Verdict(3, (7,) * 50), Verdict(53, (8,))]])
    with pytest.raises(ProtocolError, match=r"more than the 50 tokens .*--max-tokens"):
        world.run(told(world, 2))
    world = World(home=[[opened(), Verdict(3, (7,) * 50)]])
    assert world.run(told(world, 1)).truth.generated == (7,) * 50
    world = World(home=[[opened(), Verdict(3, (7,) * 51)]])
    with pytest.raises(ProtocolError):
        world.run(told(world, 1))
