"""Ask every edge of a running fleet, and let the target alone write each answer again.

    python -m lab.testbed.fleet_check --edge pi-5=http://127.0.0.1:8411 --edge ... [--prompts N] [--json]

All edges are asked at the same time, each one prompt after another. Exit code 0 only if every answer is, token for
token, what the tiny target alone writes in float64; so the fleet's server must run it with `--dtype float64`.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from lab.testbed.client import StreamedReply, stream_chat
from lab.testbed.prompts import TARGET, prompts_of
from opensled.core.errors import OpenSledError, UsageError
from opensled.models.store import model_path

RETRY_S, PAUSE_S = 60.0, 0.5  # how long a request that a device turned away is sent again, and how often
ANSWER_S = 300.0  # silence on a device's API that counts as broken; a link that breaks may take its time


@dataclass
class Edge:
    """One device of the fleet, what it is asked and what it says."""

    name: str
    url: str
    prompts: list[dict[str, Any]]  # OpenAI request bodies
    replies: list[StreamedReply] = field(default_factory=list)
    writing: StreamedReply | None = None  # the answer under way
    turned_away: int = 0  # requests refused because the device's server could not be reached; sent again
    error: str = ""  # why it stopped answering; "" = it did not
    right: list[bool] = field(default_factory=list)  # of each reply: the target's own

    @property
    def identical(self) -> bool:
        return not self.error and len(self.right) == len(self.prompts) and all(self.right)

    def report(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "url": self.url,
            "asked": len(self.prompts),
            "answered": len(self.replies),
            "identical": self.identical,
            "wrong": self.right.count(False),
            "error": self.error,
            "turned_away": self.turned_away,
            "tokens": sum(reply.usage.get("completion_tokens", 0) for reply in self.replies),
            "seconds": round(sum(reply.seconds for reply in self.replies), 3),
            "rounds": self._total("rounds"),
            "drafted": self._total("drafted"),
            "accepted": self._total("accepted"),
        }

    def _total(self, name: str) -> int:
        return sum(reply.usage.get("opensled", {}).get(name, 0) for reply in self.replies)


def edges_of(named: Sequence[str], prompts: int, max_tokens: int, seed: int = 0) -> list[Edge]:
    """An edge for each "NAME=URL", with seeded prompts of its own; raises UsageError for anything else."""
    if prompts < 1 or max_tokens < 1:
        raise UsageError("--prompts and --max-tokens must be at least 1")
    edges = []
    for number, text in enumerate(named):
        name, equals, url = text.partition("=")
        if not (name and equals and url.startswith(("http://", "https://"))):
            raise UsageError(f"--edge {text!r}: write NAME=URL, such as pi-5=http://127.0.0.1:8411")
        edges.append(Edge(name, url, prompts_of(number, prompts, max_tokens, seed)))
    if not edges:
        raise UsageError("name at least one device with --edge NAME=URL")
    return edges


async def ask_all(edges: Sequence[Edge]) -> None:
    """Every edge at the same time; an edge that fails keeps its error and stops."""
    await asyncio.gather(*(ask(edge) for edge in edges))


async def ask(edge: Edge) -> None:
    """Its prompts, one after another."""
    async with httpx.AsyncClient(base_url=edge.url, timeout=ANSWER_S, trust_env=False) as http:
        try:
            for body in edge.prompts:
                edge.replies.append(await _answer(http, edge, body))
                edge.writing = None
        except OpenSledError as error:
            edge.error = str(error)


async def _answer(http: httpx.AsyncClient, edge: Edge, body: dict[str, Any]) -> StreamedReply:
    """One answer. As OpenAI's own clients do it, a request that was turned away with 503 is sent again."""
    patience = RETRY_S
    while True:
        try:
            async for edge.writing in stream_chat(http, body):
                pass
        except OpenSledError as error:
            if not str(error).startswith("HTTP 503") or patience <= 0:
                raise
            edge.turned_away += 1
            patience -= PAUSE_S
            await asyncio.sleep(PAUSE_S)
            continue
        if edge.writing is None:
            raise OpenSledError("an answer without a single event")
        return edge.writing


def compare(edges: Sequence[Edge]) -> None:
    """Let the target alone write every answer again, with plain transformers and no product code."""
    # So small a model gains nothing by threads, and on a busy machine they wait for each other: 2 s became 30 s. torch
    # counts them when it is loaded, so that happens here, and not while devices on the same machine are at work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from lab.testbed.forcing import follow
    from lab.testbed.reference import Reference

    reference = Reference(model_path(TARGET), dtype="float64")
    for edge in edges:
        answered = zip(edge.prompts, edge.replies)
        edge.right = [follow(reference, body, reply.text, 0.0) is not None for body, reply in answered]


def conclude(edges: Sequence[Edge], as_json: bool) -> int:
    """Print what came out; exit code 0 only if every edge answered every prompt like the target alone."""
    identical = all(edge.identical for edge in edges)
    if as_json:
        print(json.dumps({"identical": identical, "edges": [edge.report() for edge in edges]}))
        return 0 if identical else 1
    for edge in edges:
        print(_line(edge.report()))
    answers = sum(len(edge.replies) for edge in edges)
    if identical:
        print(f"identical: all {answers} answers are exactly what the target alone writes")
    else:
        wrong = sum(edge.right.count(False) for edge in edges)
        silent = sum(len(edge.prompts) - len(edge.replies) for edge in edges)
        print(f"NOT identical: {wrong} of {answers} answers differ, {silent} never came", file=sys.stderr)
    return 0 if identical else 1


def _line(report: dict[str, Any]) -> str:
    outcome = report["error"] or ("identical" if report["identical"] else f"{report['wrong']} wrong")
    if report["turned_away"]:
        outcome += f", after {report['turned_away']} requests that were turned away"
    return (
        f"{report['name']:<12} {report['answered']}/{report['asked']} answers, {report['tokens']} tokens in "
        f"{report['seconds']:.1f} s, {report['accepted']} of {report['drafted']} draft tokens accepted: {outcome}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser("python -m lab.testbed.fleet_check", description=__doc__)
    parser.add_argument("--edge", action="append", default=[], metavar="NAME=URL", help="one device's API")
    parser.add_argument("--prompts", type=int, default=4, metavar="N", help="prompts for each device")
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N", help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which prompts and samples")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(arguments)
    try:
        edges = edges_of(given.edge, given.prompts, given.max_tokens, given.seed)
        asyncio.run(ask_all(edges))
        compare(edges)
        return conclude(edges, given.json)
    except OpenSledError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
