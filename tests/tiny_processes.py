"""Server and devices of the tiny family as real processes, and what they are asked."""

import json

from openai import OpenAI

from lab.testbed.processes import Process
from lab.training.heldout import heldout_path

STORY = [{"role": "user", "content": "Write a short story about a rabbit in the big city."}]


def serve(address="127.0.0.1:0", model="tiny", *more):
    return Process(
        ["serve", "--model", str(model), "--listen", address, "--dtype", "float64", "--json", *more]
    )


def edge(server, drafter="llamacpp", more=()):
    return Process(
        ["edge", "--server", server, "--drafter", drafter, "--http", "127.0.0.1:0", "--threads", "1", *more]
    )


def client_of(edge_process) -> OpenAI:
    return OpenAI(base_url=f"http://{edge_process.wait_ready()}/v1", api_key="none", timeout=120)


def prompts(count):
    items = [json.loads(line) for line in heldout_path().read_text().splitlines()]
    singles = [item["messages"][0]["content"] for item in items if len(item.get("messages") or ()) == 1]
    return singles[:: len(singles) // count][:count]
