"""What device_heads found, as tables: the best of each drafter in every cell, and where a head on the device wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.device_heads_cells import ALIKE, DEVICE, DRAFT, FIXED, NONE, RECORDED, SERVER
from benchmarks.program import table
from hw_profiles.device_head import FLOAT32

Entry = Mapping[str, Any]
OTHERS = (NONE, DRAFT, SERVER)
WORDS = {RECORDED: "acceptance as recorded with SmolLM2", ALIKE: "acceptance of published pairs"}
WIN = 1.02  # smaller differences are the windows' noise (chosen)


class Compared(NamedTuple):
    """One cell with one source of acceptance: the best entry of each."""

    place: dict[str, Any]
    source: str
    others: dict[str, Entry]
    exported: Entry  # the head on the device in float32
    few: Entry  # in few bits

    @property
    def head(self) -> Entry:
        return max(self.exported, self.few, key=lambda entry: float(entry["rate"]))

    @property
    def times(self) -> float:
        """The head's tokens/s over those of the best of the others."""
        return float(self.head["rate"]) / max(float(entry["rate"]) for entry in self.others.values())

    @property
    def wins(self) -> bool:
        return self.times > WIN

    def beats_all_but_the_server(self, head: Entry) -> bool:
        """Whether `head` is the best at a server that has none of its own."""
        return float(head["rate"]) > WIN * max(float(self.others[name]["rate"]) for name in (NONE, DRAFT))

    @property
    def id(self) -> str:
        place = self.place
        users = f"{place['users']} user{'s' * (place['users'] > 1)}"
        return f"{place['server']}, {place['device']}, {place['link']}, {users}"


def compared(places: Sequence[dict[str, Any]], runs: Sequence[Entry]) -> list[Compared]:
    """Every place with every source."""
    found = []
    for source in WORDS:
        for place in places:
            here = [run for run in runs if _is_at(run, place) and run["source"] in ("", source)]
            device = [run for run in here if run["drafts"] == DEVICE]
            if not device:
                continue
            others = {name: _best(run for run in here if run["drafts"] == name) for name in OTHERS}
            exported = _best(run for run in device if run["bits"] == FLOAT32)
            few = _best(run for run in device if run["bits"] != FLOAT32)
            found.append(Compared(place, source, others, exported, few))
    return found


def _is_at(run: Entry, place: Mapping[str, Any]) -> bool:
    same = all(run[name] == place[name] for name in ("server", "link", "users"))
    return same and run["device"] in ("", place["device"])


def _best(runs: Iterable[Entry]) -> Entry:
    return max(runs, key=lambda run: float(run["rate"]))


INTRODUCTION = """\
Simulated but for the last table: devices, links and accelerators by their profiles, one target of 8B on a hub (AGX
Orin) and one of 32B on an H200 with 8,192 positions in each session. Tokens/s of one user who asks again at once, so
with the wait for the first token of each answer of at most 96. Every contender has the best of its lengths; where the
head on the device comes within 5 % of the best, all are simulated once more under the default policy, which decides
itself. A head on the device gets rows as large as those of the emulated target, the last of the prompt with its first
token; its block takes what hw_profiles/device_head.py says: in float32, as `opensled export-head` writes it, by ONNX
Runtime on the cores, and in 4.5 bits a weight, which is arithmetic alone. Acceptance of drafts is **real**, recorded
along 96 texts of six kinds with the shipped heads and the distilled draft of SmolLM2, or drawn with a chance a token of
{draft:g} (draft model) and {head:g} (head), as of published pairs. Of four numbers in a cell: no drafts, draft model,
head on the server, head on the device in its faster form; ?: no answer that began within the window ended in it. Less
than 2 % counts as no difference."""


def section(document: Mapping[str, Any]) -> list[str]:
    """For README.md; nothing in it is written by hand."""
    facts = document["facts"]
    rows = compared(document["places"], document["runs"])
    lines = [f"## {document['title']} (simulated, some cells emulated)", ""]
    lines += [INTRODUCTION.format(draft=facts["alike"]["draft model"], head=facts["alike"]["head"]), ""]
    lines += [verdict(rows, source) for source in WORDS]
    lines += [without_server(rows, source) for source in WORDS]
    lines += ["", "Acceptance, and tokens a round with blocks of 4 (real):", ""]
    for drafter, told in facts["acceptance"].items():
        lines += [f"- `{drafter}`: {_acceptance(told)}"]
    lines += ["", *_blocks(facts["block_ms"])]
    for source, words in WORDS.items():
        own = [row for row in rows if row.source == source]
        lines += ["", f"### Tokens/s of a user, {words}", "", *_rates(own)]
        lines += ["", f"### First token, rows and bytes, {words}", "", *_costs(own)]
    return [*lines, *_emulated(document["emulated"]), ""]


def verdict(rows: Sequence[Compared], source: str) -> str:
    """In one line: where a head on the device is the best of all."""
    own = [row for row in rows if row.source == source]
    if not own:
        return f"- {WORDS[source]}: nothing was simulated"
    won = [row for row in own if row.wins]
    best = max(own, key=lambda row: row.times)
    if not won:
        nearest = f"{best.id}: {best.times:.2f} of the best of the others"
        told = (
            f"a head on the device beats all three others nowhere** (of {len(own)} cells; nearest {nearest})"
        )
        return f"- **{WORDS[source]}: {told}"
    named = "; ".join(f"{row.id} ({row.times:.2f}, {_form(row.head)})" for row in won)
    told = f"a head on the device beats all three others in {len(won)} of {len(own)} cells**: {named}"
    return f"- **{WORDS[source]}: {told}"


def without_server(rows: Sequence[Compared], source: str) -> str:
    """In one line: where it is the best of all at a server that drafts nothing itself."""
    own = [row for row in rows if row.source == source]
    exported = [row for row in own if row.beats_all_but_the_server(row.exported)]
    few = [row for row in own if row.beats_all_but_the_server(row.few)]
    told = f"in float32 in {len(exported)} of {len(own)} cells{_named(exported)}"
    told += f"; in 4.5 bits in {len(few)}{_named(few)}"
    return f"- Where the server has no head of its own, {WORDS[source]}, it beats the other two {told}"


def _named(rows: Sequence[Compared]) -> str:
    """Cells, those of a device at a server together."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        place = row.place
        groups.setdefault(f"{place['device']} before {place['server']}", []).append(
            f"{place['link']} {place['users']}"
        )
    named = "; ".join(f"{name} ({', '.join(each)})" for name, each in groups.items())
    return f": {named}" if named else ""


def _form(entry: Entry) -> str:
    return f"{entry['kind']}, {'float32' if entry['bits'] == FLOAT32 else 'few bits'}"


def _acceptance(told: Sequence[str]) -> str:
    """Of the lines of the recorder's table: kind, items, tokens, first token, share, tokens a round."""
    cells = [line.split() for line in told[1:]]
    return "; ".join(f"{name} {first}, {round}" for name, _, _, first, _, round in cells)


def _blocks(blocks: Sequence[Entry]) -> list[str]:
    head = (
        "target of",
        "device",
        "head",
        "a draft token, ms",
        "a block, float32",
        "4.5 bits",
        "MB in float32",
    )
    rows = [
        [
            block["server"],
            block["device"],
            block["kind"],
            *(f"{block[name]:g}" for name in ("draft token", "float32", "few bits", "MB, float32")),
            f"{block['bytes a row'] / 1000:.1f}",
            f"{block['bytes a prompt'] / 1000:,.0f}",
        ]
        for block in blocks
    ]
    return table((*head, "kB a token", "kB of a long prompt"), rows)


def _rates(rows: Sequence[Compared]) -> list[str]:
    head = (
        "cell",
        NONE,
        DRAFT,
        SERVER,
        f"{DEVICE}, float32",
        "in 4.5 bits",
        "best of it over best of the others",
    )
    return table(head, [_rate_cells(row) for row in rows])


def _rate_cells(row: Compared) -> list[str]:
    entries = (*(row.others[name] for name in OTHERS), row.exported, row.few)
    times = f"{row.times:.2f}"
    return [
        row.id,
        *(f"{entry['rate']:.1f}{_how(entry)}" for entry in entries),
        f"**{times}**" if row.wins else times,
    ]


def _how(entry: Entry) -> str:
    """The setting that was best."""
    kind = [entry["kind"]] if entry["kind"] else []
    if entry["drafts"] == NONE:
        return ""
    length = "default policy" if entry["policy"] != FIXED else f"k={entry['length']}"
    return (
        f" ({', '.join([*kind, length] if entry['drafts'] != DEVICE or entry['policy'] != FIXED else kind)})"
    )


def _costs(rows: Sequence[Compared]) -> list[str]:
    """Four numbers a cell, in the order of the contenders; of the head on the device the form that is faster."""
    head = (
        "cell",
        "first token, ms",
        "rows of the server a token",
        "server, ms a token",
        "of it the head",
        "kB down a token",
    )
    return table(head, [_cost_cells(row) for row in rows])


def _cost_cells(row: Compared) -> list[str]:
    entries = (*(row.others[name] for name in OTHERS), row.head)
    names = ("first_ms", "rows_per_token", "server_ms_per_token")
    cells = [
        " / ".join(f"{entry[name]:.{digits}f}" if entry[name] else "?" for entry in entries)
        for name, digits in zip(names, (0, 2, 1))
    ]
    drafting = f"{row.others[SERVER]['head_ms_per_token']:.1f}"
    down = " / ".join(f"{entry['bytes_down_per_token'] / 1000:.2f}" for entry in entries)
    return [row.id, *cells, drafting, down]


def _emulated(entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return []
    head = (
        "cell",
        "drafts",
        "tokens/s of a user, emulated",
        "simulated",
        "first token, ms",
        "simulated",
        "kB down a token",
        "simulated",
    )
    rows = [
        [
            f"{entry['server']}, {entry['device']}, {entry['link']}, {entry['users']} users",
            f"{entry['drafts']} {entry['kind']}".rstrip() + " VOID" * entry["void"],
            *_pairs(entry, (("rate", 1, 1), ("first_ms", 0, 1), ("bytes_down_per_token", 2, 1000))),
        ]
        for entry in entries
    ]
    introduction = (
        "Real processes and streams on emulated clocks, with answers of 48 tokens: `opensled serve` sends rows of the "
        "size of the emulated target, which really travel the emulated link. VOID: this machine was too slow."
    )
    return ["", "### The same, emulated", "", introduction, "", *table(head, rows)]


def _pairs(entry: Entry, names: Sequence[tuple[str, int, int]]) -> list[str]:
    return [
        f"{entry[how][name] / unit:.{digits}f}"
        for name, digits, unit in names
        for how in ("emulated", "simulated")
    ]
