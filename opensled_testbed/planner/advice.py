"""The plan's recommendation, in words."""

from __future__ import annotations

from math import isinf

from hw_profiles import catalog
from opensled_testbed.planner.planning import Plan, PlanRow


def advice(plan: Plan) -> str:
    """One or two sentences: what to run, and why."""
    row = plan.choice
    if row is None:
        return _nobody(plan)
    return f"{_ADVICE[row.found.mode](plan, row)} {_size(plan, row)}".strip()


def _nobody(plan: Plan) -> str:
    binds = sorted({row.binds for row in plan.rows if row.found.mode == "centralized"})
    return (
        f"No user can be served here at {plan.config.pace:g} tokens/s; what binds already for one user: "
        f"{', '.join(binds)}. Ask for a lower --pace, fewer --weight-bits, a shorter --context or a larger accelerator."
    )


_MEMORY = " Memory is the limit, not speed: only less KV for each user, or more memory, lets more of them in."


def _decode(plan: Plan, row: PlanRow) -> str:
    others = [plan.of(row.accelerator, mode) for mode in ("server-sd", "sled-static", "sled-continuous")]
    other = max(others, key=lambda each: each.users)
    return (
        f"Drafting does not pay here: use the server's own decoding (edges with --drafter none) on {row.accelerator}. "
        f"It holds {_users(row.users)}, bound by {row.binds}; the best mode that drafts ({other.found.mode}) holds "
        f"{other.users}.{_MEMORY if row.binds == 'KV memory' else ''}"
    )


def _draft_beside(plan: Plan, row: PlanRow) -> str:
    return (
        f"Draft beside the server: on {row.accelerator} a {plan.config.draft} draft of {_tokens(row)} holds "
        f"{_users(row.users)}{_against(plan, row)}. Devices that draft hold "
        f"{plan.of(row.accelerator, 'sled-continuous').users}."
    )


def _draft_on_devices(plan: Plan, row: PlanRow) -> str:
    return (
        f"Let the devices draft, {_tokens(row)} a round: {row.accelerator} holds {_users(row.users)}"
        f"{_against(plan, row)}, bound by {row.binds}. Start the server as it is (policy goodput), and the edges as "
        f"they are: the server hints to each how much to draft."
    )


_ADVICE = {
    "centralized": _decode,
    "server-sd": _draft_beside,
    "sled-static": _draft_on_devices,
    "sled-continuous": _draft_on_devices,
}


def _against(plan: Plan, row: PlanRow) -> str:
    gain = plan.gain(row)
    if isinf(gain):
        return ", where the server's own decoding is too slow for anyone"
    return f", {gain:.2f} times those of the server's own decoding"


def _size(plan: Plan, row: PlanRow) -> str:
    """What the users there are need, where their number is given."""
    users = plan.config.users
    if not users:
        return ""
    count = row.accelerators_for(users)
    return f"{_users(users)} need {count} x {row.accelerator}, ${count * row.usd_hour:.2f} an hour."


def _users(count: int) -> str:
    return f"{count} user{'s' * (count != 1)}"


def _tokens(row: PlanRow) -> str:
    return f"{row.found.draft_length} token{'s' * (row.found.draft_length != 1)}"


def alone(plan: Plan) -> str:
    """What a device does without any server; no capacity of a target, so it stands beside the table."""
    config = plan.config
    speed = catalog.device(config.device).draft(config.draft).decode_per_s.typical
    return f"Without a server the device writes {speed:g} tokens/s of the {config.draft} draft's own text."
