"""What a display draws: one `RunSnapshot` out of what a registry shows at one instant.

Pure. Learners are judged by the coordinator's own rules, at Redis time. Since when a learner is in
its state is read from the facts that the coordinator told, as far as they reach back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ddl.core import troubles
from ddl.core.membership import PRESENT, Member
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    CoordinatorView,
    Fact,
    Handin,
    HandinId,
    Head,
    Health,
    LastHandin,
    LearnerRecord,
    LearnerView,
    LedgerRow,
    LedgerTotals,
    Order,
    Receipt,
    RunRecord,
    RunSnapshot,
    RunView,
    ServiceView,
)

if TYPE_CHECKING:
    from ddl.config import LivenessSettings, Settings
    from ddl.core.log import LogState
    from ddl.registry.base import View


def snapshot(view: View) -> RunSnapshot | None:
    """The run as `view` shows it; None if Redis does not know the run."""
    entry, head = view.entry, view.head
    if entry is None:
        return None
    learners = _learners(view, entry.settings.liveness)
    ledger = _ledger(
        head.ledger if head else (),
        entry.run.layout.shares,
        outstanding=_outstanding(view.handins, view.receipts),
        discarded=sum(r.discarded.tokens for r in view.learners.values()),
    )
    run = msgspec.structs.replace(
        _run_view(entry.run, entry.settings, head),
        versions=_versions(view),
        eta_s=_eta_s(view, entry.settings, learners),
        goodput_ratio=_goodput(learners, ledger, view.now),
    )
    shown = RunSnapshot(
        taken_at=view.now,
        run=run,
        coordinator=CoordinatorView(
            holder=view.lease.holder if view.lease else "",
            epoch=view.lease.epoch if view.lease else head.epoch if head else 0,
            lease_left_s=view.lease_left_s,
            standbys=view.standbys,
        ),
        services={
            "redis": _redis_view(view),
            "store": _store_view(learners),
        },
        learners=learners,
        rounds=view.rounds,
        loss=_loss(head, learners),
        ledger=ledger,
        health=head.health if head else Health(),
        events=tuple(sorted(view.facts, key=_instant)),  # learners and coordinator tell apart
        losses=losses(view.facts),
    )
    wrong = troubles.standing(shown)
    if any(trouble.alarm for trouble in wrong):  # at a pace of nothing, it takes for ever
        run = msgspec.structs.replace(run, eta_s=None)
    return msgspec.structs.replace(shown, run=run, troubles=wrong)


def snapshot_of_log(
    run: RunRecord,
    log: LogState,
    *,
    facts: Sequence[Fact],
    losses: Sequence[tuple[int, float]],
    redis_error: str,
) -> RunSnapshot:
    """The run as its log alone tells it, for when Redis does not.

    `taken_at` is when the newest record was written. Who is there, and which rounds are open, is not
    known.

    Args:
        log: all records of the run, folded.
        facts: what the newest records tell.
        losses: see `RunSnapshot`.
        redis_error: why Redis was not asked or does not know; empty if none was named.
    """
    head = log.head()
    loss = log.health.loss_mean
    if loss is None and losses:
        loss = losses[-1][1]
    shown = RunSnapshot(
        taken_at=log.committed_at,
        run=msgspec.structs.replace(
            _run_view(run, log.settings, head),
            versions=tuple(fragment.version for fragment in log.fragments),
        ),
        coordinator=CoordinatorView(epoch=log.epoch, known=False),
        services={
            "redis": ServiceView(ok=False, error=redis_error, asked=bool(redis_error)),
            "store": ServiceView(ok=True),
        },
        learners=(),
        rounds=(),
        loss=loss,
        ledger=_ledger(log.ledger, log.shares),
        health=log.health,
        events=tuple(facts),
        losses=tuple(losses),
    )
    return msgspec.structs.replace(shown, troubles=troubles.standing(shown))


def losses(facts: Iterable[Fact]) -> tuple[tuple[int, float], ...]:
    """(global version, loss) of the steps that `facts` tell of, in their order."""
    return tuple(
        (fact.fields["version"], fact.fields["loss"])
        for fact in facts
        if fact.name == "version.published" and fact.fields.get("loss") is not None
    )


def tokens_per_s(learner: LearnerView) -> float | None:
    """How fast a learner trains; None while it does not, or is not known."""
    if learner.state != "training" or not learner.step or not learner.step_s:
        return None
    return learner.tokens / learner.step / learner.step_s


def _instant(fact: Fact) -> float:
    return fact.at


# ---- the run ----------------------------------------------------------------------------------


def _run_view(run: RunRecord, settings: Settings, head: Head | None) -> RunView:
    return RunView(
        name=run.name,
        lineage=run.lineage,
        state=head.state if head else "running",
        why=head.why if head else "",
        state_at=head.state_at if head else run.created_at,
        global_version=head.global_version if head else 0,
        line=head.line if head else 0,
        progress=head.progress if head else 0.0,
        stop_tokens=settings.stop.tokens,
        stop_commits=settings.stop.commits,
        quorum=settings.round.quorum,
        num_parameters=run.layout.num_parameters,
        num_fragments=run.layout.num_fragments,
        created_at=run.created_at,
        committed_at=head.committed_at if head else run.created_at,
    )


def _versions(view: View) -> tuple[int, ...]:
    return tuple(state.version for state in view.fragments)


def _goodput(learners: Iterable[LearnerView], ledger: LedgerTotals, now: float) -> float | None:
    """Share of learners' time that went into steps whose work was not thrown away.

    Of a learner's time since it joined, what it spent outside of ddl, less the share of its tokens
    that it discarded, less the share of what was handed in that came to nothing.
    """
    useful_s = present_s = 0.0
    for one in learners:
        if one.state in PRESENT and one.tokens:
            useful_s += one.busy_s * max(0.0, 1 - one.discarded_tokens / one.tokens)
            present_s += max(now - one.started_at, one.busy_s + one.stall_s)
    if not present_s:
        return None
    wasted = ledger.refused + ledger.expired + ledger.lost + ledger.rolled_back
    return useful_s / present_s * (1 - (wasted / ledger.handed_in if wasted else 0.0))


def _eta_s(view: View, settings: Settings, learners: Sequence[LearnerView]) -> float | None:
    """Seconds until the first stop budget is used up at the present pace; None if not known."""
    head, stop = view.head, settings.stop
    if head is None or head.state != "running" or view.lease is None:
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


def _redis_view(view: View) -> ServiceView:
    """Redis as it looks to us, who read; what it is like for those who write follows from its memory."""
    errors = list(view.broken)
    is_full = bool(view.max_bytes) and view.used_bytes >= view.max_bytes
    if is_full:
        errors.insert(
            0,
            f"its memory is full, {view.used_bytes / 1e6:.1f} MB of maxmemory {view.max_bytes / 1e6:.1f} MB",
        )
    return ServiceView(ok=not is_full, latency_s=view.latency_s, error="; ".join(errors))


def _store_view(learners: Iterable[LearnerView]) -> ServiceView:
    """The store as the learners find it that are there: nobody else reports on it."""
    down = [one for one in learners if one.store_down_s > 0 and one.state in PRESENT]
    if not down:
        return ServiceView(ok=True)
    named = ", ".join(f"{one.id} for {one.store_down_s:.0f} s" for one in down[:3])
    more = f" and {len(down) - 3} more" if len(down) > 3 else ""
    causes = "; ".join(dict.fromkeys(one.error for one in down if one.error))
    return ServiceView(ok=False, error=f"not reached by {named}{more}" + (causes and f": {causes}"))


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
    versions = _versions(view)
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
        behind=max((new - old for new, old in zip(versions, record.held, strict=False)), default=0),
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
    return f"kicked: {order.reason}" if order.kind == "kick" else order.reason or "refused"


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
