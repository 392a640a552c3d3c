"""What a display draws: one `RunSnapshot` out of what a registry shows at one instant.

Pure. What is wrong with the run follows from the rest of the snapshot (`ddl.core.troubles`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ddl.core import troubles
from ddl.core.facts import by_time
from ddl.core.learner_views import learner_views
from ddl.core.membership import PRESENT
from ddl.protocol.records import (
    FATES,
    CoordinatorView,
    Fact,
    Fate,
    Handin,
    Head,
    Health,
    LearnerView,
    Lease,
    LedgerRow,
    LedgerTotals,
    Receipt,
    RunRecord,
    RunSnapshot,
    RunView,
    ServiceView,
)

if TYPE_CHECKING:
    from ddl.config import Settings
    from ddl.core.log import LogState
    from ddl.registry.base import View


def snapshot(view: View) -> RunSnapshot | None:
    """The run as `view` shows it; None if Redis does not know the run."""
    entry, head = view.entry, view.head
    if entry is None:
        return None
    versions = tuple(state.version for state in view.fragments)
    learners = learner_views(view, entry.settings.liveness, versions)
    ledger = ledger_totals(
        head.ledger if head else (),
        entry.run.layout.shares,
        outstanding=_outstanding(view.handins, view.receipts),
        discarded=sum(r.discarded.tokens for r in view.learners.values()),
    )
    run = msgspec.structs.replace(
        _run_view(entry.run, entry.settings, head),
        versions=versions,
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
            "store": _store_view(learners, view.lease),
        },
        learners=learners,
        rounds=view.rounds,
        loss=_loss(head, learners),
        ledger=ledger,
        health=head.health if head else Health(),
        events=by_time(view.facts),
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
    if loss is None and losses and not _just_rolled_back(head):
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
        ledger=ledger_totals(log.ledger, log.shares),
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
        every_steps=settings.round.every_steps,
        num_parameters=run.layout.num_parameters,
        num_fragments=run.layout.num_fragments,
        created_at=run.created_at,
        committed_at=head.committed_at if head else run.created_at,
    )


def _goodput(learners: Iterable[LearnerView], ledger: LedgerTotals, now: float) -> float | None:
    """Share of learners' time that went into steps whose work was not thrown away.

    Of a learner's time since it joined, but for pauses of the run, what it spent outside of ddl, less
    the share of its tokens that it discarded, less the share of what was handed in that came to nothing.
    """
    useful_s = present_s = 0.0
    for one in learners:
        if one.state in PRESENT and one.tokens:
            useful_s += one.busy_s * max(0.0, 1 - one.discarded_tokens / one.tokens)
            present_s += max(now - one.started_at - one.paused_s, one.busy_s + one.stall_s)
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
    """The training loss of the newest step, or before there is one, the learners' mean. After a rollback
    it is not known until the next step: what learners tell is of what was given up."""
    if head is not None and (head.health.loss_mean is not None or _just_rolled_back(head)):
        return head.health.loss_mean
    known = [learner.loss for learner in learners if learner.loss is not None]
    return sum(known) / len(known) if known else None


def _just_rolled_back(head: Head) -> bool:
    """Whether nothing has been merged into the model that a rollback has taken up again."""
    return head.line > 0 and head.health == Health()


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


def _store_view(learners: Iterable[LearnerView], lease: Lease | None) -> ServiceView:
    """The store as the learners find it that are there, and how long the coordinator's writes take."""
    latency_s = lease.store_s if lease is not None else None
    down = [one for one in learners if one.store_down_s > 0 and one.state in PRESENT]
    if not down:
        return ServiceView(ok=True, latency_s=latency_s)
    named = ", ".join(f"{one.id} for {one.store_down_s:.0f} s" for one in down[:3])
    more = f" and {len(down) - 3} more" if len(down) > 3 else ""
    causes = "; ".join(dict.fromkeys(one.error for one in down if one.error))
    return ServiceView(
        ok=False,
        latency_s=latency_s,
        error=f"not reached by {named}{more}" + (causes and f": {causes}"),
    )


# ---- the ledger -------------------------------------------------------------------------------


def ledger_totals(
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


def outcomes(tokens: Mapping[Fate, float], progress: float) -> dict[str, float]:
    """What has become of settled tokens, in words for people: merged are those in the model now.

    Args:
        tokens: by fate.
        progress: of the run; rollbacks undid what was merged beyond it.
    """
    undone = {"undone by rollbacks": max(0.0, tokens["merged"] - progress)}
    words = {"rolled_back": "made on what was undone"}
    others = {words.get(fate, fate): tokens[fate] for fate in FATES if fate != "merged"}
    return {"merged": tokens["merged"] - undone["undone by rollbacks"], **undone, **others}


def _outstanding(handins: Mapping[str, Handin], receipts: Mapping[str, Receipt]) -> dict[int, int]:
    """Fragment -> tokens announced for it without a receipt."""
    waiting: dict[int, int] = {}
    for field, handin in handins.items():
        receipt = receipts.get(field)
        if receipt is None or receipt.seq < handin.seq:
            waiting[handin.fragment] = waiting.get(handin.fragment, 0) + handin.tokens
    return waiting
