"""Between the steps: which sequences come back from host memory ahead of their step, and which make room for them.

Of sequences that wait, the one that is expected back last leaves first: one without a reader or with a slow one, or
whose device is far behind its forecast; then by the forecast. (Among equals that is the one that was served last, not
the one that has waited longest: they come back in the order in which they were served.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf

from hw_profiles.step_cost import HardwareProfile
from verify_server.kv.host_tier import HostTier
from verify_server.kv.pool import BlockPool, OutOfBlocks
from verify_server.kv.swap import Stage
from verify_server.session import Session

# Of the engine's blocks, those that are kept free while others can leave, so that no step waits for a copy. Chosen.
RESERVE = 1 / 16
LATE_S = 2.0  # behind its forecast, a device counts as away; chosen: longer than a round of a slow device


def tend(
    tier: HostTier,
    sessions: Mapping[int, Session],
    short: Collection[int],
    profile: HardwareProfile,
    now: float,
) -> None:
    """Begin what copies there should be now; called at each plan, when a draft arrives, and when a copy has ended.

    `short`: sessions that wait for free blocks; nobody whose work came later takes them.
    """
    pool, there = tier.own, [session for session in sessions.values() if not session.in_step]
    away = [session for session in there if is_away(session)]
    first = min([turn(sessions[id]) for id in short if id in sessions], default=None)
    if away:
        _fetch_wanted(tier, [session for session in away if first is None or turn(session) <= first])
    if away and first is None:
        _fetch_expected(tier, pool, away, now)
    lacking = RESERVE * pool.num_blocks - pool.num_free - tier.becoming_free()
    if lacking > 0 and not tier.is_busy:
        _park_some(tier, there, lacking, profile, now)


def is_away(session: Session) -> bool:
    """Whether its KV is in host memory, and no copy travels."""
    swap = session.sequence.table.swap
    return swap is not None and swap.stage is Stage.AWAY


def expected_at(session: Session, now: float) -> float:
    """When there will be work for it, on the loop's clock; inf = nobody knows."""
    if not session.rests:
        return now
    if not session.awaits_draft:  # its reader is slow, or gone
        return inf
    forecast = session.timing.estimate.forecast
    length = session.turn.hint or forecast.length or 1
    expected = session.timing.asked_since + forecast.away_s(length)
    return inf if now > expected + LATE_S else max(now, expected)


def leaving_order(session: Session, pool: BlockPool, now: float) -> tuple[bool, float, int]:
    """Of sequences that wait, the one with the smallest value leaves first; those of greedy tenants before all."""
    return not pool.is_over_share(session.tenant), -expected_at(session, now), -session.id


def _fetch_wanted(tier: HostTier, away: Iterable[Session]) -> None:
    """Those with work, in the order in which it came, as far as there is free memory."""
    wanted = [session for session in away if not session.rests]
    for session in sorted(wanted, key=turn):
        try:
            tier.fetch(session)
        except OutOfBlocks:
            break


def turn(session: Session) -> tuple[bool, float, int]:
    """Who has the smallest value gets memory first: drafts and prompts in the order in which they came, as their
    sessions leave again afterwards; then, by age, sessions that the server decodes, which would take it from each other
    for ever."""
    if session.pending is not None:
        return False, session.pending.since, session.id
    by_age = session.sequence.uncomputed <= 1
    return by_age, 0.0 if by_age else session.timing.waiting_since, session.id


def _fetch_expected(tier: HostTier, pool: BlockPool, away: Iterable[Session], now: float) -> None:
    """Those whose draft arrives while they are copied, into memory beyond the reserve."""
    for session in away:
        table = session.sequence.table
        if table.swap is None or not session.rests:
            continue
        count = len(table.swap.host)
        room = pool.num_free - RESERVE * pool.num_blocks
        if count <= room and is_away(session) and expected_at(session, now) <= now + tier.back.seconds(count):
            try:
                tier.fetch(session)
            except OutOfBlocks:  # its tenant has no more
                continue


def _park_some(
    tier: HostTier, there: Iterable[Session], short: float, profile: HardwareProfile, now: float
) -> None:
    """Let sequences that wait leave until `short` blocks become free, if that pays."""
    resting = [session for session in there if session.rests and has_blocks(session)]
    pool = tier.own
    for session in sorted(resting, key=lambda one: leaving_order(one, pool, now)):
        before = tier.becoming_free()
        blocks = len(session.sequence.table.blocks)
        soon = now + tier.out.seconds(blocks) + tier.back.seconds(blocks)
        if expected_at(session, now) > soon and tier.pays(session, profile) and tier.park(session):
            short -= tier.becoming_free() - before
        if short <= 0 or tier.is_busy:
            break


def has_blocks(session: Session) -> bool:
    """Whether its KV is in blocks of the engine, and no copy travels."""
    table = session.sequence.table
    return table.swap is None and bool(table.blocks)
