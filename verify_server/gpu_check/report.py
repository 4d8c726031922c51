"""What `opensled selftest` prints of the document that it wrote."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import opensled


def machine(device: torch.device) -> dict[str, Any]:
    """What somebody else must know to compare."""
    facts: dict[str, Any] = {
        "device": str(device),
        "opensled": opensled.__version__,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "python": platform.python_version(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "compute capability": f"{properties.major}.{properties.minor}",
            "gpu bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return facts


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def holds(document: dict[str, Any]) -> bool:
    """Whether the first way, a server's own, loaded and wrote what it must."""
    return "error" not in document["ways"][0] and bool(document.get("equality", {}).get("holds"))


def text(document: dict[str, Any], out: str) -> str:
    """Tables in Markdown, to be read here or pasted into an issue."""
    return "\n".join(
        [*_head(document), *_equality(document), *_ways(document), "", f"everything is in {out}"]
    )


def _head(document: dict[str, Any]) -> Iterator[str]:
    facts = document["machine"]
    yield f"### {document['model']} on {facts.get('gpu', 'a processor')}"
    yield ", ".join(f"{name} {value}" for name, value in facts.items())
    if partial := document.get("partial"):
        yield f"**PARTIAL: {partial}.**"
    yield f"A copy moves {document['copy bytes/s'] / 1e9:,.0f} GB/s."


def _equality(document: dict[str, Any]) -> Iterator[str]:
    if found := document.get("equality"):
        verdict = "holds" if found["holds"] else "FAILS"
        yield (
            f"Equality with the processor {verdict}: {found['answers']} answers, {found['tokens']:,} tokens, "
            f"{found['flips']} near ties (at most {found['worst']:.3f} of the logits' spread, allowed "
            f"{found['allowed']:.3f}), {found['wrong']} wrong."
        )


def _ways(document: dict[str, Any]) -> Iterator[str]:
    first = document["ways"][0].get("steps", [])
    before = {(step["rows"], step["context"]): step["seconds"] for step in first if "seconds" in step}
    for way in document["ways"]:
        yield ""
        yield f"**attention {way['attention']}, graphs {way['graphs']}, numerics {way['numerics']}**"
        if "error" in way:
            yield f"does not work here: {way['error']}"
            continue
        if "used" not in way:
            yield "not loaded yet"
            continue
        yield (
            f"{way['used']}, level {way['level']}, {way['dtype']}, loaded in {way['load s']:.0f} s; "
            f"KV for {way['KV tokens']:,} tokens of {way['KV bytes/token']:,} bytes"
        )
        yield from _table(way.get("steps", []), before)


def _table(steps: list[dict[str, Any]], before: dict[tuple[int, int], float]) -> Iterator[str]:
    yield ""
    yield "| rows | context | step, ms | over the floor | sampling | against the first |"
    yield "|---|---|---|---|---|---|"
    for step in steps:
        place = (step["rows"], step["context"])
        if "seconds" not in step:
            yield f"| {place[0]} | {place[1]:,} | no room: {step['blocks']:,} KV blocks | | | |"
            continue
        seconds = step["seconds"]
        ratio = f"{seconds / before[place]:.2f}" if place in before else ""
        yield (
            f"| {place[0]} | {place[1]:,} | {1e3 * seconds:.2f} | {seconds / step['floor']:.1f} x | "
            f"{step['sampling'] / seconds:.0%} | {ratio} |"
        )
