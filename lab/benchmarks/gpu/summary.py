"""The documents of all stages as one page of Markdown: what somebody reads first, and pastes into an issue."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]

ANSWER_COLUMNS = (
    *("way", "level", "ready in, s", "answers", "tokens", "flips", "worst gap", "wrong", "differ"),
    "tokens a step: none, right, mixed, tree",
)
COLUMNS = (
    *("context", "right", "streams", "drafts", "tokens/s", "pace, median", "slowest tenth", "p99 gap, ms"),
    *("accepted", "texts", "flips"),
)


def text(documents: Mapping[str, Document]) -> str:
    """Of the stages that there are so far."""
    parts = [
        line for name, tell in TOLD.items() if name in documents for line in _part(documents[name], tell)
    ]
    return "\n".join(["# OpenSLED on a GPU", *parts]) + "\n"


def _part(document: Document, tell: Any) -> Iterator[str]:
    state = document.get("state", "?")
    verdict = "" if document.get("holds", True) else ", **does not hold**"
    yield ""
    how = f"{document.get('label', '')}; {state}{verdict}; {document.get('seconds', '?')} s"
    yield f"## {document['stage'].capitalize()} ({how})"
    yield ""
    if "error" in document:
        yield f"Error: {document['error']}"
    if "skipped" in document:
        yield f"Left out: {document['skipped']}."
    try:
        yield from tell(document)
    except (KeyError, TypeError, IndexError, ValueError) as error:  # a stage that was cut off lacks fields
        yield f"(the rest of this stage is not there: {type(error).__name__} {error})"


def _facts(document: Document) -> Iterator[str]:
    card, versions = document["card"], document["versions"]
    capability = card.get("compute_capability", "-")
    yield f"{card['name']}, compute capability {capability}, Python {document['machine']['python']}."
    yield ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    yield (
        f"A copy moves {document['copy_bytes_per_s'] / 1e9:,.0f} GB/s; a product of two bfloat16 matrices computes "
        f"{document['bf16_matrix_flops'] / 1e12:,.1f} TFLOP/s."
    )


def _steps(document: Document) -> Iterator[str]:
    for target in document["targets"]:
        first = _by_shape(target["ways"][0]) if target["ways"] else {}
        for way in target["ways"]:
            how = f"attention {way['attention']}, graphs {way['graphs']}, {way['numerics']}"
            yield f"**{target['shape']}, {target['dtype']}: {how}**"
            if "error" in way:
                yield f"does not work here: {way['error']}"
            else:
                room = f"KV for {way['kv_tokens']:,} tokens"
                yield f"{way['used']}, level {way['level']}, ready in {way['load_s']} s, {room}"
                yield ""
                yield from _step_table(way, first)
                yield from _kernel_tables(way)
            yield ""


def _by_shape(way: Document) -> dict[tuple[int, int, int], float]:
    return {
        (step["texts"], step["drafted"], step["context"]): step["seconds"]
        for step in way.get("steps", [])
        if "seconds" in step
    }


def _step_table(way: Document, first: Mapping[tuple[int, int, int], float]) -> Iterator[str]:
    yield "| context | texts x rows | step, ms | share of the floor | sampling, ms | against the first way |"
    yield "|---|---|---|---|---|---|"
    for step in way["steps"]:
        shape = (step["texts"], step["drafted"], step["context"])
        name = f"| {step['context']:,} | {step['texts']} x {step['drafted'] + 1} |"
        if "seconds" not in step:
            yield f"{name} {step.get('no_room') or step.get('error')} | | | |"
            continue
        ratio = f"{step['seconds'] / first[shape]:.2f}" if shape in first else ""
        yield (
            f"{name} {1e3 * step['seconds']:.2f} | {step['share_of_floor']:.0%} | "
            f"{1e3 * step['sampling_s']:.2f} | {ratio} |"
        )


def _kernel_tables(way: Document) -> Iterator[str]:
    """Where the time of some steps goes."""
    for step in way["steps"]:
        if "kernels" in step:
            yield ""
            yield f"Kernels of a step of {step['texts']} x {step['drafted'] + 1}, context {step['context']:,}:"
            yield ""
            yield "| kernel | calls | us | of the step |"
            yield "|---|---|---|---|"
            for each in step["kernels"]:
                share = each["us"] / 1e6 / step["seconds"]
                yield f"| {each['kernel']} | {each['calls']:.0f} | {each['us']:,.0f} | {share:.0%} |"


def _users(document: Document) -> Iterator[str]:
    yield f"Servers ready in {document.get('servers_ready_s', '?')} s; KV for {document['kv_tokens']:,} tokens each."
    for each in document["recorded"]:
        yield f"Recorded with {each['context']:,} tokens of context: {each['answers']} answers in {each['seconds']} s."
    yield ""
    yield from _held(document)
    yield ""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|---" * len(COLUMNS) + "|"
    for cell in document["cells"]:
        yield _cell_row(cell)
    yield ""
    left_out = document.get("left_out", [])
    yield f"Cells left out: {len(left_out)}" + (
        f", the first because {left_out[0]['why']}." if left_out else "."
    )


def _held(document: Document) -> Iterator[str]:
    """The largest number of streams tried at which nine users of ten had each pace."""
    paces = [str(pace) for pace in document["paces"]]
    yield (
        "| context | right | drafts | "
        + " | ".join(f"users held at {pace} tokens/s" for pace in paces)
        + " |"
    )
    yield "|---|---|---|" + "---|" * len(paces)
    groups: dict[tuple[int, float, str], list[Document]] = {}
    for cell in document["cells"]:
        if "held" in cell:
            groups.setdefault((cell["context"], cell["share"], cell["policy"]), []).append(cell)
    for (context, share, policy), cells in groups.items():
        yield (
            f"| {context:,} | {share} | {policy} | " + " | ".join(_most(cells, pace) for pace in paces) + " |"
        )


def _most(cells: Sequence[Document], pace: str) -> str:
    """A plus where the largest number tried was held."""
    held = max((cell["streams"] for cell in cells if cell["held"][pace]), default=0)
    return f"{held}{'+' if held == max(cell['streams'] for cell in cells) else ''}"


def _cell_row(cell: Document) -> str:
    name = f"| {cell['context']:,} | {cell['share']} | {cell['streams']} | {cell['policy']} |"
    if "error" in cell:
        return f"{name} {cell['error']} | | | | | | |"
    gap = "" if cell["gap_p99_s"] is None else f"{1e3 * cell['gap_p99_s']:.0f}"
    accepted = "" if cell["accepted_share"] is None else f"{cell['accepted_share']:.0%}"
    paces = f"{cell['pace_median']:.1f} | {cell['pace_of_slowest_tenth']:.1f}"
    rest = f"{gap} | {accepted} | {cell['texts']} | {cell['flips']} |"
    return f"{name} {cell['tokens_per_s']:,.0f} | {paces} | {rest}"


def _profile(document: Document) -> Iterator[str]:
    if "fit" in document:
        fit = document["fit"]
        yield (
            f"Fitted: {fit['bandwidth'] / 1e9:,.0f} GB/s, {1e3 * fit['overhead_s']:.2f} ms of overhead, "
            + (f"{fit['flops'] / 1e12:,.0f} TFLOP/s." if fit["flops"] else "no step was bound by arithmetic.")
        )
    if "toml" in document:
        yield from ("", "```", document["toml"].rstrip(), "```")


def _kernels(document: Document) -> Iterator[str]:
    if calls := document.get("first_calls", {}).get("calls"):
        told = ", ".join(f"{each['texts']} x {each['rows']}: {each['call_s']:.2f} s" for each in calls)
        yield f"First calls, which compile the kernels (texts x rows): {told}."
        yield ""
    yield from _checks(document)
    if times := document.get("times"):
        yield ""
        yield "| texts x rows | context | attention of a layer, us | KV read, GB/s |"
        yield "|---|---|---|---|"
        for each in times:
            name = f"| {each['texts']} x {each['rows']} | {each['context']:,} |"
            if "graph_s" in each:
                yield f"{name} {1e6 * each['graph_s']:.1f} | {each['kv_bytes_per_s'] / 1e9:,.0f} |"
            else:
                yield f"{name} {each.get('error', '')} | |"


def _checks(document: Document) -> Iterator[str]:
    """One line for each check, with the numbers that it found."""
    yield "| check | holds | found |"
    yield "|---|---|---|"
    for check in document["checks"]:
        verdict = "yes" if check["holds"] else "**NO**"
        yield f"| {check['name']} | {verdict} | {check.get('error') or ', '.join(_numbers(check))} |"
    if left_out := document.get("left_out"):
        yield ""
        yield f"Left out, for the time was over: {'; '.join(left_out)}."


def _numbers(check: Document) -> Iterator[str]:
    for name, value in check.items():
        if isinstance(value, float):
            yield f"{name.replace('_', ' ')} {value:.3g}"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{name.replace('_', ' ')} {value:,}"


def _answers(document: Document) -> Iterator[str]:
    yield "| " + " | ".join(ANSWER_COLUMNS) + " |"
    yield "|---" * len(ANSWER_COLUMNS) + "|"
    for way in document["checks"]:
        if "error" in way:
            yield f"| {way['name']} | {way['error']} | | | | | | | | |"
            continue
        drafts = [
            way["drafts"].get(kind, {}).get("tokens_per_step") for kind in ("none", "right", "mixed", "tree")
        ]
        paces = ", ".join("-" if each is None else f"{each:.2f}" for each in drafts)
        gap = f"{way['worst_gap']:.3f} of {way['allowed_gap']:.3f}"
        yield (
            f"| {way['name']} | {way['level']} | {way['load_s']:.1f} | {way['answers']} | {way['tokens']:,} | "
            f"{way['flips']} | {gap} | {way['wrong']} | {way['differ']} | {paces} |"
        )
    if left_out := document.get("left_out"):
        yield ""
        yield f"Left out, for the time was over: {'; '.join(left_out)}."


TOLD = {
    "facts": _facts,
    "kernels": _kernels,
    "answers": _answers,
    "steps": _steps,
    "users": _users,
    "profile": _profile,
}
