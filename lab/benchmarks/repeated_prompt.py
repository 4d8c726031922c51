"""A long prompt that is asked twice: what the prefix cache of a GGUF target saves, and what a full one costs.

    opensled pull smollm2
    python -m lab.benchmarks.repeated_prompt [--quick] [--out FOLDER]

`opensled serve --http` with engine llamacpp and SmolLM2 in 16 bits. For each length the same chat is asked by one user
and by eight at once, first when the cache has nothing of it, then again; and once more after other texts have filled
the cache. Then chats of 64 tokens show what a full cache costs. The texts are compared with those of a server without
the cache. It writes repeated_prompt.json and repeated_prompt.md.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from lab.benchmarks.peer_chats import Contender
from lab.benchmarks.peer_prompts import DOCUMENTS
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table, write_page
from lab.benchmarks.serving import files
from lab.testbed.processes import Process, free_port
from lab.testbed.provenance import provenance
from opensled.models.llama import LlamaModel

LENGTHS, QUICK = (600, 2161, 6000), (200,)  # tokens of a prompt
ANSWER, RATE_TOKENS = 8, 64  # tokens
USERS = (1, 8)
FILLING = 24  # texts of 2,000 tokens that fill the cache
TURNS = 5  # of chats with an empty and a full cache


@contextmanager
def server(model: Path, *more: str) -> Iterator[Contender]:
    port = free_port()
    words = (
        "serve",
        "--engine",
        "llamacpp",
        "--model",
        str(model),
        "--dtype",
        "stored",
        "--drafter",
        "none",
        "--listen",
        "127.0.0.1:0",
    )
    with Process((*words, "--http", f"127.0.0.1:{port}", *more), isolated=True) as process:
        process.wait_ready()
        yield Contender(f"http://127.0.0.1:{port}", process.process.pid)


class Texts:
    """Passages of this project's documents, no two of them alike."""

    def __init__(self, model: Path) -> None:
        pages = [path.read_text("utf-8") for path in sorted(DOCUMENTS.glob("*.md"))]
        self._ids = LlamaModel(model, 0).tokenize(" ".join(pages))
        self._next = 0

    def take(self, tokens: int) -> list[int]:
        """The next ids; the documents begin anew, one id further, where they end."""
        start = self._next % (len(self._ids) - tokens)
        self._next += tokens + 1
        return self._ids[start : start + tokens]


def ask(asked: Contender, prompt: list[int], users: int) -> dict[str, Any]:
    """What the same prompt costs `users` who ask at once."""
    asked.forget()
    body = {"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0.0}
    asked.complete([body] * users)
    return {
        "first_ms": round(1e3 * statistics.median(asked.first_s), 1),
        "cpu_s": round(asked.cpu_s, 2),
        "cached": asked.cached,
    }


def text_of(asked: Contender, prompt: list[int]) -> str:
    body = {"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0.0}
    with httpx.Client(base_url=asked.url, timeout=600, trust_env=False) as http:
        return str(http.post("/v1/completions", json=body).json()["choices"][0]["text"])


def fill(asked: Contender, texts: Texts) -> None:
    for _ in range(FILLING):
        asked.complete([{"prompt": texts.take(2000), "max_tokens": 1, "temperature": 0.0}])


def rates(asked: Contender, texts: Texts, users: int) -> list[float]:
    """Tokens/s of short chats."""
    body = {"max_tokens": RATE_TOKENS, "ignore_eos": True, "temperature": 0.0}
    found = []
    for _ in range(TURNS):
        found.append(asked.complete([{"prompt": texts.take(30), **body} for _ in range(users)]))
    return found


def measure(quick: bool) -> dict[str, Any]:
    model = files()["llamacpp"]
    texts = Texts(model)
    lengths = QUICK if quick else LENGTHS
    with server(model) as asked, server(model, "--no-prefix-cache") as without:
        found: list[dict[str, Any]] = []
        prompts: list[list[int]] = []
        empty = {users: rates(asked, texts, users) for users in USERS}
        for length in lengths:
            for users in USERS:
                prompts.append(prompt := texts.take(length))
                first, again = (ask(asked, prompt, users) for _ in range(2))
                found.append({"tokens": length, "users": users, "first": first, "again": again})
                say(f"{found[-1]}")
        if not quick:
            fill(asked, texts)
        for row, prompt in zip(found, prompts):
            row["full"] = ask(asked, prompt, row["users"])
        full = {users: rates(asked, texts, users) for users in USERS}
        equal = sum(text_of(asked, prompt) == text_of(without, prompt) for prompt in prompts)
    ratios = {
        users: round(statistics.median(full[users]) / statistics.median(empty[users]), 3) for users in USERS
    }
    return {
        "prompts": found,
        "tokens_per_s": {"empty": empty, "full": full, "full over empty": ratios},
        "equal texts": f"{equal} of {len(prompts)}",
    }


def markdown(document: Mapping[str, Any]) -> str:
    head = ("tokens", "users", "asked", "first token, ms", "processor, s", "cached")
    body = [
        [
            str(row["tokens"]),
            str(row["users"]),
            name,
            *[str(row[key][value]) for value in ("first_ms", "cpu_s", "cached")],
        ]
        for row in document["prompts"]
        for key, name in (
            ("first", "for the first time"),
            ("again", "again"),
            ("full", "after others filled the cache"),
        )
    ]
    ratios = document["tokens_per_s"]["full over empty"]
    told = ", ".join(f"{users} users {ratio}" for users, ratio in ratios.items())
    return "\n".join(
        [
            *table(head, body),
            "",
            f"Tokens/s with a full cache over an empty one: {told}.",
            f"Equal texts: {document['equal texts']}.",
        ]
    )


def run(arguments: Namespace) -> int:
    """Measure, write, and print the table."""
    origin = provenance("python -m lab.benchmarks.repeated_prompt")
    document = {
        "title": "A long prompt that is asked twice, engine llamacpp",
        "label": "real",
        **measure(arguments.quick),
        "provenance": origin,
    }
    if folder := folder_of(arguments):
        write_page(folder, "repeated_prompt", document, markdown(document))
    print(markdown(document))
    return 0


def main() -> int:
    """The command line."""
    parser = parser_of("repeated_prompt", __doc__)
    add_quick_and_out(parser)
    return exit_code(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
