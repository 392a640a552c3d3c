"""What a display draws: one `RunSnapshot` out of what a registry shows at one instant.

Pure. Learners are judged by the coordinator's own rules, at Redis time. Two states only the
coordinator knows, because they need memory: that a learner stands still, and that it was set aside.
These, and the instants of changes, are read from the facts it told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ddl.core.membership import Member
from ddl.protocol.records import (
    CoordinatorView,
    Fact,
    Handin,
    Head,
    Health,
    LastHandin,
    LearnerRecord,
    LearnerState,
    LearnerView,
    LedgerRow,
    LedgerTotals,
    LogRecord,
    Receipt,
    RunRecord,
    RunSnapshot,
    RunView,
    ServiceView,
)

if TYPE_CHECKING:
    from ddl.config import LivenessSettings, Settings
    from ddl.registry.base import View

PRESENT: Final[frozenset[LearnerState]] = frozenset(
    {"joining", "training", "stalled", "suspect", "draining", "paused", "aside"}
)
"""States of a learner that is there, or may be."""

_TOLD: Final = ("stalled", "aside")
"""States that only facts tell."""


def snapshot(view: View) -> RunSnapshot | None:
    """The run as `view` shows it; None if Redis does not know the run."""
    entry, head = view.entry, view.head
    if entry is None:
        return None
    learners = _learners(view, entry.settings.liveness)
    return RunSnapshot(
        taken_at=view.now,
        run=_run_view(entry.run, entry.settings, head, _eta_s(view, entry.settings, learners)),
        coordinator=CoordinatorView(
            holder=view.lease.holder if view.lease else "",
            epoch=view.lease.epoch if view.lease else head.epoch if head else 0,
            lease_left_s=view.lease_left_s,
            standbys=view.standbys,
        ),
        services={
            "redis": ServiceView(ok=True, latency_s=view.latency_s, error="; ".join(view.broken)),
            "store": _store_view(view.learners.values()),
        },
        learners=learners,
        rounds=view.rounds,
        loss=_loss(head, learners),
        ledger=_ledger(
            head.ledger if head else (),
            entry.run.layout.shares,
            outstanding=_outstanding(view.handins, view.receipts),
            discarded=sum(r.discarded.tokens for r in view.learners.values()),
        ),
        health=head.health if head else Health(),
        events=view.facts,
    )


def snapshot_of_log(run: RunRecord, newest: LogRecord | None, *, redis_error: str) -> RunSnapshot:
    """The run as its log alone tells it, for when Redis does not; `redis_error` says why.

    `newest` is the last record, None before the first; `taken_at` is when it was written. Learners
    and rounds are not known; the settings are those of genesis.
    """
    head = _head_of(newest) if newest else None
    return RunSnapshot(
        taken_at=newest.written_at if newest else run.created_at,
        run=_run_view(run, run.settings, head, eta_s=None),
        coordinator=CoordinatorView(
            holder=newest.holder if newest else "", epoch=newest.epoch if newest else 0
        ),
        services={
            "redis": ServiceView(ok=False, error=redis_error),
            "store": ServiceView(ok=True),
        },
        learners=(),
        rounds=(),
        loss=newest.health.loss_mean if newest else None,
        ledger=_ledger(newest.ledger if newest else (), run.layout.shares),
        health=newest.health if newest else Health(),
        events=(),
    )


def tokens_per_s(learner: LearnerView) -> float | None:
    """How fast a learner trains; None while it does not, or is not known."""
    if learner.state != "training" or not learner.step or not learner.step_s:
        return None
    return learner.tokens / learner.step / learner.step_s


# ---- the run ----------------------------------------------------------------------------------


def _head_of(record: LogRecord) -> Head:
    return Head(
        seq=record.seq,
        global_version=record.global_version,
        line=record.line,
        epoch=record.epoch,
        digest="",
        progress=record.progress,
        lineage=record.lineage,
        state=record.state,
    )


def _run_view(
    run: RunRecord, settings: Settings, head: Head | None, eta_s: float | None
) -> RunView:
    return RunView(
        name=run.name,
        lineage=run.lineage,
        state=head.state if head else "running",
        global_version=head.global_version if head else 0,
        line=head.line if head else 0,
        progress=head.progress if head else 0.0,
        stop_tokens=settings.stop.tokens,
        stop_commits=settings.stop.commits,
        num_parameters=run.layout.num_parameters,
        num_fragments=run.layout.num_fragments,
        eta_s=eta_s,
    )


def _eta_s(view: View, settings: Settings, learners: Sequence[LearnerView]) -> float | None:
    """Seconds until the first stop budget is used up at the present pace; None if not known."""
    head, stop = view.head, settings.stop
    if head is None or head.state != "running":
        return None
    estimates = []
    token_rate = sum(tokens_per_s(learner) or 0.0 for learner in learners)
    if stop.tokens and token_rate > 0:
        estimates.append((stop.tokens - head.progress) / token_rate)
    commit_rate = _commits_per_s(view.facts)
    if stop.commits and commit_rate > 0:
        estimates.append((stop.commits - head.global_version) / commit_rate)
    return max(0.0, min(estimates)) if estimates else None


def _commits_per_s(facts: Iterable[Fact]) -> float:
    instants = [fact.at for fact in facts if fact.name == "version.published"]
    if len(instants) < 2 or instants[-1] <= instants[0]:
        return 0.0
    return (len(instants) - 1) / (instants[-1] - instants[0])


def _loss(head: Head | None, learners: Iterable[LearnerView]) -> float | None:
    """The training loss of the newest step, or before there is one, the learners' mean."""
    if head is not None and head.health.loss_mean is not None:
        return head.health.loss_mean
    known = [learner.loss for learner in learners if learner.loss is not None]
    return sum(known) / len(known) if known else None


def _store_view(records: Iterable[LearnerRecord]) -> ServiceView:
    """The store as the learners find it: nobody else reports on it."""
    down = [f"{r.id} for {r.store_down_s:.0f} s" for r in records if r.store_down_s > 0]
    return ServiceView(ok=not down, error=f"not reached by {', '.join(down)}" if down else "")


# ---- the ledger -------------------------------------------------------------------------------


def _ledger(
    rows: Sequence[LedgerRow],
    shares: Sequence[float],
    *,
    outstanding: Mapping[int, int] | None = None,
    discarded: float = 0.0,
) -> LedgerTotals:
    """Tokens by fate, each fragment weighted by its share of the parameters.

    `handed_in` is what has been announced: all that is settled, and what waits for its receipt.
    """
    outstanding = outstanding or {}
    fates = {
        fate: sum(s * getattr(row, fate).tokens for s, row in zip(shares, rows, strict=False))
        for fate in LedgerRow.__struct_fields__
    }
    waiting = sum(shares[fragment] * tokens for fragment, tokens in outstanding.items())
    return LedgerTotals(
        handed_in=sum(fates.values()) + waiting, outstanding=waiting, discarded=discarded, **fates
    )


def _outstanding(handins: Mapping[str, Handin], receipts: Mapping[str, Receipt]) -> dict[int, int]:
    """Fragment -> tokens announced for it without a receipt."""
    waiting: dict[int, int] = {}
    for field, handin in handins.items():
        receipt = receipts.get(field)
        if receipt is None or receipt.seq < handin.seq:
            waiting[handin.fragment] = waiting.get(handin.fragment, 0) + handin.tokens
    return waiting


# ---- learners -----------------------------------------------------------------------------------


def _learners(view: View, liveness: LivenessSettings) -> tuple[LearnerView, ...]:
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
            change=changes.get(record.id),
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
    change: tuple[str, float] | None,
    last: LastHandin | None,
) -> LearnerView:
    member = Member(record, beat_at)
    member.stepped_at = now  # whether it stands still is the coordinator's to say
    state = member.judge(now, liveness)
    told, told_at = change or ("", record.started_at)
    if state == "training" and told in _TOLD:
        state = "stalled" if told == "stalled" else "aside"
    if told == state or (told == "joined" and state == "joining"):
        since_at = told_at
    else:
        since_at = beat_at if state in ("suspect", "gone", "left") else record.started_at
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
        held=record.held,
        loss=record.loss,
        lr=record.lr,
        last=last,
        upload=record.upload,
        stall_s=record.stall_s,
        busy_s=record.busy_s,
        rss_bytes=record.rss_bytes,
        error=record.error,
    )


def _last_changes(facts: Iterable[Fact]) -> dict[str, tuple[str, float]]:
    """Learner -> the newest thing told of its state, and when."""
    changes = {}
    for fact in facts:
        subject, _, what = fact.name.partition(".")
        if subject == "learner" and "learner" in fact.fields:
            changes[str(fact.fields["learner"])] = (what, fact.at)
    return changes


def _last_handins(receipts: Mapping[str, Receipt], facts: Iterable[Fact]) -> dict[str, LastHandin]:
    """Learner -> the newest of its receipts, and when it was given, where a fact tells."""
    given_at = _given_at(facts)
    newest: dict[str, tuple[int, float, int]] = {}
    lasts: dict[str, LastHandin] = {}
    for receipt in receipts.values():
        at = given_at.get(str(receipt.id))
        rank = (receipt.incarnation, at or 0.0, receipt.seq)
        if rank > newest.get(receipt.learner, (0, 0.0, 0)):
            newest[receipt.learner] = rank
            lasts[receipt.learner] = LastHandin(
                id=str(receipt.id), fate=receipt.fate, reason=receipt.reason, at=at
            )
    return lasts


def _given_at(facts: Iterable[Fact]) -> dict[str, float]:
    """Contribution -> when it got its fate."""
    given_at = {}
    for fact in facts:
        if fact.name == "version.published":
            given_at.update(dict.fromkeys(fact.fields.get("contributions", ()), fact.at))
        elif fact.name.startswith("contribution.") and "contribution" in fact.fields:
            given_at[str(fact.fields["contribution"])] = fact.at
    return given_at
