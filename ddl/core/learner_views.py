"""Learners as displays show them, at one instant. Pure.

They are judged by the coordinator's own rules, at Redis time. Since when a learner is in its state is
read from the facts that the coordinator told, as far as they reach back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ddl.core.membership import Member
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    KICKED,
    Fact,
    HandinId,
    LastHandin,
    LearnerRecord,
    LearnerView,
    Order,
    Receipt,
)

if TYPE_CHECKING:
    from ddl.config import LivenessSettings
    from ddl.registry.base import View


def learner_views(
    view: View, liveness: LivenessSettings, versions: Sequence[int]
) -> tuple[LearnerView, ...]:
    """All learners that Redis knows, by id; `versions` are the newest of each fragment."""
    lasts = _last_handins(view.receipts, view.facts)
    shares = view.head.shares if view.head else {}
    changes = _last_changes(view.facts)
    return tuple(
        _learner(
            record,
            beat_at=view.beats.get(record.id, record.started_at),
            now=view.now,
            liveness=liveness,
            share=shares.get(record.id, 0.0),
            versions=versions,
            change=changes.get(record.id),
            order=view.orders.get(record.id),
            last=lasts.get(record.id),
        )
        for _, record in sorted(view.learners.items())
    )


def _learner(
    record: LearnerRecord,
    *,
    beat_at: float,
    now: float,
    liveness: LivenessSettings,
    share: float,
    versions: Sequence[int],
    change: tuple[str, float] | None,
    order: Order | None,
    last: LastHandin | None,
) -> LearnerView:
    member = Member(record, beat_at)
    member.stepped_at = beat_at - record.idle_s
    member.aside_reason = _aside(order, record.incarnation)
    state = member.judge(now, liveness)
    told, told_at = change or ("", record.started_at)
    if told == state or (told == "joined" and state == "joining"):
        since_at = told_at
    else:
        since_at = {
            "stalled": member.stepped_at,
            "suspect": beat_at,
            "gone": beat_at,
            "left": beat_at,
        }.get(state, record.started_at)
    has_adopted = min(record.held, default=-1) >= 0  # else it joins, and holds no version yet
    held = record.held if has_adopted else ()
    return LearnerView(
        id=record.id,
        incarnation=record.incarnation,
        host=record.host,
        device=record.device,
        state=state,
        since_at=since_at,
        beat_age_s=max(0.0, now - beat_at),
        step=record.step,
        step_s=record.step_s,
        tokens=record.tokens,
        share_ratio=share,
        held=held,
        behind=max((new - old for new, old in zip(versions, held, strict=False)), default=0),
        loss=record.loss,
        lr=record.lr,
        last=last,
        upload=record.upload,
        up_bytes=record.up_bytes,
        down_bytes=record.down_bytes,
        started_at=record.started_at,
        discarded_tokens=record.discarded.tokens,
        stall_s=record.stall_s,
        busy_s=record.busy_s,
        paused_s=record.paused_s,
        rss_bytes=record.rss_bytes,
        idle_s=record.idle_s,
        store_down_s=record.store_down_s,
        aside=member.aside_reason,
        error=record.error,
    )


def _aside(order: Order | None, incarnation: int) -> str:
    """Why nothing of a learner is merged, as the coordinator told it; empty if it is."""
    if order is None or order.incarnation != incarnation or order.kind == "drain":
        return ""
    return f"{KICKED}: {order.reason}" if order.kind == "kick" else order.reason or "refused"


def _last_changes(facts: Iterable[Fact]) -> dict[str, tuple[str, float]]:
    """Learner -> the newest thing told of its state, and when."""
    changes = {}
    for fact in facts:
        subject, _, what = fact.name.partition(".")
        if subject == "learner" and "learner" in fact.fields:
            changes[str(fact.fields["learner"])] = (what, fact.at)
    return changes


def _last_handins(receipts: Mapping[str, Receipt], facts: Sequence[Fact]) -> dict[str, LastHandin]:
    """Learner -> the newest of its receipts, and when it was given, where a fact tells.

    Fragments number theirs separately, so only facts tell which of a life's receipts came last; where
    they do not reach back so far, it is the one with the highest number.
    """
    lasts: dict[str, Receipt] = {}
    for receipt in receipts.values():
        before = lasts.get(receipt.learner)
        if before is None or _rank(receipt) > _rank(before):
            lasts[receipt.learner] = receipt
    told = _told_last(facts)
    for name, _ in told.values():
        id_ = HandinId.parse(name)
        one = receipts.get(handin_field(id_.learner, id_.incarnation, id_.fragment))
        if one is not None and one.id == id_ and id_.incarnation >= lasts[id_.learner].incarnation:
            lasts[id_.learner] = one
    return {
        learner: LastHandin(
            id=str(last.id),
            fate=last.fate,
            reason=last.reason,
            at=told[learner][1] if told.get(learner, ("",))[0] == str(last.id) else None,
            staleness=last.staleness,
        )
        for learner, last in lasts.items()
    }


def _rank(receipt: Receipt) -> tuple[int, int]:
    return (receipt.incarnation, receipt.seq)


def _told_last(facts: Sequence[Fact]) -> dict[str, tuple[str, float]]:
    """Learner -> its contribution that got its fate last, as far as facts tell, and when."""
    told: dict[str, tuple[str, float]] = {}
    for fact in reversed(facts):
        ids: Sequence[str] = ()
        if fact.name == "version.published":
            ids = fact.fields.get("contributions", ())
        elif fact.name.startswith("contribution.") and "contribution" in fact.fields:
            ids = (str(fact.fields["contribution"]),)
        for id_ in ids:
            learner = id_.partition("/")[0]
            if learner not in told:
                told[learner] = (id_, fact.at)
    return told
