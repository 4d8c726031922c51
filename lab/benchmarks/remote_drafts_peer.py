"""A target that gets its drafts over HTTP as its closest peers do: it asks for a block, waits, verifies it in a pass.

Two are reproduced, in one loop, over our own engine, so that a pass costs both sides the same:

- llama.cpp's proposed `--spec-type draft-remote` (pull request 25818, open): the target's own server asks another
  llama-server's /completion for `--spec-draft-n-max` tokens (3 by default) as token ids, and waits for them. It reports
  0 to 300 % more speed, over 10 Gbit/s between two large GPUs.
- tightwad (`proxy.py` at 02be90a): a proxy beside the target asks a llama-server for `max_draft_tokens` (8 by default),
  waits, has the target verify, and asks again. It reports 0.63 times plain decoding at 8 tokens, 1.27 at 32.

Not reproduced, in their favour: their user sits beside the target, so answers cross no link; one connection stays open
for an answer; each user has a slot of the draft server, whose cache therefore holds the text; tokens come as ids, where
tightwad sends text and has it tokenized again; and the target decides every token, where that proxy takes a block
for right once both tokenizers agree on its text. Against them: the HTTP client is Python's; tightwad can also tune its
length.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from typing import Any, Protocol

from lab.benchmarks.program import SPAWN, spawned
from opensled.core.errors import OpenSledError
from opensled.core.messages import SamplingParams
from opensled.net.address import host_port
from verify_server.engine.base import SampleRequest, Segment, TargetEngine
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig

ROWS = 512  # of a pass at most, as a server has it by default
TIMEOUT_S = 120.0  # of one block; a first one waits until the draft server has read the prompt
LIKELIEST = SamplingParams(temperature=0)
GREEDY = {"temperature": 0, "top_k": 1, "cache_prompt": True, "return_tokens": True, "stream": False}


class Blocks(Protocol):
    """Where drafts come from."""

    def block(self, slot: int, ids: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that follow `ids`; returns once all of them are there."""


class DraftServer:
    """A llama-server that is asked for blocks. Raises OpenSledError where it gives none."""

    def __init__(self, address: str) -> None:
        """`address`: HOST:PORT. The connection is open before anything is measured."""
        self._address = address
        self._http = HTTPConnection(*host_port(address), timeout=TIMEOUT_S)
        self._http.connect()
        self.close = self._http.close

    def block(self, slot: int, ids: Sequence[int], count: int) -> list[int]:
        """See `Blocks`."""
        body = json.dumps({"prompt": list(ids), "n_predict": count, "id_slot": slot, **GREEDY})
        try:
            try:
                status, told = self._asked(body)
            except ConnectionError:  # a llama-server closes a connection that was idle for 5 s
                self._http.close()  # `request` opens it again
                status, told = self._asked(body)
        except (OSError, HTTPException) as error:
            raise OpenSledError(f"the draft server at {self._address} broke off: {error}") from error
        if status != 200:
            raise OpenSledError(f"the draft server at {self._address}: HTTP {status}: {told[:300]!r}")
        tokens: list[int] = json.loads(told)["tokens"]
        return tokens[:count]

    def _asked(self, body: str) -> tuple[int, bytes]:
        self._http.request("POST", "/completion", body, {"Content-Type": "application/json"})
        reply = self._http.getresponse()
        return reply.status, reply.read()


@dataclass
class Answer:
    """A user's text as it grows."""

    slot: int  # of the draft server, and of the target's cache
    ids: list[int]
    room: int  # tokens that may follow
    computed: int = 0  # of `ids`, which the cache holds
    is_read: bool = False  # the prompt, and the target has given a token
    seconds: float = 0.0  # to its last token; 0 = it goes on

    def commit(self, tokens: Sequence[int], ends: frozenset[int]) -> int:
        """Take on tokens up to the first one that ends the answer; how many they were."""
        ended = next((at for at, token in enumerate(tokens) if token in ends), None)
        fresh = tokens if ended is None else tokens[: ended + 1]
        self.ids += fresh
        self.is_read = True
        self.room = 0 if ended is not None else self.room - len(fresh)
        return len(fresh)


@dataclass
class Turn:
    """What the answers of all users came to, who asked at the same time."""

    texts: list[list[int]] = field(default_factory=list)  # of each user, in token ids
    seconds: float = 0.0  # of all users together, each from the question to the last token
    steps: int = 0  # forward passes of the target
    rounds: int = 0  # verdicts on a draft
    round_tokens: int = 0  # that they committed
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0  # waited for drafts


def right(draft: Sequence[int], own: Sequence[int]) -> int:
    """How many tokens of a draft are the target's own; `own[i]` follows the first i tokens of the draft."""
    return next((at for at, token in enumerate(draft) if token != own[at]), len(draft))


class BlockingTarget:
    """A target for a few users; greedy. For one thread."""

    def __init__(self, engine: TargetEngine, users: int) -> None:
        """Each user has the same part of the engine's KV."""
        self._engine = engine
        self._ends = frozenset(engine.info.eos_ids)
        each = engine.info.num_blocks // users
        self._blocks = [tuple(range(user * each, (user + 1) * each)) for user in range(users)]
        self._piece = ROWS // users  # tokens of a prompt in a pass

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        count: int = 0,
        drafts: Blocks | None = None,
        together: bool = False,
    ) -> Turn:
        """Answers of at most `tokens` tokens to users who ask at once; drafts of `count` tokens, 0 = none.

        Users take turns: a pass of the target serves one of them; `together`: all of them, once each has its draft.
        """
        turn, begun = Turn(), time.perf_counter()
        texts = [Answer(slot, list(prompt), tokens) for slot, prompt in enumerate(prompts)]
        while going := [text for text in texts if text.room]:
            for group in [going] if together else [[text] for text in going]:
                blocks = [self._asked(text, count, drafts, turn) for text in group]
                self._verify(group, blocks, turn)
                for text in group:
                    if not text.room:
                        text.seconds = time.perf_counter() - begun
        self._engine.forget([block for text in texts for block in self._blocks[text.slot]])
        turn.texts = [text.ids[len(prompt) :] for text, prompt in zip(texts, prompts)]
        turn.seconds = sum(text.seconds for text in texts)
        return turn

    def _asked(self, text: Answer, count: int, drafts: Blocks | None, turn: Turn) -> list[int]:
        """A block behind the text. None before the first token, which the reading of the prompt gives."""
        wanted = min(count, text.room - 1)  # the target's own token follows
        if drafts is None or not text.is_read or wanted < 1:
            return []
        begun = time.perf_counter()
        block = drafts.block(text.slot, text.ids, wanted)
        turn.draft_s += time.perf_counter() - begun
        return block

    def _verify(self, group: Sequence[Answer], blocks: Sequence[Sequence[int]], turn: Turn) -> None:
        """One pass over the blocks of a group, and its verdicts; a long prompt is read in passes of its own."""
        for text in group:
            while len(text.ids) - text.computed > self._piece:
                self._forward([self._segment(text, text.ids[text.computed :][: self._piece], 0)], turn)
                text.computed += self._piece
        segments = [
            self._segment(text, (*text.ids[text.computed :], *block), len(block) + 1)
            for text, block in zip(group, blocks)
        ]
        for text, block, own in zip(group, blocks, self._forward(segments, turn)):
            stands = right(block, own)
            committed = text.commit(own[: stands + 1], self._ends)
            text.computed = len(text.ids) - 1
            if block:
                turn.rounds += 1
                turn.round_tokens += committed
                turn.drafted += len(block)
                turn.accepted += stands

    def _segment(self, text: Answer, tokens: Sequence[int], rows: int) -> Segment:
        return Segment(tuple(tokens), text.computed, self._blocks[text.slot], rows)

    def _forward(self, segments: Sequence[Segment], turn: Turn) -> list[list[int]]:
        """The target's own token behind each row that a segment wants."""
        scores = self._engine.forward(segments)
        turn.steps += 1
        found, first = list[list[int]](), 0
        for segment in segments:
            rows = range(first, first + segment.rows)
            found.append(scores.sample_one(SampleRequest(rows, LIKELIEST, b"", 0)) if rows else [])
            first += segment.rows
        return found


# -- a process, which has its core alone ------------------------------------------------------------------------


class PeerProcess:
    """A `BlockingTarget` in a process on one core."""

    def __init__(self, pipe: Connection, pid: int) -> None:
        self._pipe, self.pid = pipe, pid
        self.way: str = self.said(None)  # how the target is computed, in words

    def answers(
        self, prompts: Sequence[Sequence[int]], tokens: int, count: int, address: str, together: bool
    ) -> Turn:
        """See `BlockingTarget.answers`; `address`: HOST:PORT of the draft server, "" = none."""
        return self.said((prompts, tokens, count, address, together))

    def said(self, asked: Any) -> Any:
        """The process's reply; raises OpenSledError for what went wrong there."""
        if asked is not None:
            self._pipe.send(asked)
        try:
            reply = self._pipe.recv()
        except EOFError as error:
            raise OpenSledError("the peer's target has ended; its errors are above") from error
        if isinstance(reply, OpenSledError):
            raise reply
        return reply


@contextmanager
def peer_process(config: ServeConfig, users: int, core: int) -> Iterator[PeerProcess]:
    """One that has loaded the target of a server's configuration."""
    ours, theirs = SPAWN.Pipe()
    process = spawned(_serve, theirs, config, users, core)
    theirs.close()
    try:
        assert process.pid is not None
        yield PeerProcess(ours, process.pid)
    finally:
        ours.close()  # it ends then
        process.join()


def _serve(pipe: Connection, config: ServeConfig, users: int, core: int) -> None:
    os.sched_setaffinity(0, {core})
    try:
        engine = ENGINES.get(config.engine)(config).engine
        target = BlockingTarget(engine, users)
        pipe.send(engine.info.way)
        while True:
            pipe.send(_answered(target, *pipe.recv()))
    except EOFError:
        pass
    except OpenSledError as error:
        pipe.send(error)


def _answered(
    target: BlockingTarget,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    count: int,
    address: str,
    together: bool,
) -> Turn:
    if not address:
        return target.answers(prompts, tokens, together=together)
    with closing(DraftServer(address)) as drafts:
        return target.answers(prompts, tokens, count, drafts, together)
