"""The law of capacity: how many users one accelerator holds at a pace, in each mode. Pure functions over profiles.

A round of one session drafts k tokens and commits E tokens on average (hw_profiles/speculation.py). A user who wants
r tokens/s is served if the rounds take no longer than E/r, with the E of the least lucky user who is still to be
served. The modes differ in what a round consists of.

Apart from that the law has means only, no queues and no jitter. The simulator has both, and checks the law.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf

from hw_profiles.profiles import DraftSpeed, LinkProfile
from hw_profiles.step_cost import HardwareProfile, TargetCost
from lab.testbed.baselines import DRAFT_BESIDE, SERVER_SD
from lab.testbed.emulation.draft_head import DraftCost, HeadCost, sessions_beside
from lab.testbed.planner.acceptance import LENGTHS, DraftWorth
from lab.testbed.planner.trip import mean_s, slowest_s

FASTEST = 1024.0  # tokens/s; no reader, nor any target of ours, is as fast
ENOUGH = 1e-6  # relative width at which a bisection ends: far below one user


@dataclass(frozen=True)
class Setting:
    """What the law is asked about: one target on one accelerator, and devices of one kind on one link."""

    cost: TargetCost
    draft_cost: DraftCost | None  # the draft on the same accelerator, for server-sd; None = it has none
    speed: DraftSpeed  # the draft on the device
    link: LinkProfile
    context: int  # KV positions that a session holds on average
    reserved: int  # KV positions for which it takes its place
    acceptance: DraftWorth
    guarded: DraftWorth  # the same with SLED's confidence threshold
    prompt: float = 0.0  # tokens of a request's prompt that must be computed; 0 = prompts are not counted
    answer: float = inf  # tokens of its answer
    max_tokens: int = HardwareProfile().max_step_tokens  # that one step computes

    def step_s(self, sessions: float, drafted: float, tokens: float) -> float:
        """Seconds of a step that verifies `drafted` tokens of each of `sessions` and commits `tokens` for each.

        A mean number of sessions lies between two whole ones, and so do its seconds.
        """
        low = floor(sessions)
        seconds = self._whole_step_s(low, drafted, tokens)
        if sessions == low:
            return seconds
        return seconds + (sessions - low) * (self._whole_step_s(low + 1, drafted, tokens) - seconds)

    def _whole_step_s(self, sessions: int, drafted: float, tokens: float) -> float:
        return self.cost.verify_s(ceil(sessions * self.positions(drafted, tokens)), sessions * self.context)

    def positions(self, drafted: float, tokens: float) -> float:
        """Computed for one round: its draft, the newest token, and its share of prompts to come."""
        return drafted + 1 + tokens * self.prompt / self.answer

    def prompts_step_s(self, sessions: float, tokens: float) -> float:
        """Seconds of a step for the prompts that come with a round of `sessions`, on average over rounds without."""
        prompts = sessions * tokens / self.answer
        return min(1.0, prompts) * self.cost.verify_s(ceil(max(1.0, prompts) * self.prompt), 0)

    def fitting_sessions(self, drafted: float, tokens: float) -> float:
        """Sessions whose rounds one step has room for."""
        return self.max_tokens / self.positions(drafted, tokens)

    def draft_s(self, drafted: float) -> float:
        """Seconds in which the device drafts `drafted` tokens, a mean."""
        return self.speed.draft_s(1) * drafted


def centralized(setting: Setting, length: int, pace: float) -> float:
    """Users when the server decodes: every session is in every step, and every step commits one token.

    Beyond `fitting_sessions` they take turns: a round then takes several full steps.
    """
    return _in_lockstep(setting, lambda n: setting.step_s(n, 0, 1), 0, 1, 1 / pace)


def server_sd(setting: Setting, length: int, pace: float) -> float:
    """Users when the accelerator drafts as well: k steps of the draft for all sessions, or one pass of a draft head
    that writes its context in the target's steps; then one step of the target."""
    draft_cost, tokens = setting.draft_cost, setting.acceptance.tokens[length]
    head = draft_cost if isinstance(draft_cost, HeadCost) else None
    if draft_cost is None or (head and length > head.longest):
        return 0.0
    limit = setting.acceptance.unlucky[length] / pace

    def round_s(sessions: float) -> float:
        whole = ceil(sessions)
        pass_s = draft_cost.verify_s(whole, whole * setting.context)
        draft_s = head.draft_s(length, whole, whole * setting.context) if head else length * pass_s
        context_s = head.context_s(ceil(sessions * setting.positions(length, tokens))) if head else 0.0
        return draft_s + context_s + setting.step_s(sessions, length, tokens)

    return _in_lockstep(setting, round_s, length, tokens, limit)


def sled_continuous(setting: Setting, length: int, pace: float) -> float:
    """Users when devices draft and the server verifies what has arrived, step after step.

    A session is away for Z seconds, waits w for the step under way, and is in one step of t(m) seconds with the m
    sessions that arrived meanwhile: its round takes T = Z + w + t. Each of n sessions comes once in T, so a step of t
    finds m = n t / T of them, so n = m T / t. While m < 1 the server idles between drafts, and m is the share of
    time it is busy. T grows with m, and n with both (t(m)/m falls), so the most users are there where T = E/r.

    The wait: a draft meets a step at a random moment and waits half of it; but if Z < t it just missed the step that
    began when its own ended, and waits for t - Z. At an idle server no draft waits.
    """
    drafted, tokens = setting.acceptance.drafted[length], setting.acceptance.tokens[length]
    away, limit = setting.draft_s(drafted) + mean_s(setting.link), setting.acceptance.unlucky[length] / pace

    def step_s(sessions: float) -> float:
        return setting.step_s(max(1.0, sessions), drafted, tokens)

    def round_s(sessions: float) -> float:
        t = step_s(sessions)
        return away + min(1.0, sessions) * max(t / 2, t - away) + t

    if away + step_s(1) > limit:
        return 0.0
    most = setting.fitting_sessions(drafted, tokens)
    sessions = largest(lambda m: round_s(m) <= limit, most)
    return max(1.0, sessions * limit / step_s(sessions))  # one user alone never waits


def sled_static(setting: Setting, length: int, pace: float) -> float:
    """Users when the server waits until every session has drafted, and pads all to the longest draft (SLED).

    All are in lockstep with the slowest; blocks that end early by their confidence save no positions. Prompts are
    computed in steps of their own, while the batch waits.
    """
    tokens, drafted = setting.guarded.tokens[length], setting.guarded.drafted[length]
    slowest = length if drafted else 0
    bare = replace(setting, prompt=0.0)

    def round_s(sessions: float) -> float:
        away = setting.draft_s(slowest) + slowest_s(setting.link, sessions)
        return away + bare.step_s(sessions, slowest, tokens) + setting.prompts_step_s(sessions, tokens)

    return _in_lockstep(bare, round_s, slowest, tokens, setting.guarded.unlucky[length] / pace)


def _in_lockstep(
    setting: Setting, round_s: Callable[[float], float], drafted: float, tokens: float, limit: float
) -> float:
    """Most sessions whose common round stays within `limit` seconds; more than fit one step take turns."""
    if round_s(1) > limit:
        return 0.0
    most = setting.fitting_sessions(drafted, tokens)
    sessions = largest(lambda n: round_s(n) <= limit, most)
    return sessions if sessions < most else most * limit / round_s(most)


def largest(holds: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` that holds, where smaller ones do as well; 0 where none does."""
    low, high = 0.0, most
    if holds(high):
        return high
    while high - low > ENOUGH * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


Mode = Callable[[Setting, int, float], float]
MODES: dict[str, Mode] = {
    "centralized": centralized,
    "server-sd": server_sd,
    "sled-continuous": sled_continuous,
    "sled-static": sled_static,
}


@dataclass(frozen=True)
class Capacity:
    """How many users a mode holds with one draft length."""

    mode: str
    draft_length: int
    tokens_per_round: float
    users: int
    by_speed: float  # users that speed alone would allow
    kv_fits: int  # users whose KV fits

    @property
    def kv_binds(self) -> bool:
        return self.by_speed >= self.kv_fits + 1 or self.kv_fits == 0


def capacity(setting: Setting, mode: str, length: int, pace: float) -> Capacity:
    """Users of `mode` who each read `pace` tokens/s with drafts of `length` tokens."""
    users = MODES[mode](setting, length, pace)
    fits = kv_fits(setting, mode)
    acceptance = setting.guarded if mode == "sled-static" else setting.acceptance
    return Capacity(mode, length, acceptance.tokens[length], min(floor(users + 1e-3), fits), users, fits)


def best(setting: Setting, mode: str, pace: float, lengths: Sequence[int] = LENGTHS[1:]) -> Capacity:
    """With that of `lengths` which holds the most users; of equals the shortest. Centralized serving has but 0."""
    lengths = (0,) if mode == "centralized" else lengths
    found = [capacity(setting, mode, length, pace) for length in lengths]
    return max(found, key=lambda each: (each.users, each.by_speed if not each.kv_binds else inf))


def kv_fits(setting: Setting, mode: str) -> int:
    """Sessions whose KV fits beside a draft's weights, and beside its KV in the mode that drafts for all of them."""
    draft = setting.draft_cost if mode in DRAFT_BESIDE else None
    return sessions_beside(setting.cost, setting.reserved, draft, reserved=mode == SERVER_SD)
