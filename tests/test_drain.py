"""SIGTERM: not ready first, newcomers are told to come back, answers under way are finished, then the end."""

import asyncio
import contextlib
import json
import signal

import httpx
import pytest

from edge_client.link.remote import RemoteSession
from http_api.listening import listen
from http_api.server import ApiServer
from lab.testbed.processes import Process, free_port
from opensled.core.errors import Unreachable
from opensled.core.messages import Moved, Open, Opened, SamplingParams, Verdict
from opensled.text.tokenizer import TargetTokenizer
from tests.balancer import balancer
from tests.draining import PARAMS, PROMPT, SERVE, hanging, refused, rest, until_not_serving
from tests.draining import gate as gate
from tests.fake_target import _Text, cycle
from tests.gated_target import GATE, STOP_AT
from tests.serving import linked
from tests.stuck_target import ENTERED
from tests.system import until
from verify_server.front.draining import EXIT_SECONDS

LONG = SamplingParams(temperature=0, max_tokens=500)  # at least 2 s


@pytest.fixture
def server(gate):
    with Process(SERVE, isolated=True, environment={GATE: str(gate)}) as process:
        process.wait_ready()
        yield process


def expected(prompt, count):
    """What the target writes."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(cycle(tokens))
    return tokens[len(prompt) :]


async def until_moved(stream):
    """Its tokens until it sends its reader elsewhere."""
    tokens = []
    while not isinstance(message := await stream.receive(), Moved):
        assert isinstance(message, Verdict) and not message.finish_reason
        tokens += message.tokens
    assert message == Moved(), "back to the address that the device asks first"
    return tokens


async def found_again(link, resume_token):
    """A stream to the sequence, tried as by a device: the port is closed and opened anew under it."""
    while True:
        stream = link.connect()
        with contextlib.suppress(Unreachable):
            await stream.send(Open(PROMPT, PARAMS, resume_token=resume_token))
            assert isinstance(await stream.receive(), Opened)
            return stream
        await asyncio.sleep(0.01)


async def asked_to_end(server):
    """SIGTERM, and until it tells so."""
    server.process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(until_not_serving(server.address), 20)


async def test_sigterm_finishes_what_is_under_way_and_sends_newcomers_away(server, gate):
    async with linked(server.address) as link:
        stream, tokens = await hanging(link)
        await asked_to_end(server)
        refusal = await refused(link)
        assert "shutting down" in str(refusal) and refusal.retry_after > 0
        gate.touch()
        tokens += await rest(stream)
    assert tokens == expected(PROMPT, PARAMS.max_tokens)
    await until(lambda: server.process.poll() is not None, 20)
    assert server.process.returncode == 0


async def test_a_lost_reader_may_come_back_while_the_server_drains(server, gate):
    async with linked(server.address) as link:
        first, _ = await hanging(link)
        second = link.connect()
        await second.send(Open(PROMPT, PARAMS))
        opened = await second.receive()
        await asked_to_end(server)
        await second.close()
        again = await asyncio.wait_for(found_again(link, opened.resume_token), 20)
        gate.touch()
        assert len(await rest(again)) == PARAMS.max_tokens
        assert len(await rest(first)) == PARAMS.max_tokens - (STOP_AT - len(PROMPT))


async def test_a_second_sigterm_ends_at_once(server, gate):
    async with linked(server.address) as link:
        await hanging(link)
        await asked_to_end(server)
        server.process.send_signal(signal.SIGTERM)
        gate.touch()  # a step under way is not interrupted
        await until(lambda: server.process.poll() is not None, 20)


def test_an_idle_server_is_gone_at_once(server):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0


async def test_what_never_ends_does_not_hold_up_the_end(server, tmp_path):
    """A step, and a tokenizer at another server; they are waited for side by side."""
    entered = tmp_path / "entered"
    arguments = ("serve", "--engine", "tests.stuck_target:load", "--listen", "127.0.0.1:0")

    async def ended_by_two_signals(process, what):
        await asked_to_end(process)
        process.process.send_signal(signal.SIGTERM)
        await until(lambda: process.process.poll() is not None, EXIT_SECONDS + 10)
        assert process.process.returncode == 0, what

    async def step():
        async with linked(server.address) as link:
            await hanging(link)
            await ended_by_two_signals(server, "a step")

    async def tokenizer(process):
        async with linked(process.address) as link:
            await link.connect().send(Open("some text", PARAMS))
            await until(entered.exists)
            await ended_by_two_signals(process, "a tokenizer")

    with Process(arguments, isolated=True, environment={ENTERED: str(entered)}) as process:
        process.wait_ready()
        await asyncio.gather(step(), tokenizer(process))


@pytest.fixture
def servers(gate):
    """Starts a server with each of these flags, side by side; its answers take 4 ms a token and never hang."""
    gate.touch()
    with contextlib.ExitStack() as stack:

        def start(*each):
            started = [
                Process((*SERVE, *flags), isolated=True, environment={GATE: str(gate)}) for flags in each
            ]
            for process in started:
                stack.enter_context(process)
            for process in started:
                process.wait_ready()
            return started

        yield start


@pytest.mark.parametrize("seconds", ["0", "0.3"])
async def test_an_answer_that_takes_longer_goes_on_at_the_next_server(servers, seconds):
    """It had broken off with the connection: after 30 s, whatever the operator wanted."""
    leaving, staying = servers(("--drain", seconds), ())
    async with linked(leaving.address) as one, linked(staying.address) as other:
        stream = one.connect()
        await stream.send(Open(PROMPT, LONG))
        opened = await stream.receive()
        tokens = list((await stream.receive()).tokens)
        leaving.process.send_signal(signal.SIGTERM)
        tokens += await until_moved(stream)
        again = other.connect()
        committed = tuple(tokens)
        await again.send(Open(PROMPT, LONG, committed=committed, noise_key=opened.noise_key))
        assert isinstance(await again.receive(), Opened)
        assert tokens + await rest(again) == expected(PROMPT, LONG.max_tokens)
    await until(lambda: leaving.process.poll() is not None, 20)
    assert leaving.process.returncode == 0


async def answer_of(link, params):
    """The tokens of an answer to a device, which tries for a while to open it (`edge_client.link.remote`)."""
    session = RemoteSession(link.connect, Open(PROMPT, params))
    await session.open()
    tokens = []
    while not session.truth.finish_reason:
        tokens += session.truth.extend(await session.next_verdict()) or ()
    await session.close()
    return tokens


@pytest.mark.parametrize("knows", [True, False])
async def test_behind_a_balancer_new_sequences_of_an_old_connection_go_to_another_server(servers, knows):
    """The connection to a server that drains stayed open, and it refused what came over it: answers were lost."""
    leaving, staying = servers((), ())
    ready = [leaving.address]
    async with balancer(lambda: ready) as address, linked(address) as link:
        stream = link.connect()
        await stream.send(Open(PROMPT, LONG))
        assert isinstance(await stream.receive(), Opened)
        ready[:] = [staying.address] if knows else ready
        await asked_to_end(leaving)
        if not knows:  # a balancer that asks for readiness now and then
            await refused(link)
            ready[:] = [staying.address]
        assert await answer_of(link, PARAMS) == expected(PROMPT, PARAMS.max_tokens)
        assert await rest(stream) == expected(PROMPT, LONG.max_tokens)


LONG_TEXT = {"prompt": "Hi", "temperature": 0, "max_tokens": LONG.max_tokens, "stream": True}


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": LONG.max_tokens}
NATIVE = {"options": {"num_predict": LONG.max_tokens}}
CUT = {  # by path: the request, and where its last object says that the answer is no longer
    "/v1/completions": ({"prompt": "Hi", "max_tokens": LONG.max_tokens}, '"finish_reason":"length"'),
    "/v1/chat/completions": ({**CHAT, "n": 2}, '"finish_reason":"length"'),
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 500},
        '"incomplete_details":{"reason":"max_output_tokens"',
    ),
    "/v1/messages": (CHAT, '"stop_reason":"max_tokens"'),
    "/api/chat": ({"messages": CHAT["messages"], **NATIVE}, '"done_reason":"length"'),
    "/api/generate": ({"prompt": "Hi", **NATIVE}, '"done_reason":"length"'),
    "/page/chat": (CHAT, '"finish_reason":"length"'),
}


async def test_answers_over_http_that_take_longer_end_with_the_text_so_far(servers):
    """They had ended with a 503, or with an error in the stream."""
    http = f"127.0.0.1:{free_port()}"
    (leaving,) = servers(("--drain", "0.3", "--http", http))

    async def answered(client, path, stream, begun):
        body = {"model": "fake", "stream": stream, **CUT[path][0]}
        async with client.stream("POST", path, json=body) as response:
            assert response.status_code == 200, (path, stream, await response.aread())
            begun.release()
            return (await response.aread()).decode().replace('": ', '":')

    begun = asyncio.Semaphore(0)
    async with httpx.AsyncClient(base_url=f"http://{http}", timeout=60) as client:
        cases = [(path, stream) for stream in (False, True) for path in CUT if stream or path != "/page/chat"]
        asked = [asyncio.ensure_future(answered(client, *case, begun)) for case in cases]
        for _ in CUT:  # all streams
            await begun.acquire()
        leaving.process.send_signal(signal.SIGTERM)
        answers = zip(cases, await asyncio.gather(*asked), strict=True)
    target = _Text()
    whole = TargetTokenizer(target.tokenizer_json).decode(expected(target.encode("Hi"), LONG.max_tokens))
    for (path, stream), told in answers:
        assert CUT[path][1] in told and "error" not in told.replace('"error":null', ""), told[-600:]
        if stream and path.startswith("/v1/c"):
            assert told.rstrip().endswith("data: [DONE]")
        if stream and path == "/v1/completions":
            events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
            text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
            assert whole.startswith(text) and 0 < len(text) < len(whole)
    assert leaving.process.wait(20) == 0


@pytest.mark.timed  # its idle connection is closed after a second
def test_a_connection_over_http_carries_one_more_answer_and_new_ones_are_refused(servers):
    """A request that was on its way to an idle connection was lost with it."""
    http = f"127.0.0.1:{free_port()}"
    (leaving,), short = servers(("--http", http)), {**LONG_TEXT, "max_tokens": 5, "stream": False}
    with httpx.Client(base_url=f"http://{http}", timeout=60) as client, httpx.Client(timeout=60) as other:
        assert "connection" not in client.post("/v1/completions", json=short).headers
        with other.stream("POST", f"http://{http}/v1/completions", json=LONG_TEXT) as response:
            lines = response.iter_lines()
            next(lines)
            leaving.process.send_signal(signal.SIGTERM)
            while httpx.get(f"http://{http}/readyz").status_code == 200:
                pass
            last = client.post("/v1/completions", json=short)
            assert last.status_code == 200 and last.headers["connection"] == "close"
            # A balancer leads a new connection elsewhere; there is none here.
            refused = last
            while refused.status_code == 200:
                refused = client.post("/v1/completions", json=short)
            assert refused.status_code == 429 and "shutting down" in refused.text
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_idle_connections_do_not_hold_up_the_end(servers):
    http = f"127.0.0.1:{free_port()}"
    (leaving,) = servers(("--http", http))
    with httpx.Client(base_url=f"http://{http}", timeout=60) as client:
        assert client.get("/health").status_code == 200
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(20) == 0


async def test_what_clients_over_http_have_not_got_yet_is_waited_for():
    asked, over = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        asked.set()
        await over.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"all of it"})

    server, listener = ApiServer(app, asyncio.Event()), listen("127.0.0.1:0")
    async with server.serving(listener), httpx.AsyncClient() as client:
        await server.wait_for_answers(20)  # nothing: at once
        asking = asyncio.ensure_future(client.get(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        await asked.wait()
        await server.wait_for_answers(0.01)
        waiting = asyncio.ensure_future(server.wait_for_answers(20))
        await asyncio.sleep(0)
        assert not waiting.done()
        over.set()
        await waiting
        assert (await asking).text == "all of it"


async def test_a_last_request_that_is_no_sequence_is_waited_for():
    """A server that ended while the text of a last request was read told it to ask again, and so did one that ended
    before the last byte of the answer before it was written."""
    read, rest = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await read.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await rest.wait()
        await send({"type": "http.response.body", "body": b"the answer"})

    server, listener = ApiServer(app, asyncio.Event()), listen("127.0.0.1:0")
    async with server.serving(listener), httpx.AsyncClient() as client:
        question = client.build_request("GET", f"http://127.0.0.1:{listener.getsockname()[1]}")
        read.set()
        response = await client.send(question, stream=True)
        assert not server.waiting
        server.send_away()
        assert server.waiting
        read.clear()
        rest.set()
        await response.aread()
        asking = asyncio.ensure_future(client.send(question))
        assert server.waiting
        read.set()
        assert (await asking).headers["connection"] == "close"
        assert not server.waiting
