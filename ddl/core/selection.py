"""Which contributions a closing round takes, and with what weight (design 3.2, 5.1)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from ddl.config import GateSettings, RoundSettings, Settings
from ddl.core.log import FragmentHead, LogState
from ddl.names import counted
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import KICKED, Amount, Fate, Handin, HandinId, held_digest

AMOUNT_MAX: Final = 2**53
"""Most steps or tokens of one contribution: whole numbers that every JSON reader keeps exact."""


class Verdict(NamedTuple):
    """A fate decided before any merge, and its reason."""

    fate: Fate
    reason: str


def staleness(handin: Handin, version: int) -> int:
    """Versions between the oldest one in the work and the one it would be merged onto, less one.

    Work on the present version has staleness 0, and so has work begun one version earlier: a
    learner adopts while it trains, so that is the ordinary case.
    """
    return max(0, version - handin.oldest_base - 1)


def weight(handin: Handin, *, version: int, settings: RoundSettings) -> float:
    """Merge weight: tokens^2 / steps, at most 2H steps counted, times decay^staleness.

    Source: arXiv 2604.21428, section 3.2 ("quantity x quality").
    """
    counted = min(handin.steps, 2 * settings.every_steps)
    tokens = handin.tokens * (counted / handin.steps)
    return tokens * tokens / counted * settings.staleness_decay ** staleness(handin, version)


def is_ahead(handin: Handin, *, log: LogState) -> bool:
    """Whether an announcement builds on records that this log does not have: on a receipt, a
    version or a line."""
    last = log.account_seq(handin.learner, handin.incarnation, handin.fragment)
    heads = zip(handin.held, log.fragments, strict=False)
    return handin.lineage == log.lineage and (
        handin.seq > last + 1
        or handin.line > log.line
        or any(held > head.version for held, head in heads)
    )


def admission(
    handin: Handin, *, log: LogState, keys: ObjectKeys
) -> Verdict | Literal["ignore"] | None:
    """Judge an announcement before its payload is fetched; None lets it in.

    "ignore" is for what can have no receipt: it has one already, its predecessor has none yet, or
    it was never meant for this run.
    """
    last = log.account_seq(handin.learner, handin.incarnation, handin.fragment)
    if handin.lineage != log.lineage or handin.seq != last + 1:
        return "ignore"
    if (verdict := _out_of_place(handin, log)) is not None:
        return verdict
    head = log.fragments[handin.fragment]
    problem = (
        _numbers(handin, log=log)
        or _payload(handin, log=log, keys=keys)
        or _alignment(handin, log=log)
    )
    if problem:
        return Verdict("refused", problem)
    stale = staleness(handin, head.version)
    if stale > log.settings.round.staleness_max:
        return Verdict("expired", _stale_sentence(stale, log.settings))
    return None


def _out_of_place(handin: Handin, log: LogState) -> Verdict | None:
    if handin.line != log.line:
        return Verdict("rolled_back", f"made on line {handin.line}, the run is on {log.line}")
    if handin.learner in log.barred:
        return Verdict("refused", f"{KICKED}: {log.barred[handin.learner]}")
    return None


def expiry(handin: Handin, *, log: LogState) -> Verdict | None:
    """Judge a contribution that still waits, after the run has moved on."""
    if (verdict := _out_of_place(handin, log)) is not None:
        return verdict
    stale = staleness(handin, log.fragments[handin.fragment].version)
    if stale > log.settings.round.staleness_max:
        return Verdict("expired", _stale_sentence(stale, log.settings))
    return None


def choose(
    ready: Sequence[tuple[Handin, float | None]], *, head: FragmentHead, settings: Settings
) -> tuple[list[tuple[Handin, float]], list[tuple[Handin, Verdict]]]:
    """What a closing round merges, by id with its weights, and what it refuses.

    Args:
        ready: usable contributions, with the L2 norm of each movement.
        head: the fragment as it is.
    """
    by_id = {handin.id: (handin, norm) for handin, norm in ready}
    norms = {id_: (norm, h.steps) for id_, (h, norm) in by_id.items() if norm is not None}
    outliers = norm_outliers(norms, head, settings.gate)
    chosen = []
    refused = []
    for id_, (handin, _) in sorted(by_id.items()):
        share = weight(handin, version=head.version, settings=settings.round)
        if id_ in outliers:
            refused.append((handin, Verdict("refused", outliers[id_])))
        elif share <= 0:
            stale = staleness(handin, head.version)
            reason = f"staleness {stale} and round.staleness_decay leave it no weight"
            refused.append((handin, Verdict("refused", reason)))
        else:
            chosen.append((handin, share))
    return chosen, refused


def norm_outliers(
    norms: Mapping[HandinId, tuple[float, int]], head: FragmentHead, gate: GateSettings
) -> dict[HandinId, str]:
    """Contributions that moved far more than the round's peers and the fragment's history make likely.

    A movement grows as its number of steps where these agree, and as its square root where they
    wander, so an outlier is one by both measures: its norm per step and its norm per root of steps.
    By the first alone a hand-in of one step would be refused, since Adam's first steps are the
    longest and many steps partly cancel; by the second alone one of very many steps.

    Calm in the first rounds of a fragment, when nothing is known. The bound is `norm_factor` times
    the larger of the two medians, so that a change of all learners together is not refused.

    Args:
        norms: L2 norm of each movement, and its number of steps.
    """
    if head.merges < gate.calm_rounds:
        return {}
    by_step = _medians({i: norm / steps for i, (norm, steps) in norms.items()}, head.norms)
    by_root = _medians(
        {i: norm / math.sqrt(steps) for i, (norm, steps) in norms.items()}, head.root_norms
    )
    outliers = {}
    for id_, (norm, steps) in norms.items():
        likely = max(by_step[id_] * steps, by_root[id_] * math.sqrt(steps))
        if likely > 0 and norm > gate.norm_factor * likely:
            outliers[id_] = (
                f"norm {norm:.3g} of {counted(steps, 'step')} is more than {gate.norm_factor:g} times what its "
                f"peers and the fragment's history make likely ({likely:.3g})"
            )
    return outliers


def _medians(norms: Mapping[HandinId, float], history: Sequence[float]) -> dict[HandinId, float]:
    """For each contribution the larger of two medians: of its peers, and of the history; 0 for none."""
    ordered = sorted(norms.values())
    past = median(history) if history else 0.0
    return {id_: max(_median_without(ordered, norm), past) for id_, norm in norms.items()}


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of sorted values once `value`, which is among them, is left out; 0 for none."""
    rest = len(ordered) - 1
    if rest == 0:
        return 0.0
    left_out = bisect_left(ordered, value)

    def at(index: int) -> float:
        return ordered[index + (index >= left_out)]

    return at(rest // 2) if rest % 2 else (at(rest // 2 - 1) + at(rest // 2)) / 2.0


def _numbers(handin: Handin, *, log: LogState) -> str:
    if not (1 <= handin.steps <= AMOUNT_MAX and 1 <= handin.tokens <= AMOUNT_MAX):
        return f"{handin.steps} steps and {handin.tokens} tokens: both must be from 1 to 2^53"
    reported = log.settled(handin.learner, handin.incarnation, handin.fragment) + Amount(
        steps=handin.steps, tokens=handin.tokens
    )
    if handin.total != reported:
        return (
            f"total of {handin.total.steps} steps and {handin.total.tokens} tokens, "
            f"but the log makes it {reported.steps} and {reported.tokens}"
        )
    return ""


def payload_key(handin: Handin, keys: ObjectKeys) -> str:
    """Where the payload that is announced must lie."""
    return keys.contribution(*handin.id, handin.payload.sha256)


def _payload(handin: Handin, *, log: LogState, keys: ObjectKeys) -> str:
    if handin.codec.split("-")[0].split("/")[0] != log.settings.codec.up:
        return f"codec {handin.codec!r}, but the run uses {log.settings.codec.up!r}"
    key = payload_key(handin, keys)
    if handin.payload.key != key:
        return f"payload key {handin.payload.key!r} where {key!r} is expected"
    return ""


def _alignment(handin: Handin, *, log: LogState) -> str:
    if len(handin.held) != len(log.fragments):
        return f"{len(handin.held)} held versions for {len(log.fragments)} fragments"
    hashes: dict[int, str] = {}
    for fragment, (held, head) in enumerate(zip(handin.held, log.fragments, strict=True)):
        known = head.hash_of(held)
        if known is None:
            return f"holds version {held} of fragment {fragment}, which is unknown or long gone"
        hashes[fragment] = known
    if not 0 <= handin.oldest_base <= log.fragments[handin.fragment].version:
        return f"oldest base {handin.oldest_base} is not a version of fragment {handin.fragment}"
    if handin.held_digest != held_digest(hashes):
        return "not aligned: the weights that the learner holds are not the published ones"
    return ""


def _stale_sentence(stale: int, settings: Settings) -> str:
    return f"staleness {stale} is above round.staleness_max = {settings.round.staleness_max}"
