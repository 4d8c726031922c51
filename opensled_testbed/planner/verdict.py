"""The plan in words: first one sentence with the verdict, then why."""

from math import isinf

from opensled_testbed.config import MODEL
from opensled_testbed.planner.planning import Plan, PlanRow
from opensled_testbed.planner.task_acceptance import TASKS
from opensled_testbed.recordings import PAIRS

DRAFTING = ("server-sd", "sled-static", "sled-continuous")


def verdict(plan: Plan) -> str:
    """Whether drafting pays here, how many users there can be, what to do, and which drafts that assumes."""
    return f"{_answer(plan)} {_assumption(plan)}"


def _assumption(plan: Plan) -> str:
    source, first = plan.source, plan.work.acceptance.first
    if source.rate is None:
        return (
            f"This assumes drafts as recorded with {PAIRS[source.pair].words}, {100 * first:.0f} % of which are right "
            f"at the first position; --acceptance {', '.join(TASKS)} or a number assumes others."
        )
    task = TASKS.get(source.acceptance)
    on = f", as on {task.words}" if task else ""
    return (
        f"This assumes that {100 * source.rate:.3g} % of the draft tokens are accepted at each position{on}."
    )


def _answer(plan: Plan) -> str:
    row = plan.choice
    if row is None:
        return (
            f"No user of {plan.config.target} can be served here at {plan.config.pace:g} tokens/s: ask for a lower "
            "--pace, fewer --weight-bits, a shorter --context or a larger accelerator."
        )
    return _VERDICTS[row.found.mode](plan, row)


def _decode(plan: Plan, row: PlanRow) -> str:
    audience = f" for {_users(plan.config.users)}" if plan.config.users else ""
    return (
        f"Drafting does not pay here{audience}: let the server decode alone (edges with --drafter none) on "
        f"{row.accelerator}, which holds {_served(plan, row)}."
    )


def _draft_beside(plan: Plan, row: PlanRow) -> str:
    return (
        f"Drafting pays beside the target, not on the devices: with a {_drafter(plan)} draft of {_tokens(row)} on "
        f"the accelerator, {row.accelerator} holds {_served(plan, row)}{_against(plan, row)}."
    )


def _drafter(plan: Plan) -> str:
    """What makes a draft beside the target."""
    return plan.config.draft if plan.config.drafter == MODEL else f"{plan.config.drafter} head's"


def _draft_on_devices(plan: Plan, row: PlanRow) -> str:
    return (
        f"Drafting pays here: let the devices draft {_tokens(row)} a round, and {row.accelerator} holds "
        f"{_served(plan, row)}{_against(plan, row)}."
    )


_VERDICTS = {
    "centralized": _decode,
    "server-sd": _draft_beside,
    "sled-static": _draft_on_devices,
    "sled-continuous": _draft_on_devices,
}
_MEMORY = "Memory is the limit, not speed: only less KV for each user, or more memory, lets more of them in."


def details(plan: Plan) -> str:
    """Why, and what the users there are need."""
    row = plan.choice
    if row is None:
        binds = sorted({each.binds for each in plan.rows if each.found.mode == "centralized"})
        return f"What binds already for one user: {', '.join(binds)}."
    return " ".join(filter(None, (_why(plan, row), _size(plan, row))))


def _why(plan: Plan, row: PlanRow) -> str:
    bound = f"It is bound by {row.binds}."
    if row.found.mode == "centralized":
        other = max((plan.of(row.accelerator, mode) for mode in DRAFTING), key=lambda each: each.users)
        at = f" at {other.pace:.3g} tokens/s each" if other.pace != row.pace else ""
        best = f"The best mode that drafts ({other.found.mode}) holds {_users(other.users)}{at}."
        return f"{bound} {best}{f' {_MEMORY}' if row.binds == 'KV memory' else ''}"
    if row.found.mode == "server-sd":
        devices = plan.of(row.accelerator, "sled-continuous")
        at = f" at {devices.pace:.3g} tokens/s each" if devices.pace != row.pace else ""
        start = (
            f"Start the server with --drafter {plan.config.drafter}: policy goodput decides when it drafts, and how "
            "much."
        )
        return f"{bound} Devices that draft hold {_users(devices.users)}{at}. {start}"
    return (
        f"{bound} Start the server as it is (policy goodput), and the edges as they are: the server hints to each how "
        "much to draft."
    )


def _served(plan: Plan, row: PlanRow) -> str:
    pace = f"{plan.config.pace:g}" if row.pace == plan.config.pace else f"{row.pace:.3g}"
    return f"{_users(row.users)} at {pace} tokens/s each"


def _against(plan: Plan, row: PlanRow) -> str:
    gain = plan.gain(row)
    if isinf(gain):
        return ", where its own decoding is too slow for anyone"
    return f", {gain:.2f} times as many as its own decoding"


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
