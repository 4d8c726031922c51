"""The answer in words, as two tables for a terminal, and as JSON."""

from dataclasses import asdict
from typing import Any

from hw_profiles import catalog
from lab.testbed.config import MODEL, PlanConfig
from lab.testbed.emulation.draft_head import HeadProfile
from lab.testbed.planner.answer import Answer, Held, UserRates
from lab.testbed.planner.bound import bound_words, lone_rates, published_words, settings_of
from lab.testbed.planner.page import assumed, columns, table, wrapped
from lab.testbed.planner.planning import BITS, source_of
from lab.testbed.planner.setting import recorded_work
from lab.testbed.planner.trip import mean_s
from lab.testbed.planner.ways import ALONE, BESIDE, BOTH, DEVICES, SERVER, WAYS

ROWS = {
    ALONE: "no drafts, the server alone",
    DEVICES: "drafts by the devices",
    SERVER: "drafts by the server",
    BOTH: "drafts by both",
}
WHO = {ALONE: "nobody", DEVICES: "the devices", SERVER: "the server", BOTH: "devices and server"}
START = {
    ALONE: "Start the server with --server-drafter none, and devices with --drafter none.",
    DEVICES: "Start server and devices as they are: policy goodput asks for drafts where they help.",
    SERVER: "Start the server with --server-drafter {drafter}, and devices with --drafter none.",
    BOTH: "Start the server with --server-drafter {drafter}, and devices as they are.",
}
LIMITS = {
    "KV memory": "memory",
    "compute": "arithmetic",
    "weights": "reading weights",
    "KV reads": "reading contexts",
    "overhead": "step overhead",
    "device": "device",
    "link": "link",
}
LOSS = 0.98  # a gain below this is named


def text(answer: Answer) -> str:
    """Who should draft and what each user gets, then how many users are held, then what that assumes."""
    width = columns()
    if not answer.rates:
        return f"{wrapped(_no_room(answer), width)}\n\n{assumed(assumptions(answer))}"
    parts = [*(wrapped(words, width) for words in (verdict(answer), *notes(answer)))]
    parts += [_rates_table(answer), _held_table(answer)]
    return "\n\n".join([*parts, wrapped(_cost(answer), width), assumed(assumptions(answer))])


def as_json(answer: Answer) -> dict[str, Any]:
    """All that the text says, with the numbers not rounded."""
    config = answer.config
    head = _head(config)
    return {
        "label": {"tokens_per_s": "simulated", "held": "derived", "cost": "derived", "one_user": "derived"},
        "question": asdict(config),
        "accelerator": answer.machines.accelerator,
        "accelerators": answer.machines.number,
        "weight_bits": answer.weight_bits,
        "fits": bool(answer.rates),
        "places": answer.places,
        "tokens_per_s": [_rates_json(each) for each in answer.rates],
        "held": [_held_json(answer, each) for each in answer.held],
        "one_user": lone_rates(settings_of(config, answer.machines.accelerator)),
        "usd_hour": answer.usd_hour,
        "usd_per_million_tokens": answer.usd_per_million_tokens if answer.rates else None,
        "verdict": verdict(answer) if answer.rates else _no_room(answer),
        "notes": notes(answer) if answer.rates else [],
        "assumes": {**_drafts_json(config), **assumptions(answer)},
        "head": {"label": "derived", **_head_json(head)} if head else None,
    }


def _rates_json(each: UserRates) -> dict[str, Any]:
    return {
        "users": each.users,
        **each.rates,
        "gain": {way: each.gain(way) for way in WAYS},
        "who_drafts": each.best,
    }


def _held_json(answer: Answer, each: Held) -> dict[str, Any]:
    needed = answer.needed(each) if answer.config.users else None
    return {
        "tokens_per_s": each.pace,
        **{way: each.users.get(way) for way in WAYS},
        "who_drafts": each.best,
        "limited_by": each.binds,
        "accelerators_needed": needed,
    }


def _drafts_json(config: PlanConfig) -> dict[str, Any]:
    source = source_of(config)
    return {**source._asdict(), "rate": source.rate}


# -- words ------------------------------------------------------------------------------------------------------


def verdict(answer: Answer) -> str:
    """Who should draft for the users asked for, what each of them gets, and how to start that."""
    lead = answer.lead
    best, start = lead.best, START[lead.best].format(drafter=answer.config.server_drafter)
    if best == ALONE:
        gives = f"{_each(lead)} {lead.rate:.1f} tokens/s, and drafts make that no faster."
        return f"Let the server write alone: {gives} {start}"
    gain = f"{lead.rate / lead.of(ALONE):.2f} times the {lead.of(ALONE):.1f} without drafts"
    return f"Let {WHO[best]} draft: {_each(lead)} {lead.rate:.1f} tokens/s, {gain}. {start}"


def notes(answer: Answer) -> list[str]:
    """What else a buyer must know: precision, memory, what was published, who drafts best for one, drafts that cost
    speed."""
    config, accelerator = answer.config, answer.setting.cost.accelerator
    found = (
        _narrowed(answer),
        published_words(accelerator, config.target, answer.weight_bits),
        bound_words(config, answer.machines.accelerator),
        _crowd(answer),
        _others(answer),
        _losses(answer),
    )
    return list(filter(None, found))


def _each(rates: UserRates) -> str:
    return f"each of {rates.users} users gets" if rates.users > 1 else "a single user gets"


def _narrowed(answer: Answer) -> str:
    if not answer.is_narrowed:
        return ""
    return f"{_does_not_fit(answer, BITS[0])}, so this plan takes {_weights(answer, answer.weight_bits)}."


def _does_not_fit(answer: Answer, bits: float) -> str:
    profile = answer.setting.cost.accelerator
    room = profile.memory_gib * 2**30 * profile.usable_memory.typical / 1e9
    return (
        f"{_weights(answer, bits)} and a context of {answer.config.context:,} tokens do not fit in the {room:.1f} GB "
        f"that {profile.id} has for a model"
    )


def _weights(answer: Answer, bits: float) -> str:
    size = catalog.target(answer.config.target).at(bits).weight_bytes / 1e9
    return f"{bits:g}-bit weights ({size:.1f} GB)"


def _no_room(answer: Answer) -> str:
    """Where not even one user fits."""
    other = answer.fitting()
    held = (
        f"At {answer.weight_bits:g} bits it fits on {', '.join(other)}."
        if other
        else "It fits on no accelerator."
    )
    fewer = " Without --weight-bits the plan tries 4." if answer.weight_bits > BITS[-1] else ""
    return f"{answer.config.target} cannot be served here: {_does_not_fit(answer, answer.weight_bits)}. {held}{fewer}"


def _crowd(answer: Answer) -> str:
    """Where memory does not hold the users asked for, or not on one machine."""
    users, machines = answer.config.users, answer.machines
    if users <= answer.places // machines.number:
        return ""
    if users > answer.places:
        held = f"{machines.number} x {machines.accelerator} has memory for {answer.places} users at a time, not {users}"
    else:
        each = answer.places // machines.number
        shares = f"{machines.number} x {machines.accelerator}, and each serves an equal share"
        held = f"Memory for {users} users at a time takes {shares} (one has room for {each})"
    narrow = answer.places_at(BITS[-1])
    fewer = (
        f"; with --weight-bits {BITS[-1]:g} there is room for {narrow}"
        if answer.weight_bits > BITS[-1]
        else ""
    )
    return f"{held}{fewer}."


def _others(answer: Answer) -> str:
    """Where other numbers of users have another answer."""
    lead = answer.lead
    found = [
        f"for {_users_head(each.users)} {WHO[each.best]}"
        + (f" ({each.gain(each.best):.2f}x)" if each.best != ALONE else "")
        for each in answer.rates
        if each.best != lead.best
    ]
    return f"Who should draft changes with the number of users: {', '.join(found)}." if found else ""


def _losses(answer: Answer) -> str:
    found = [
        f"{ROWS[way]} {each.of(way):.1f} instead of {each.of(ALONE):.1f} for {_users_head(each.users)}"
        for each in answer.rates
        for way in WAYS[1:]
        if (gain := each.gain(way)) is not None and gain < LOSS
    ]
    return f"Slower with drafts, in tokens/s of each user: {'; '.join(found)}." if found else ""


def _cost(answer: Answer) -> str:
    lead = answer.lead
    users = f"{lead.users} users read" if lead.users > 1 else "a single user reads"
    return (
        f"Price: ${answer.usd_hour:.2f} an hour for {answer.machines.number} x {answer.machines.accelerator}, "
        f"${answer.usd_per_million_tokens:.2f} per million tokens while {users} without a pause."
    )


def assumptions(answer: Answer) -> dict[str, str]:
    """Models, machines, users, drafts, and what kind of number each is, in a sentence or two each."""
    config, accelerator = answer.config, answer.setting.cost.accelerator
    own = config.server_drafter
    beside = f"a {config.draft} draft" if own == MODEL else f"a {own} head"
    target = catalog.target(config.target).name
    return {
        "target": (
            f"{target}, {answer.weight_bits:g}-bit weights, on {answer.machines.number} x {accelerator.name}; {beside} "
            "where the server drafts"
        ),
        "devices": devices_words(config),
        "users": (
            f"all ask at once, and again as soon as an answer ends; {answer.work.prompt:.0f} tokens of a question, "
            f"{answer.work.answer:.0f} of an answer, {config.context:,} of context"
        ),
        "drafts": drafts_words(config),
        "numbers": _labels(answer),
    }


def devices_words(config: PlanConfig) -> str:
    """The devices, what they draft with, and their link."""
    device, link = catalog.device(config.devices), catalog.link(config.link)
    speed = device.draft(config.draft).decode_per_s.typical
    return (
        f"{device.name}, a {config.draft} draft at {speed:g} tokens/s, {link.name} ({1000 * mean_s(link):.3g} ms there "
        "and back)"
    )


def drafts_words(config: PlanConfig) -> str:
    """How often drafts are right."""
    source = source_of(config)
    if source.rate is None:
        first = recorded_work(source).acceptance.first
        return f"{source.words}, {100 * first:.0f} % of first tokens accepted; --acceptance takes your own"
    return f"{source.words} at each position"


def _labels(answer: Answer) -> str:
    profile = answer.setting.cost.accelerator
    kind = "measured" if profile.measured else "derived from public figures, not measured"
    return (
        "tokens/s simulated, with the wait for the first token; users held derived, nine of ten of whom keep the pace; "
        f"the profile of {profile.id} is {kind}"
    )


def _head(config: PlanConfig) -> HeadProfile | None:
    """The draft head beside the target; None where a model drafts."""
    own = config.server_drafter
    return None if own == MODEL else HeadProfile.usual(own, catalog.target(config.target))


def _head_json(head: HeadProfile) -> dict[str, Any]:
    """What a head is taken for."""
    sizes = ("kind", "length", "params", "weight_bytes", "kv_bytes", "pass_bytes", "draft_operations")
    return {name: getattr(head, name) for name in sizes}


# -- tables -----------------------------------------------------------------------------------------------------


def _rates_table(answer: Answer) -> str:
    head = ["Tokens/s of each user (simulated)", *(_users_head(each.users) for each in answer.rates)]
    rows = [[ROWS[way], *(_rate(each, way) for each in answer.rates)] for way in WAYS]
    return table(head, [*rows, ["who should draft", *(WHO[each.best] for each in answer.rates)]])


def _users_head(users: int) -> str:
    return f"{users} user{'s' * (users != 1)}"


def _rate(each: UserRates, way: str) -> str:
    gain = each.gain(way)
    return "no room" if gain is None else f"{each.of(way):.1f}  {gain:.2f}x"


def _held_table(answer: Answer) -> str:
    head = ["Users held (derived)", *(f"{each.pace:g} tokens/s" for each in answer.held)]
    rows = [
        [ROWS[way], *(str(each.users[way]) for each in answer.held)]
        for way in WAYS
        if way not in BESIDE or answer.setting.draft_cost
    ]
    rows.append(["limited by", *(LIMITS[each.binds] for each in answer.held)])
    if users := answer.config.users:
        needed = [answer.needed(each) for each in answer.held]
        rows.append(
            [
                f"{answer.machines.accelerator} needed for {users} users",
                *(str(each or "-") for each in needed),
            ]
        )
    return table(head, rows)
