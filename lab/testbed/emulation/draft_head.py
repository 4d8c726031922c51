"""A draft head beside its target: weights, bytes, operations, and their seconds.

Of our own heads, as drafting/heads/ builds them, all is derived from the sizes of the target; none of such a target was
measured. Of heads that others trained (hw_profiles/heads) their profiles tell. Seconds follow the law by which a draft
model beside the target costs (`TargetCost`), a roofline over what a pass reads and what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from hw_profiles import catalog
from hw_profiles.profiles import AcceleratorProfile, TargetShape
from hw_profiles.step_cost import TargetCost
from opensled.core.errors import UsageError

WINDOW = 256  # newest positions of a text that a draft attends to (verify_server/drafting/heads/context.py)
TAPS = 4  # hidden states that a SpecFormer reads (verify_server/drafting/heads/specformer.py); a CTC head reads one
# Ids that can be drafted, where training is told nothing else (lab/training/heads/config.py)
VOCABULARY = 8192
BITS = 16.0  # of a weight: a head computes in the working type of its target, however that is quantized


class HeadWeights(NamedTuple):
    """Numbers of weights, by how often they are multiplied with."""

    row: float  # once for each row of the target, in the target's own step: they make the head's context
    draft: float  # once for each draft
    place: float  # for each place of a draft; all places are computed, however few tokens are asked for
    looked_up: float  # never: single rows are added


@dataclass(frozen=True)
class HeadProfile:
    """A head of one of KINDS. Raises UsageError for a target whose profile does not say what a head is built by."""

    kind: str
    target: TargetShape
    length: int  # places or frames; no draft is longer
    markov: int = 0  # rank of the bias between neighbouring tokens; 0 = there is none
    vocabulary: int = VOCABULARY
    bits: float = BITS

    @classmethod
    def usual(cls, kind: str, target: TargetShape) -> HeadProfile:
        """As it is trained where nothing else is said."""
        form = FORMS[kind]
        bits = form.bits or target.weight_bits
        return cls(kind, target, form.length, form.markov, form.vocabulary, bits)

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "heads", "inner_size") if self.kind in OWN else ()
        if missing := [name for name in sizes if not getattr(self.target, name)]:
            raise UsageError(
                f"the profile of target {self.target.id} lacks {', '.join(missing)}, which the size of a draft head "
                "depends on; add it to the file"
            )

    @cached_property
    def weights(self) -> HeadWeights:
        return FORMS[self.kind].weights(self)

    @property
    def params(self) -> float:
        """What is in the head's file."""
        return sum(self.weights)

    @property
    def output_params(self) -> float:
        """Of the target's output layer, the rows of the draft vocabulary."""
        return self.vocabulary * self.target.hidden_size

    @property
    def weight_bytes(self) -> float:
        """What it takes of the memory: its weights, and its copy of those rows (target_parts.py)."""
        return (self.params + self.output_params) * self.bits / 8

    @property
    def attended_bytes(self) -> float:
        """Keys and values of one position of its context."""
        return 2 * self.target.kv_heads * self.target.head_dim * self.target.kv_bits / 8

    @property
    def kv_bytes(self) -> float:
        """Of its context for one position: keys, values, and the input from which it drafts."""
        return self.attended_bytes + self.target.hidden_size * self.target.kv_bits / 8

    @property
    def pass_bytes(self) -> float:
        """Read by a pass, whatever it drafts."""
        return (self.weights.draft + self.weights.place + self.output_params) * self.bits / 8

    @property
    def draft_operations(self) -> float:
        """Of one draft, two for each weight; those of attention are not counted, as for a target."""
        places = 1 if self.each_token else self.length
        return 2 * (self.weights.draft + places * (self.weights.place + self.output_params))

    @property
    def each_token(self) -> bool:
        """Whether each token of a draft has a pass of its own."""
        return FORMS[self.kind].each_token


def _attention(target: TargetShape) -> tuple[float, float]:
    """Weights that make keys and values of a hidden state, and those of queries and of what they find."""
    width = target.head_dim * target.hidden_size
    return 2 * target.kv_heads * width, 2 * target.heads * width


def _specformer(head: HeadProfile) -> HeadWeights:
    """verify_server/drafting/heads/specformer.py: terms with d alone are norms and biases."""
    d, length = head.target.hidden_size, head.length
    keys_values, queries = _attention(head.target)
    row = TAPS * (d + d * d) + d + keys_values
    draft = queries + (d + d * d) + (d + length * (d + 1) * d)
    place = (d + keys_values + queries) + (d + 3 * d * head.target.inner_size)
    bias = head.vocabulary * head.markov
    return HeadWeights(row, draft, place + bias, bias)


def _ctc(head: HeadProfile) -> HeadWeights:
    """ctc.py: its last d + 1 weights are the blank. There is no bias between neighbours."""
    d = head.target.hidden_size
    keys_values, queries = _attention(head.target)
    draft = 2 * d + (2 * d + 1) * d
    place = (d + keys_values + queries) + (d + 3 * d * head.target.inner_size) + (d + 1)
    return HeadWeights(d + keys_values, draft, place, head.length * d)


def _trained(share: float, head: HeadProfile) -> HeadWeights:
    return HeadWeights(0, 0, share * head.target.active_params, 0)


class HeadForm(NamedTuple):
    """Of a kind of heads, as they are trained where nothing else is said (lab/training/heads/config.py)."""

    weights: Callable[[HeadProfile], HeadWeights]
    length: int
    markov: int
    vocabulary: int = VOCABULARY
    bits: float = BITS  # 0 = as the target's
    each_token: bool = False


FORMS = {"specformer": HeadForm(_specformer, 5, 128), "ctc": HeadForm(_ctc, 7, 0)}
OWN = tuple(FORMS)  # those of `opensled serve --server-drafter` that draft in one pass
for _each in map(partial(catalog.load, "heads"), catalog.names("heads")):
    _weights = partial(_trained, _each.share.typical)
    FORMS[_each.id] = HeadForm(_weights, len(_each.reach), 0, 0, _each.bits, _each.passes == "each")
KINDS = tuple(FORMS)


@dataclass(frozen=True)
class HeadCost:
    """One head on the accelerator of its target: a `StepCost`, for a draft begins from one row of its text."""

    accelerator: AcceleratorProfile
    head: HeadProfile

    @property
    def weight_bytes(self) -> float:
        return self.head.weight_bytes

    @property
    def kv_bytes(self) -> float:
        return self.head.kv_bytes

    @property
    def longest(self) -> float:
        """Tokens of a draft at most."""
        return self.head.length

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """Seconds of the pass that makes a whole draft, or a token of it, behind each of `tokens` rows; 0 for none.

        `contexts`: positions of these texts, of which it reads the newest ones.
        """
        if tokens <= 0:
            return 0.0
        work = self._work_s(self.head.pass_bytes, tokens * self.head.draft_operations)
        seen = min(contexts, tokens * WINDOW) * self.head.attended_bytes / self._bandwidth
        return work + seen + self.accelerator.step_overhead_ms.typical / 1000

    def draft_s(self, tokens: int, sessions: int, contexts: int) -> float:
        """Seconds in which it drafts `tokens` tokens for each of `sessions`."""
        return self.passes(tokens) * self.verify_s(sessions, contexts)

    def passes(self, tokens: int) -> int:
        """Passes for a draft of so many tokens."""
        return tokens if self.head.each_token else min(1, tokens)

    def context_s(self, rows: float) -> float:
        """Seconds for which the target's step over `rows` is longer: it writes their context.

        What launching that costs is in the overhead of the step.
        """
        weights = self.head.weights.row
        return self._work_s(weights * self.head.bits / 8, rows * 2 * weights) if rows > 0 else 0.0

    def _work_s(self, read: float, operations: float) -> float:
        """The roofline: bytes and operations."""
        return max(read / self._bandwidth, operations / (self.accelerator.tflops.typical * 1e12))

    @property
    def _bandwidth(self) -> float:
        return self.accelerator.bandwidth_gb_s.typical * 1e9


DraftCost = TargetCost | HeadCost  # of what drafts on the target's accelerator


def sessions_beside(
    cost: TargetCost, context: int, draft: DraftCost | None = None, reserved: bool = False
) -> int:
    """Sessions of `context` positions that fit beside a draft's weights. A head's context takes its part of the memory
    as well; the KV of a draft model does where it is `reserved` for each session, else it is a guest."""
    weights, kv = cost.weight_bytes, cost.kv_bytes
    room = cost.accelerator.memory_gib * 2**30 * cost.accelerator.usable_memory.typical
    if draft is not None:
        weights += draft.weight_bytes
        kv += draft.kv_bytes if reserved or isinstance(draft, HeadCost) else 0
    return max(0, int((room - weights) / kv)) // max(1, context)
