"""Whether this device would do better with a draft head of the target: one pass for a whole block, from hidden states
that the server sends.

The server's speed, the link and the draft are measured. A head that is here is timed (head_probe.py); without one its
block is reckoned by hw_profiles/device_head.py, and the finding says so. How often its tokens stand is assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

from edge_client.checks.draft import DraftReport
from edge_client.checks.finding import Finding, ok, warn
from edge_client.checks.hidden_states import HiddenStates
from edge_client.checks.server_checks import ServerReport
from edge_client.checks.trial import Prediction
from edge_client.config import DoctorConfig
from edge_client.drafters.threads import has_head
from hw_profiles import catalog
from hw_profiles.detect import detect
from hw_profiles.device_head import DeviceHeadCost, row_bytes, states_of
from hw_profiles.draft_head import KINDS, HeadProfile
from hw_profiles.profiles import TargetShape
from hw_profiles.speculation import WORTH, uniform_tokens
from opensled.drafting.head_form import read_about
from opensled.errors import UsageError
from opensled.store import bundled_folder

CHECK = "a draft head"
ACCEPTANCE, LUCKLESS, LUCKY = (
    0.6,
    0.4,
    0.8,
)  # assumed, of each token of a head (docs/planning.md: published ones)
PC = "laptop-cpu"  # the profile of a computer that is none of the boards
ALLOW = "its operator allows it with opensled serve --features, or features=1 in the token file"


def check_head_gain(
    config: DoctorConfig, server: ServerReport, draft: DraftReport, prediction: Prediction | None
) -> list[Finding]:
    """`server`: asked for hidden states; `prediction`: of the drafter that is configured, if there is one."""
    info, speed, states = server.info, server.speed, server.states
    if info is None or speed is None or states is None or server.round_trip is None:
        return []
    rtt_s, uses_head = server.round_trip, has_head(config.drafter)
    here = Situation(
        target=info.model_id,
        states=states,
        rtt_s=rtt_s,
        answer_s=lambda length: speed.step_s(length, rtt_s),
        own_rate=prediction.own_rate if prediction else 1 / speed.decode_s,
        draft_s=draft.seconds,
        draft_rate=prediction.rate if prediction and not uses_head else None,
    )
    if uses_head and draft.block_s and prediction and prediction.basis == "measured":
        return [
            ok(CHECK, f"{_told(here, _timed(config, draft.block_s))}; what it brings was measured, see above")
        ]
    if uses_head and draft.block_s:
        return [judged(here, [_timed(config, draft.block_s)], has_head=True)]
    return [judged(here, reckoned(states.size, config.root) if states.size else [], has_head=False)]


def _timed(config: DoctorConfig, seconds: float) -> Block:
    """The head that is here."""
    about = read_about(Path(config.draft_model))
    return Block(about.kind, seconds, about.length, len(about.taps), "measured just now")


@dataclass(frozen=True)
class Block:
    """What a block of a head takes on this device."""

    kind: str
    seconds: float
    length: int  # tokens
    states: int  # hidden states of a position
    origin: str  # where the seconds come from


@dataclass(frozen=True)
class Situation:
    """What was measured here, in seconds and tokens/s."""

    target: str
    states: HiddenStates
    rtt_s: float
    answer_s: Callable[[int], float]  # from a block's arrival to its verdict, by its length
    own_rate: float  # without drafts
    draft_s: float | None  # for a token of the draft model; None = there is none, or it was not timed
    draft_rate: float | None  # of a user whose device drafts with it


def judged(here: Situation, blocks: list[Block], has_head: bool) -> Finding:
    """`blocks`: of the heads that come into question; `has_head`: one of them drafts here already."""
    if here.states.refused:
        return ok(CHECK, f"the server sends this device no hidden states, so no head can draft here; {ALLOW}")
    if not here.states.size:
        return ok(CHECK, "not judged: no hidden states came from the server within the time of this check")
    if not blocks:
        return ok(
            CHECK, f"not judged: no profile says how fast this device computes one; {_export(here, 'KIND')}"
        )
    best = max(blocks, key=lambda block: rate(here, block))
    gain, others = rate(here, best), max(here.own_rate, here.draft_rate or 0.0)
    told = f"{_told(here, best)}; {_expected(here, best, others)}"
    if gain >= WORTH * others:
        if has_head:
            return ok(CHECK, told)
        if not _is_shipped(here.target, best.kind):
            return ok(
                CHECK,
                f"{told}; but none of {here.target} comes with OpenSLED: train one with opensled train-head",
            )
        return warn(CHECK, told, _export(here, best.kind))
    return ok(CHECK, f"{told}; {_why_not(here, best, others)}")


def _told(here: Situation, block: Block) -> str:
    """What it would take."""
    draft = f" where the draft model takes {1000 * here.draft_s:.1f} ms a token" if here.draft_s else ""
    size = row_bytes(block.states, here.states.size)
    told = f"a head ({block.kind}) drafts a block in {_ms(block.seconds)}{draft} ({block.origin})"
    cost = "their time on the link was not measured"
    if here.states.byte_s is not None:
        cost = f"{_ms(link_s(here, block))} a round on this link (measured)"
    return f"{told}; its hidden states are {size / 1000:.1f} kB a token, {cost}"


def _expected(here: Situation, block: Block, others: float) -> str:
    low, high = (rate(here, block, chance) / others for chance in (LUCKLESS, LUCKY))
    times = rate(here, block) / others
    best = "the draft model" if others > here.own_rate else "the server's own decoding"
    return (
        f"expected {times:.1f}x ({low:.1f}x to {high:.1f}x) the tokens/s of {best}, if {ACCEPTANCE:.0%} of its tokens "
        f"stand (assumed; {LUCKLESS:.0%} to {LUCKY:.0%})"
    )


def _why_not(here: Situation, block: Block, others: float) -> str:
    free = replace(here, states=replace(here.states, byte_s=0.0))
    if rate(free, block) >= WORTH * others:
        return "the link is too thin for its hidden states"
    return "the draft model is the better choice" if others > here.own_rate else "it would bring nothing here"


def rate(here: Situation, block: Block, acceptance: float = ACCEPTANCE) -> float:
    """Tokens/s of a user whose device drafts with a head: all parts of a round follow each other."""
    round_s = block.seconds + here.rtt_s + here.answer_s(block.length) + link_s(here, block, acceptance)
    return uniform_tokens(acceptance, block.length) / round_s


def link_s(here: Situation, block: Block, acceptance: float = ACCEPTANCE) -> float:
    """Seconds that the hidden states of a round take on the link; 0 where that was not measured."""
    rows = uniform_tokens(acceptance, block.length)
    return rows * row_bytes(block.states, here.states.size) * (here.states.byte_s or 0.0)


def reckoned(size: int, root: str) -> list[Block]:
    """Blocks of the usual heads of a target whose hidden states have `size` elements, as heads are exported; none for
    a board whose profile does not say how fast it is."""
    profile = catalog.device(detect(root).profile or PC)
    shape, origin = _shape(size)
    found = []
    for kind in KINDS:
        head = HeadProfile.usual(kind, shape)
        try:
            cost = DeviceHeadCost.of(profile, head)
        except UsageError:
            return []
        words = f"by arithmetic, for {profile.id} and {origin}"
        found.append(Block(kind, cost.block_s + cost.rows_s(3), head.length, states_of(kind), words))
    return found


def _shape(size: int) -> tuple[TargetShape, str]:
    """Of the profile that is nearest, scaled to the size that was measured."""
    known = [shape for name in catalog.names("targets") if (shape := catalog.target(name)).hidden_size]
    shape = min(known, key=lambda each: abs(log(size / each.hidden_size)))
    if shape.hidden_size == size:
        return shape, f"a target like {shape.id}"
    scale = size / shape.hidden_size
    heads, kv_heads = (max(1, round(scale * count)) for count in (shape.heads, shape.kv_heads))
    scaled = replace(
        shape, hidden_size=size, heads=heads, kv_heads=kv_heads, inner_size=round(scale * shape.inner_size)
    )
    return scaled, f"a target like {shape.id}, scaled to {size}"


def _is_shipped(target: str, kind: str) -> bool:
    """Whether a head of the target comes with OpenSLED."""
    return (bundled_folder() / "_heads" / f"{target}-{kind}").is_dir()


def _export(here: Situation, kind: str) -> str:
    folder = f"{here.target}-{kind}-device"
    return (
        f"where the target is: opensled export-head --target {here.target} --head {kind} --out {folder}; here: "
        f"--drafter head --draft-model {folder}"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"
