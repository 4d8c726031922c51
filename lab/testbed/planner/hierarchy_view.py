"""The plan of a hierarchy in words, as a table for a terminal, and as JSON."""

from dataclasses import asdict
from typing import Any

from lab.testbed.planner.hierarchy import Below
from lab.testbed.planner.hierarchy_plan import HierarchyPlan, PathRow
from lab.testbed.planner.hierarchy_site import CLOUD, DEVICE, DRAFT, HUB, MIDDLE, TARGET, TierDrafts
from lab.testbed.planner.hierarchy_site import words_of as short_words
from lab.testbed.planner.page import columns, table, wrapped
from lab.testbed.planner.trip import mean_s

USUAL = 4  # draft tokens of the blocks whose acceptance is told
HEAD = ("chain", "blocks", "tokens/s", "positions", "tokens", "users at")
HEAD2 = ("", "", "of a user", "/token", "/step", "that pace")
LABEL = (
    "Positions and steps are those of the target in the cloud. All numbers are derived from hardware profiles by the "
    "law in docs/planning.md; none was measured."
)


def text(plan: HierarchyPlan) -> str:
    """The verdict first, then the details."""
    width = columns()
    parts = [verdict(plan), _advice(plan), *_comparisons(plan), _max_users(plan)]
    rows = [HEAD2, *(_cells(plan, row) for row in plan.rows)]
    words = (" ".join(filter(None, parts)), f"{_left_out(plan)}{LABEL}")
    said, label = (wrapped(each, width) for each in words)
    return "\n\n".join([said, _question(plan), table(HEAD, rows, 2), label])


def as_json(plan: HierarchyPlan) -> dict[str, Any]:
    """All of it, with the agreements that it assumes."""
    drafts = plan.site.drafts
    pairs = {" > ".join(pair): [list(row) for row in each.tables] for pair, each in drafts.agreements.items()}
    triples = {" > ".join(models): asdict(each) for models, each in drafts.dependences.items()}
    return {
        "label": "derived",
        "question": asdict(plan.config),
        "accelerator": plan.accelerator,
        "assumes": {"words": drafts.source, "agreements": pairs, "dependences": triples},
        "rows": [row_json(row) for row in plan.rows],
        "choice": words_of(plan, plan.best),
        "verdict": verdict(plan),
    }


def row_json(row: PathRow) -> dict[str, Any]:
    """One path with its best lengths."""
    chain = row.chain
    return {
        "path": [{"model": model, "place": place} for model, place in row.path],
        "blocks": [{"length": edge.length, "bound": edge.bound} for edge in chain.edges],
        "tokens_per_s": row.rate,
        "positions_per_token": chain.positions,
        "tokens_per_step": chain.tokens,
        "users": row.users,
    }


def verdict(plan: HierarchyPlan) -> str:
    """Whether a hierarchy pays here, or which single tier is best."""
    row, users = plan.best, plan.config.users
    rate = f"{row.rate:.3g} tokens/s" + (f" for each of {users} users" if users > 1 else " for a user")
    if row.depth > 1:
        return f"A hierarchy is best here: {words_of(plan, row)}, {rate}."
    if row.depth == 1:
        return f"A single tier is best here: {words_of(plan, row)}, {rate}."
    return f"A single tier is best here: the server decodes alone, {rate}."


def words_of(plan: HierarchyPlan, row: PathRow) -> str:
    """The path as tokens go."""
    return " -> ".join(_place(plan, model, place) for model, place in reversed(row.path))


def _place(plan: HierarchyPlan, model: str, place: str) -> str:
    site, config = plan.site, plan.config
    names = {DRAFT: f"{site.draft} draft", MIDDLE: site.hub.target.id, TARGET: config.target}
    places = {DEVICE: "device", HUB: site.hub.accelerator.id, CLOUD: plan.accelerator}
    return f"{names[model]} on {places[place]}"


def _advice(plan: HierarchyPlan) -> str:
    """What to start."""
    row = plan.best
    if not row.depth:
        return "Start edges with --drafter none."
    top, *rest = row.chain.edges
    if top.lower.place == CLOUD:
        return f"Start the server with --server-drafter model; about {_tokens(top)} a draft pay."
    if top.lower.place == DEVICE:
        return f"Let the edges ask the server itself; blocks of {_tokens(top)} pay."
    relay = f"Start the hub with opensled relay --block {top.length} --bound {top.bound:g}"
    return f"{relay}, and the edges with {f'blocks of {_tokens(rest[0])}' if rest else '--drafter none'}."


def _tokens(edge: Below) -> str:
    return f"{edge.length} token{'s' * (edge.length != 1)}"


def _comparisons(plan: HierarchyPlan) -> list[str]:
    """The best of each other kind against the choice."""
    kinds = ((2, 9, "The best hierarchy"), (1, 1, "The best single draft"), (0, 0, "The server alone"))
    best = plan.best
    found = []
    for least, most, name in kinds:
        other = plan.fastest(least, most)
        if other is None or least <= best.depth <= most:
            continue
        words = f" ({words_of(plan, other)})" if other.depth else ""
        found.append(f"{name}{words} gives {other.rate:.3g}, {other.rate / best.rate:.2f} times as many.")
    return found


def _max_users(plan: HierarchyPlan) -> str:
    """Who lets most users in, where that is another path than the fastest."""
    most = max(plan.rows, key=lambda row: (row.users, row.rate))
    if most.users <= plan.best.users:
        return ""
    return (
        f"Most users at {plan.config.promised:g} tokens/s, {most.users} instead of {plan.best.users}, are served by "
        f"{words_of(plan, most)}."
    )


def _question(plan: HierarchyPlan) -> str:
    config, site = plan.config, plan.site
    sharing = f"{config.users} users" if config.users > 1 else "one user"
    return "\n".join(
        [
            f"{config.target}, {site.server.target.weight_bits:g}-bit weights, on {plan.accelerator} for {sharing}, "
            f"{config.context} KV positions each; users at {config.promised:g} tokens/s",
            f"devices    {config.devices}, {config.draft} draft at "
            f"{site.device.draft(config.draft).decode_per_s} tokens/s",
            f"hub        {config.hub_model}, {config.hub_weight_bits:g}-bit weights, on {config.hub}, one each",
            f"links      {config.link} to the hub, {1000 * mean_s(site.link):.3g} ms there and back on average; on to "
            f"the server {1000 * site.hub_rtt_s:.3g} ms",
            f"acceptance {site.drafts.source}",
            f"           of drafts of {USUAL}: {_rates(site.drafts)}",
        ]
    )


def _rates(drafts: TierDrafts) -> str:
    """What of each model's tokens the next ones accept, token by token."""
    names = {DRAFT: "device", MIDDLE: "hub", TARGET: "target"}
    return ", ".join(
        f"{names[lower]} at {names[upper]} {agreement.rate(USUAL):.2f}"
        for (lower, upper), agreement in drafts.agreements.items()
    )


def _cells(plan: HierarchyPlan, row: PathRow) -> tuple[str, ...]:
    chain = row.chain
    lengths = [_block(edge) for edge in reversed(chain.edges)]
    return (
        short_words(row.path) + (" *" if row is plan.best else ""),
        ", ".join(lengths) or "-",
        f"{row.rate:.1f}",
        f"{chain.positions:.2f}",
        f"{chain.tokens:.2f}",
        str(row.users),
    )


def _block(edge: Below) -> str:
    """Its length; with a bound that ends some blocks early, its mean length as well."""
    mean = edge.rounds.blocks.mean_positions - 1
    return str(edge.length) if mean > edge.length - 0.05 else f"{edge.length} (mean {mean:.1f})"


def _left_out(plan: HierarchyPlan) -> str:
    if plan.site.hub_fits:
        return ""
    return f"{plan.config.hub_model} does not fit on {plan.config.hub}, so the hub is left out. "
