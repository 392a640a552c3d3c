"""`RunSnapshot` out of what Redis, or the log, shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddl import config
from ddl.core.log import LogState
from ddl.core.snapshot import snapshot, snapshot_of_log, tokens_per_s
from ddl.protocol.records import (
    Amount,
    Health,
    LastHandin,
    LearnerView,
    LedgerRow,
    Order,
    RunSnapshot,
    ServiceView,
    Work,
)
from ddl.registry.base import View
from tests.views import NOW, fact, handin, learner, receipt, run_record, view


def taken(shown: View) -> RunSnapshot:
    result = snapshot(shown)
    assert result is not None
    return result


def one(shown: View, name: str) -> LearnerView:
    (found,) = [row for row in taken(shown).learners if row.id == name]
    return found


def test_a_run_that_redis_does_not_know_is_none() -> None:
    """An empty Redis gives None, not an error: what to do then is the caller's business."""
    assert snapshot(view(entry=None)) is None


def test_states_follow_from_the_last_beat() -> None:
    """Silence for longer than `suspect_s` and `gone_s` shows, whatever the record says of itself."""
    assert [row.state for row in taken(view()).learners] == [
        "training",
        "training",
        "joining",
        "gone",
    ]
    silent = view(beats={"anna": NOW - 6.0})
    assert one(silent, "anna").state == "suspect"
    assert one(silent, "anna").beat_age_s == 6.0


def test_a_learner_that_takes_no_steps_stands_still() -> None:
    """Its own word tells, however long ago the coordinator said so; since when, too."""
    idle = {"anna": learner("anna", idle_s=30.0)}
    row = one(view(learners=idle), "anna")
    assert row.state == "stalled"
    assert row.since_at == pytest.approx(NOW - 0.2 - 30.0)
    told = fact(9.0, "learner.stalled", "...", learner="anna")
    assert one(view(learners=idle, facts=(told,)), "anna").since_at == NOW - 9.0
    slow = {"anna": learner("anna", idle_s=30.0, step_s=4.0)}
    assert one(view(learners=slow), "anna").state == "training"


@pytest.mark.parametrize(("kind", "aside"), [("realign", "3 NaN"), ("kick", "kicked: 3 NaN")])
def test_a_learner_under_orders_is_aside(kind: Any, aside: str) -> None:
    """For as long as the order stands, with its reason; another incarnation is not concerned."""
    order = Order(kind=kind, incarnation=1, reason="3 NaN")
    row = one(view(orders={"anna": order}), "anna")
    assert (row.state, row.aside) == ("aside", aside)
    old = msgspec.structs.replace(order, incarnation=0)
    assert one(view(orders={"anna": old}), "anna").state == "training"


def test_a_stalled_learner_that_then_fell_silent_is_gone() -> None:
    """What it said of itself does not outlive its beats."""
    idle = {"dora": learner("dora", idle_s=30.0)}
    assert one(view(learners=idle), "dora").state == "gone"


def test_speed_is_that_of_applied_steps() -> None:
    """200 steps of 1,000 tokens at 0.1 s each: 10,000 tokens per second; none unless training."""
    assert tokens_per_s(one(view(), "anna")) == pytest.approx(10_000)
    assert tokens_per_s(one(view(), "cleo")) is None
    assert tokens_per_s(one(view(), "dora")) is None


def test_the_last_receipt_is_the_one_given_last() -> None:
    """Not the one with the highest number: fragments number theirs separately."""
    assert one(view(), "anna").last == LastHandin(id="anna/1/f0/8", fate="merged", at=NOW - 2.0)
    assert one(view(), "bert").last == LastHandin(
        id="bert/1/f1/4", fate="refused", reason="norm", at=NOW - 6.0
    )
    assert one(view(), "cleo").last is None


def test_a_receipt_whose_fact_is_out_of_sight_is_shown_without_an_instant() -> None:
    """Events are capped; receipts are not. A newer incarnation's stand above an older one's."""
    receipts = {
        "anna/1/0": receipt("anna", 0, 8),
        "anna/2/1": receipt("anna", 1, 1, incarnation=2),
    }
    assert one(view(facts=(), receipts=receipts), "anna").last == LastHandin(
        id="anna/2/f1/1", fate="merged", at=None
    )


def test_the_ledger_weights_fragments_by_their_share_and_balances() -> None:
    """Shares 3/4 and 1/4. Merged 400,000 on both; 8,000 refused and 12,000 waiting on fragment 1."""
    ledger = taken(view()).ledger
    assert ledger.merged == 400_000.0
    assert ledger.refused == 0.25 * 8_000
    assert ledger.outstanding == 0.25 * 12_000
    assert ledger.handed_in == 400_000.0 + 2_000.0 + 3_000.0


def test_a_hand_in_with_a_receipt_is_not_outstanding() -> None:
    """An announcement that Redis still holds beside its receipt is counted once, as settled."""
    shown = view(handins={"anna/1/1": handin("anna", 1, 7, 12_000)})
    assert taken(shown).ledger.outstanding == 0.0


def test_what_learners_threw_away_is_discarded() -> None:
    """The sum over learners of what they report."""
    learners = {n: learner(n, discarded=Work(steps=1, tokens=500)) for n in ("anna", "bert")}
    assert taken(view(learners=learners)).ledger.discarded == 1_000.0


def test_a_pause_of_the_run_costs_no_goodput() -> None:
    """48 busy seconds of the 60 since it joined are 80 %; they are all of it if 12 were a pause."""

    def goodput(paused_s: float) -> float | None:
        one = learner("anna", busy_s=48.0, stall_s=0.0, paused_s=paused_s)
        return taken(view(learners={"anna": one})).run.goodput_ratio

    whole = goodput(12.0)
    assert whole is not None
    assert goodput(0.0) == pytest.approx(0.8 * whole)


def test_time_left_is_that_of_the_first_budget_to_be_used_up() -> None:
    """Tokens: 600,000 left at 10,000 + 5,000 per second, 40 s. Commits: 45 left, at 2 in 20 s,
    450 s. While nobody's steps are timed only the commits' pace is known."""
    assert taken(view()).run.eta_s == pytest.approx(40.0)
    new = {name: learner(name, step_s=None) for name in ("anna", "bert")}
    assert taken(view(learners=new)).run.eta_s == pytest.approx(450.0)
    assert taken(view(learners=new, facts=())).run.eta_s is None


def test_a_stopped_run_has_no_time_left() -> None:
    """An estimate for what does not move would be a lie."""
    head = view().head
    assert head is not None
    stopped = view(head=msgspec.structs.replace(head, state="stopped"))
    assert taken(stopped).run.eta_s is None
    assert taken(stopped).run.state == "stopped"


def test_before_the_first_version_the_loss_is_the_learners_mean() -> None:
    """The run has no head then: version 0, no progress, the mean of 2.5, 2.61 and 2.5."""
    run = taken(view(head=None)).run
    assert (run.global_version, run.progress) == (0, 0.0)
    assert taken(view(head=None)).loss == pytest.approx((2.5 + 2.61 + 2.5) / 3)
    assert taken(view()).loss == 2.5432


def test_a_store_that_a_learner_cannot_reach_is_named() -> None:
    """Learners are the ones that see the store; how fast it is, the coordinator tells with its lease."""
    assert taken(view()).services["store"] == ServiceView(ok=True, latency_s=0.034)
    assert taken(view(lease=None)).services["store"] == ServiceView(ok=True)
    store = taken(view(learners={"anna": learner("anna", store_down_s=31.0)})).services["store"]
    assert not store.ok
    assert store.error == "not reached by anna for 31 s"


def test_unreadable_fields_are_said() -> None:
    """A learner of another version does not blind the display, and does not vanish silently."""
    redis = taken(view(broken=("field x cannot be read",))).services["redis"]
    assert redis.ok
    assert redis.error == "field x cannot be read"


def test_without_a_lease_there_is_no_coordinator() -> None:
    """The epoch is then that of the last record."""
    coordinator = taken(view(lease=None, lease_left_s=None)).coordinator
    assert (coordinator.holder, coordinator.epoch, coordinator.lease_left_s) == ("", 3, None)


def of_log(log: LogState, **changes: Any) -> RunSnapshot:
    told: dict[str, Any] = {"facts": (), "losses": (), "redis_error": "away"} | changes
    return snapshot_of_log(run_record(), log, **told)


def test_the_log_alone_tells_version_progress_and_ledger() -> None:
    """What it implies at its end, with the settings now in force; learners and rounds are not known."""
    log = LogState.genesis(run_record())
    row = LedgerRow(merged=Amount(steps=10, tokens=1_000))
    log.ledger, log.progress, log.committed_at = [row, row], 1_000.0, NOW - 50
    log.state, log.why, log.global_version, log.line = "stopped", "enough (anna)", 8, 1
    log.settings = config.amend(log.settings, {"stop.tokens": 12_000_000})
    log.health = Health(step_norm=1.0)
    shown = of_log(log, losses=((7, 2.5), (8, 2.25)))
    assert shown.taken_at == NOW - 50
    assert (shown.run.state, shown.run.why) == ("stopped", "enough (anna)")
    assert (shown.run.global_version, shown.run.line, shown.run.progress) == (8, 1, 1_000.0)
    assert shown.run.stop_tokens == 12_000_000
    assert shown.ledger.merged == shown.ledger.handed_in == 1_000.0
    assert shown.loss == 2.25
    assert not shown.coordinator.known
    assert (shown.services["redis"].ok, shown.services["redis"].error) == (False, "away")
    assert [trouble.name for trouble in shown.troubles] == ["redis.silent"]


def test_after_a_rollback_no_loss_is_known_until_the_next_step() -> None:
    """What learners and the last steps tell is of what was given up."""
    seen = view()
    assert seen.head is not None
    back = msgspec.structs.replace(seen.head, line=1, health=Health())
    shown = snapshot(seen._replace(head=back))
    assert shown is not None
    assert shown.loss is None
    log = LogState.genesis(run_record())
    log.global_version, log.line = 9, 1
    assert of_log(log, losses=((7, 2.5), (8, 2.25))).loss is None


def test_a_log_without_records_is_at_version_zero() -> None:
    """A run whose coordinator has only created it; that no Redis was named is no trouble."""
    shown = of_log(LogState.genesis(run_record()), redis_error="")
    assert (shown.run.state, shown.run.global_version) == ("running", 0)
    assert shown.taken_at == NOW - 100
    assert shown.troubles == ()


def test_a_snapshot_survives_json() -> None:
    """The record is what `--json` prints: it reads back as itself."""
    shown = taken(view())
    assert msgspec.json.decode(msgspec.json.encode(shown), type=RunSnapshot) == shown
