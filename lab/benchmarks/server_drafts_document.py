"""server_drafts.json and its like: raw turns that grow group by group, and the figure over them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import write_json
from lab.benchmarks.real_contenders import NONE, SAMPLINGS, SERVER_CORE, SETUPS
from lab.benchmarks.real_document import REQUIRED, Raw, read_raw
from lab.benchmarks.real_summary import Unit, by_kind, rate, ratio
from lab.benchmarks.real_texts import KINDS, MORE_KINDS
from lab.benchmarks.real_view import ENOUGH
from lab.benchmarks.server_drafts_plan import Run, place, run_of
from lab.testbed.emulation.draft_head import KINDS as HEADS
from opensled.core.errors import UsageError
from verify_server.options.serve_config import AUTO_DRAFTER

# By the name of the figure its title, and where it loses.
FIGURES = {
    "server_drafts": (
        "The server's own drafters on a real pair",
        "A draft model takes the server's core from the target while it drafts. `lookup` and `cacheback` find little "
        "in texts that repeat nothing. With several users drafts compete for the rows of the target's step.",
    ),
    "heads": (
        "Draft heads beside a real target",
        "Where answers copy the prompt, `lookup` drafts more and costs nothing. With several users drafts compete for "
        "the rows of the target's step.",
    ),
    "server_both": (
        "Two drafters of a server: for each sequence and step the one that pays",
        "Each of them that rests is tried again now and then, which the other one's gain pays for.",
    ),
}
COPYING = ("extraction", "summary", "rewriting")  # their answers repeat the prompt
OWN_CORE = 0.9  # of it, which the server that is measured must have
EXACT = "exact"  # level at which a text must not depend on drafts


def read_kept(path: Path | None) -> Raw:
    """What was measured so far: of a run that was ended, else of the last one that was complete."""
    part = _part(path) if path else None
    if part and part.exists():
        raw: Raw = json.loads(part.read_text())
        return raw
    return read_raw(path)


def keep(path: Path, raw: Raw) -> None:
    """Beside the file: the figure over `raw` takes seconds, and would be made anew after each turn."""
    write_json(_part(path), raw)


def _part(path: Path) -> Path:
    return path.with_suffix(".part")


def put(raw: Raw, unit: Unit) -> None:
    """Add a unit; an older one of the same place goes."""
    raw["units"] = ordered([*(each for each in raw["units"] if place(each) != place(unit)), unit])


def ordered(units: Iterable[Unit]) -> list[Unit]:
    """By run, kind and number."""
    places = [*SETUPS, *SAMPLINGS, *KINDS, *MORE_KINDS]

    def by(unit: Unit) -> tuple[int, ...]:
        setup, sampling, kind = (places.index(unit[key]) for key in ("setup", "sampling", "kind"))
        return setup, sampling, unit["users"], kind, unit["number"]

    return sorted(units, key=by)


def is_done(unit: Unit, names: Sequence[str]) -> bool:
    """Whether all of `names` were asked, and their texts are those that they must be."""
    return set(names) <= set(unit["answers"]) and not list(changed([unit]))


def check_alike(raw: Raw, about: Mapping[str, Any]) -> None:
    """Raises UsageError where `raw` has turns of other settings than `about`: no mean is over both."""
    for unit in raw["units"]:
        for key, value in about.items():
            if unit[key] != value:
                raise UsageError(
                    f"what is measured there has {key} {unit[key]!r}, not {value!r}; name another folder with --out, "
                    "or remove the figure's .json and .part"
                )


def changed(units: Iterable[Unit]) -> Iterator[str]:
    """Where drafts have changed a text at level exact: never, or the server is wrong."""
    for unit in units:
        if unit["level"] == EXACT:
            for name, answer in unit["answers"].items():
                for number, character in answer["other"]:
                    yield (
                        f"{run_of(unit)}: {name}, {unit['kind']} {number}, from character {character} of the answer on"
                    )


def first_difference(text: str, expected: str) -> int | None:
    """The number of the first other character, from 0; None = the texts are equal."""
    if text == expected:
        return None
    pairs = enumerate(zip(text, expected))
    return next((at for at, (ours, other) in pairs if ours != other), min(len(text), len(expected)))


def runs(units: Iterable[Unit]) -> dict[Run, list[Unit]]:
    found: dict[Run, list[Unit]] = {}
    for unit in ordered(units):
        found.setdefault(run_of(unit), []).append(unit)
    return found


def shared(units: Sequence[Unit]) -> list[str]:
    """The drafters that were asked in every unit, but `none`."""
    first = units[0]["answers"]
    return [name for name in first if name != NONE and all(name in unit["answers"] for unit in units)]


def sooner(answer: Mapping[str, Any]) -> float:
    """The more, the sooner the first text."""
    return 1 / max(1e-3, float(answer["first_s"]))


def core_share(turn: Mapping[str, Any]) -> float:
    """How much of its core the server had while it was asked: below 1 where other programs computed there."""
    return float(turn["cpu_s"] / turn["group_s"])


def drafting(units: Sequence[Unit], name: str) -> dict[str, Any]:
    """What a server drafted, over all turns; `share`: of its sessions' steps, those with a draft of its own."""
    turns = [unit["answers"][name] for unit in units]
    total = {
        key: sum(each[key] for each in turns) for key in ("places", "drafts", "drafted", "accepted", "tokens")
    }
    # Each step that decides writes what stands, and one token more.
    steps = max(1, total["tokens"] - total["accepted"])
    return {
        **total,
        "share": round(total["drafts"] / max(1, total["places"]), 4),
        "tokens a step": round(total["tokens"] / steps, 3),
    }


def summary(run: Run, units: Sequence[Unit]) -> dict[str, Any]:
    """All of one run."""
    names, kinds = shared(units), by_kind(units)
    turns = [answer for unit in units for answer in unit["answers"].values()]
    ratios = {kind: {name: ratio(group, name) for name in names} for kind, group in kinds.items()}
    drafted = {kind: {name: drafting(group, name) for name in names} for kind, group in kinds.items()}
    is_streamed = all(turn["first_s"] is not None for turn in turns)
    return {
        **run._asdict(),
        "turns": {kind: len(group) for kind, group in kinds.items()},
        "ratios": ratios,
        "over the kinds": {name: ratio(units, name) for name in names},
        "first text, sooner": {name: ratio(units, name, sooner) for name in names} if is_streamed else None,
        "none, tokens/s": {
            kind: round(median(rate(unit["answers"][NONE]) for unit in group), 2)
            for kind, group in kinds.items()
        },
        "drafting": drafted,
        "never drafted": [
            [name, kind] for kind, each in drafted.items() for name in names if not each[name]["drafts"]
        ],
        "missed": list(_missed(ratios)),
        "levels": sorted({unit["level"] for unit in units}),
        "other texts": {name: sum(len(unit["answers"][name]["other"]) for unit in units) for name in names},
        "least share of its core": round(min(map(core_share, turns)), 3),
        "disturbed": [sum(core_share(turn) < OWN_CORE for turn in turns), len(turns)],
        "idle servers, cores": round(
            sum(turn["idle_cpu_s"] for turn in turns) / sum(turn["group_s"] for turn in turns), 4
        ),
    }


def required(kind: str, name: str) -> float:
    """Of tokens/s without drafts: what a drafter must reach on a kind of text. Heads copy nothing, and the default has
    only never to lose."""
    return ENOUGH if kind in COPYING and name not in (*HEADS, AUTO_DRAFTER) else REQUIRED


def _missed(ratios: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[dict[str, Any]]:
    """Drafters below what is required of a kind."""
    for kind, each in ratios.items():
        for name, found in each.items():
            if found["mean"] < (least := required(kind, name)):
                yield {"drafter": name, "kind": kind, "ratio": found["mean"], "required": least}


def write(path: Path, raw: Raw) -> dict[str, Any]:
    """The file with the figure over `raw`, in place of what `keep` wrote; returns it."""
    document = finished(raw, path.stem)
    write_json(path, document)
    _part(path).unlink(missing_ok=True)
    return document


def finished(raw: Raw, name: str = "server_drafts") -> dict[str, Any]:
    """The figure of this name, see FIGURES; at least one unit was measured."""
    found = runs(raw["units"])
    samples: dict[str, list[float]] = {}
    ratios: list[Comparison] = []
    for run, units in found.items():
        names = shared(units)
        samples |= {
            f"{run}: {each}": [rate(unit["answers"][each]) for unit in units] for each in (NONE, *names)
        }
        ratios += [
            Comparison(f"{run}: {each}", f"{run}: {each}", f"{run}: {NONE}", REQUIRED) for each in names
        ]
    figure = Figure(
        title=FIGURES[name][0],
        unit="tokens/s",
        more_is_better=True,
        compared=_compared(raw["units"][0]),
        loses=FIGURES[name][1],
        samples=samples,
        ratios=tuple(ratios),
        facts={"runs": [summary(run, units) for run, units in found.items()], "pieces": len(raw["pieces"])},
    )
    origin = raw["pieces"][-1] if raw["pieces"] else {}
    return {"figure": name, **figure.as_json(origin), "raw": raw}


def _compared(unit: Unit) -> str:
    return (
        f"{unit['target']} behind `opensled serve --server-drafter NAME`, one server for each drafter, one thread on "
        f"core {SERVER_CORE}; only the one that is asked works. Clients without a device on the other cores. Answers "
        f"of at most {unit['max_tokens']} tokens, from the requests to the last token of all users, prompts being read "
        f"included; every prompt, or group of prompts at once, goes to all servers in turns. Draft model: "
        f"{unit['draft'] or 'none here'}. At level exact all texts are equal, or the run ends with an error."
    )
