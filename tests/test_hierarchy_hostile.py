"""A server above that lies to a relay: the sequence that it lies about ends by an error of ours, or its text is right
after all; other sequences notice nothing, and nothing is left behind.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from edge_client.link.remote import RetryPolicy
from opensled.core.errors import InvalidRequest, OpenSledError, ProtocolError, TruthConflict, Unreachable
from opensled.core.messages import Failure, Limits, Open, Opened, SamplingParams, Verdict
from opensled.wire import codec
from tests.fakes import EOS, VOCAB, FakeEngine, OracleDrafter, continuation
from tests.loops import cancelled, in_loop
from tests.system import ask, until
from tests.three_tiers import errs, tiers

LIED_ABOUT, HONEST = (7, 7, 7), ((3, 1, 4), (1, 5, 9))
GREEDY = SamplingParams(temperature=0, max_tokens=40)
HASTY = RetryPolicy(silence=5.0, first_retry=0.0, slowest_retry=0.001, first_open=1.0, give_up=5.0)


def refuse_wrong_ids(segments):
    """As a real engine does it, a step with an id that is none fails for all of its sequences."""
    assert all(token < VOCAB for segment in segments for token in segment.tokens)


@dataclass
class LyingStream:
    """A stream of the server above; what it says of one prompt is turned into something else."""

    stream: object
    lie: object  # message -> message, or None where nothing is said
    about: bool = False

    async def send(self, message):
        if isinstance(message, Open):
            self.about = message.prompt == LIED_ABOUT
        await self.stream.send(message)

    async def receive(self):
        while True:
            message = await self.stream.receive()
            said = self.lie(message) if self.about else message
            if said is not None:
                return codec.decode_server(codec.encode_server(said))

    async def close(self, linger=0.0):
        await self.stream.close(linger)


def of_verdicts(change):
    """A lie about verdicts alone."""
    return lambda message: change(message) if isinstance(message, Verdict) else message


def of_openings(**fields):
    """A lie about what an `Opened` says."""
    return lambda message: replace(message, **fields) if isinstance(message, Opened) else message


def end_of(verdict):
    return verdict.base + len(verdict.tokens)


@asynccontextmanager
async def lying(lie, share=0.3):
    """See `tiers`; the server above lies to the relay."""
    middle = FakeEngine(target=errs(share), before=refuse_wrong_ids)
    async with tiers(FakeEngine(), middle, patience=HASTY) as (network, relay, upper):

        def connect(address=""):
            return LyingStream(upper.connect(), lie)

        relay.upstream = replace(relay.upstream, connect=connect)
        yield network, relay


@in_loop
async def honest_and_lied_about(lie, params=GREEDY):
    """The text of the sequence that is lied about, or the error that ends it; checks two others beside it."""
    async with asyncio.timeout(60), lying(lie) as (network, _):
        others = [
            asyncio.ensure_future(ask(network, each, OracleDrafter(0.7), GREEDY, patience=HASTY))
            for each in HONEST
        ]
        try:
            answer = await ask(network, LIED_ABOUT, OracleDrafter(0.7), params, patience=HASTY)
            came_of_it = answer.tokens, answer.finish_reason
        except OpenSledError as error:
            came_of_it = error
        for each, other in zip(HONEST, await asyncio.gather(*others)):
            assert list(other.tokens) == continuation(each, 40) and other.reopened == 0
        return came_of_it


ERRORS = {
    "more tokens than were asked for": (
        of_verdicts(lambda said: said._replace(tokens=said.tokens + (5,) * 100)),
        ProtocolError,
    ),
    "an id that is none": (
        of_verdicts(lambda said: said._replace(tokens=(*said.tokens, VOCAB))),
        ProtocolError,
    ),
    "the largest id": (of_verdicts(lambda said: said._replace(tokens=(2**32 - 1,))), ProtocolError),
    "goes on after its end": (
        of_verdicts(lambda said: said._replace(tokens=(*said.tokens, EOS, 5))),
        ProtocolError,
    ),
    "a reason that is none": (of_verdicts(lambda said: said._replace(finish_reason="whim")), ProtocolError),
    "other tokens than before": (
        of_verdicts(lambda said: said._replace(base=0, tokens=(8,) * end_of(said))),
        TruthConflict,
    ),
    "more vetted tokens than tokens": (
        of_verdicts(lambda said: said._replace(vetted=2**32 - 1)),
        ProtocolError,
    ),
    "more unverified tokens than tokens": (
        of_verdicts(lambda said: said._replace(unverified=2**32 - 1)),
        ProtocolError,
    ),
    "words that no target verifies": (
        of_verdicts(lambda said: said._replace(unverified=len(said.tokens))),
        ProtocolError,
    ),
    "an end that is vetted": (
        of_verdicts(lambda said: said._replace(tokens=(*said.tokens, EOS), vetted=1, finish_reason="eos")),
        ProtocolError,
    ),
    "never what comes next": (of_verdicts(lambda said: said._replace(base=said.base + 100)), Unreachable),
    "nonsense instead of a verdict": (
        lambda said: Failure("from_the_future", "no reason") if isinstance(said, Verdict) else said,
        OpenSledError,
    ),
    "a prompt of ids that are none": (of_openings(prompt_ids=(5, VOCAB)), InvalidRequest),
    "no prompt": (of_openings(prompt_ids=()), InvalidRequest),
    "a prompt beyond the context": (of_openings(prompt_ids=(5,) * 500), InvalidRequest),
    "a key that is none": (of_openings(noise_key=b"short"), ProtocolError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_lie_ends_its_sequence_by_an_error_and_no_other(name):
    lie, kind = ERRORS[name]
    error = honest_and_lied_about(lie)
    assert isinstance(error, kind), error


def test_where_the_answer_ends_is_its_word():
    tokens, reason = honest_and_lied_about(of_verdicts(lambda said: said._replace(finish_reason="length")))
    assert list(tokens) == continuation(LIED_ABOUT, 40)[: len(tokens)] and reason == "length"


def test_an_id_after_a_stop_id_is_an_error():
    text = continuation(LIED_ABOUT, 40)
    params = replace(GREEDY, stop_ids=(text[3],))
    lie = of_verdicts(lambda said: said._replace(tokens=(*said.tokens, text[3], 5)))
    assert isinstance(honest_and_lied_about(lie, params), ProtocolError)


COSTS = {
    "accepted": of_verdicts(lambda said: said._replace(num_accepted=2**32 - 1)),
    "answers": of_verdicts(lambda said: said._replace(answers=2**32 - 1)),
    "a huge hint": of_verdicts(lambda said: said._replace(hint=2**32 - 1)),
    "no drafts": of_verdicts(lambda said: said._replace(hint=0)),
    "log-probabilities unasked": of_verdicts(
        lambda said: said._replace(logprobs=(((5, -1.0),),) * len(said.tokens))
    ),
    "loose tokens": of_verdicts(lambda said: said._replace(loose=tuple(range(len(said.tokens))))),
    "the last one is vetted": of_verdicts(
        lambda said: said if said.finish_reason else said._replace(vetted=min(1, len(said.tokens)))
    ),
    "revisions": of_verdicts(lambda said: said._replace(revision=2**32 - 1 - end_of(said))),
    "no room": of_openings(limits=Limits(0, 0)),
    "all room": of_openings(limits=Limits(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1)),
    "a hint of the opening": of_openings(hint=2**32 - 1),
    "asks for probabilities": of_openings(draft_probs=True),
    "another rule": of_openings(rule="telepathy"),
}


@pytest.mark.parametrize("name", COSTS)
def test_what_is_said_of_drafts_changes_no_text(name):
    tokens, reason = honest_and_lied_about(COSTS[name])
    assert list(tokens) == continuation(LIED_ABOUT, 40) and reason == "length"


async def test_a_server_that_says_nothing_has_no_more_vetted_than_two_blocks():
    async with lying(lambda said: None if isinstance(said, Verdict) else said) as (network, relay):
        waiting = asyncio.ensure_future(ask(network, LIED_ABOUT, OracleDrafter(0.7), GREEDY, patience=HASTY))
        await until(lambda: any(session.sequence.waits for session in relay.manager.remembered))
        for each in HONEST:
            answer = await ask(network, each, OracleDrafter(0.7), GREEDY, patience=HASTY)
            assert list(answer.tokens) == continuation(each, 40)
        [silent] = [each for each in relay.manager.remembered if not each.sequence.over]
        way, step = relay.upstream, relay.manager.limits.max_draft + 1
        assert way.ahead <= len(silent.sequence.truth.vetted) < way.ahead + step
        await cancelled(waiting)


async def test_a_device_that_knows_more_than_is_confirmed_begins_anew():
    """It was elsewhere meanwhile, or makes it up; what is vetted is no text to resume."""
    text = tuple(continuation(LIED_ABOUT, 40))
    async with lying(lambda said: None if isinstance(said, Verdict) else said, share=0.0) as (_, relay):
        manager = relay.manager
        first, opened = await manager.open(Open(LIED_ABOUT, GREEDY), "local")
        first.attach(len(LIED_ABOUT))
        await until(lambda: len(first.sequence.truth.vetted) >= 4)
        back = Open(LIED_ABOUT, GREEDY, committed=text[:3], resume_token=opened.resume_token)
        second, _ = await manager.open(back, "local")
        assert second is not first and manager.remembered == (second,)
        assert second.sequence.confirmed == len(LIED_ABOUT) + 3
