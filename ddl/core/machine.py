"""The coordinator's rules: told events, it orders commands. Nothing else decides.

Rule 1. All that affects what the coordinator does lies in this package: no clock, no I/O, no
        randomness, no threads. The same events at the same instants give the same commands.
Rule 2. Durable state (`log`) changes only by applying a record that stands in the store.
Rule 3. One record is under way at a time (`job`): the log is a chain, and so is its writing.

How it goes. `Announced` is judged and fetched; `Fetched` makes it *ready* (`inbox`). Every event
ends in `_advance`, which looks at what may happen now: a round closes and becomes a `Merge`, its
`Merged` becomes a `WriteRecord`, its `RecordWritten` is applied and shown; receipts that no merge
takes along get a record of their own; new rounds open when a slot is free and the pace allows.
What a round leaves behind stays pending and counts as *carried* in the fragment's next.

An event looks only at the rounds that it may concern (`Board.touched`). What time alone may change is
looked at by the first event from `_due_at` on, of whatever kind; `wake_at` tells the shell when to
send a `Tick` for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ddl.core import events as e
from ddl.core import facts, preset, requests, selection
from ddl.core.board import Board
from ddl.core.health import HEALTH
from ddl.core.inbox import RECEIPTS_WAIT_S, Inbox, Pending
from ddl.core.job import Job
from ddl.core.log import CHECKPOINT_EVERY, LogState
from ddl.core.membership import Member, Membership
from ddl.core.retire import SWEEP_EVERY, horizon
from ddl.core.rounds import OpenRound
from ddl.core.selection import Verdict
from ddl.core.units import UnitsInbox
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    FragmentStep,
    Handin,
    HandinId,
    Health,
    LearnerRecord,
    LogRecord,
    Order,
    Receipt,
    RecordKind,
    Request,
)

RETRY_BEATS = 2.0
"""Beats until a round whose merge has failed may close again."""


class Machine:
    """The coordinator's core. `step` is its only entry; the rest is for reading.

    Args:
        run: the run's name.
        log: the folded log; owned by the machine from here on.
        epoch: the lease's fencing number, above every epoch in the log.
        holder: name of this coordinator, written into records.
        ddl_version: written into records.
        take_up: whether a run that has stopped is to go on; else it is shown as it is, and left.
    Attributes:
        inbox: contributions without a receipt in the log.
        units: finished units of data that no record lists.
        membership: learners.
        board: open rounds.
        job: the record under way, or None.
        over: set once `Quit` was ordered; nothing more happens.
    """

    def __init__(
        self,
        *,
        run: str,
        log: LogState,
        epoch: int,
        holder: str,
        ddl_version: str,
        take_up: bool = True,
    ) -> None:
        self.log = log
        self.epoch = epoch
        self.holder = holder
        self.membership = Membership()
        self.inbox = Inbox(log=log, membership=self.membership, keys=ObjectKeys(run))
        self.units = UnitsInbox()
        self.board = Board(log=log, inbox=self.inbox, membership=self.membership, epoch=epoch)
        self.over = False
        self._ddl_version = ddl_version
        self._take_up = take_up
        self.job: Job | None = None
        self._requests = requests.Queue()
        self._failed_merges = 0
        self._early: dict[HandinId, Handin] = {}
        self._due_at = float("-inf")
        self._chosen_at = -1
        self._choice: preset.Choice | None = None
        self._told_until = log.committed_at  # by earlier coordinators, as far as the log can say

    # ---- entry ------------------------------------------------------------------------------

    def step(self, event: e.Event, now: float) -> list[e.Command]:
        """Take one event at Redis server time `now`; return what to do, in this order."""
        if self.over:
            return []
        commands = list(self._take(event, now))
        if not self.over:
            commands.extend(self._advance(now))
        return commands

    def wake_at(self, now: float) -> float:
        """The instant, not before `now`, at which time alone may change something: send a `Tick`."""
        return max(now, self._due_at)

    # ---- events -----------------------------------------------------------------------------

    def _take(self, event: e.Event, now: float) -> Iterator[e.Command]:  # noqa: C901 - one branch an event
        match event:
            case e.Beat(record, at):
                yield from self._on_beat(record, at, now)
            case e.Announced(handin):
                yield from self._on_announced(handin, now)
            case e.Fetched():
                yield from self._on_fetched(event, now)
            case e.Merged():
                yield from self._on_merged(event, now)
            case e.MergeFailed():
                yield from self._on_merge_failed(event, now)
            case e.RecordWritten(record, digest):
                yield from self._on_written(record, digest, now)
            case e.RecordTaken(record, digest):
                yield from self._on_taken(record, digest, now)
            case e.Requested(request):
                self._requests.add(request)
            case e.VersionFound():
                yield from self._on_version_found(event, now)
            case e.UnitsTold(told):
                self.units.told = told
            case e.ClockJumped(seconds):
                self._shift(seconds)
            case e.Tick():
                pass
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _on_beat(self, record: LearnerRecord, at: float, now: float) -> Iterator[e.Command]:
        expected_before = record.id in self.membership.expected
        member, is_new = self.membership.hear(record, at)
        if member is None:
            return
        if is_new:
            is_known = 0.0 < record.started_at < self._told_until
            if is_known:
                self._recognise(member, now)
            else:
                yield facts.learner_joined(record)
            yield from self._enforce(member, tell=not is_known)
        if member.may_return():
            yield e.GiveOrder(record.id, None)
        yield from self._judge(member, now)
        if expected_before != (record.id in self.membership.expected):
            self.board.touch_all()
            self._wake_by(now)  # a round may have waited for somebody who can hand in, to open

    def _recognise(self, member: Member, now: float) -> None:
        """A learner of an earlier coordinator: what that one has told of it is not told again."""
        liveness = self.log.settings.liveness
        state = member.judge(now, liveness)
        if (
            state not in ("suspect", "gone", "left")
            or member.came_to(state, now, liveness) <= self._told_until
        ):
            self.membership.judge(member, now, liveness)

    def _judge(self, member: Member, now: float) -> Iterator[e.Command]:
        before = self.membership.judge(member, now, self.log.settings.liveness)
        if before is None:
            return
        self.board.touch_all()
        yield facts.learner_changed(member, before)

    def _enforce(self, member: Member, *, tell: bool = True) -> Iterator[e.Command]:
        """A learner that was kicked stays out until it is allowed in again."""
        reason = self.log.barred.get(member.id)
        was_barred, member.barred = member.barred, reason is not None
        if reason is not None:
            order = Order(kind="kick", incarnation=member.record.incarnation, reason=reason)
            yield e.GiveOrder(member.id, order)
            if tell:
                yield facts.order_given(member.id, order, "")
        elif was_barred:
            yield e.GiveOrder(member.id, None)

    def _on_announced(self, handin: Handin, now: float) -> Iterator[e.Command]:
        if not 0 <= handin.fragment < len(self.log.fragments):
            return  # no account to write a receipt into
        if self.log.epoch < self.epoch and selection.is_ahead(handin, log=self.log):
            # A predecessor's last record may have come after we read the log, and learners read it
            # there. A record of our own finds it, or tells that there is none.
            self._early[handin.id] = handin
            return
        yield from self.inbox.announce(handin, now)
        yield from self._after_inbox(handin, now)

    def _on_fetched(self, event: e.Fetched, now: float) -> Iterator[e.Command]:
        pending = self.inbox.pending.get(event.id)
        if pending is None:
            return
        yield from self.inbox.fetched(event, now)
        if pending.phase == "ready":
            self.board.pace.note_arrival(pending.handin.launch, now)
        yield from self._after_inbox(pending.handin, now)

    def _after_inbox(self, handin: Handin, now: float) -> Iterator[e.Command]:
        self.board.touched.add(handin.fragment)
        member = self.membership.members.get(handin.learner)
        if member is not None:  # a refusal may have set it aside
            yield from self._judge(member, now)

    def _on_merged(self, event: e.Merged, now: float) -> Iterator[e.Command]:
        job = self._merge_job(event.launch)
        if job is None or job.round is None:
            return
        round_ = job.round
        assert event.step.fragment == round_.fragment
        version, verdict = event.step.version_after, Verdict("merged", "")
        merged = [
            self.inbox.receipt(i.handin, verdict, weight=i.weight, version=version)
            for i in job.inputs
        ]
        carried = [str(p.handin.id) for p in self.inbox.of(round_.fragment) if p.phase != "merging"]
        quorum_at = job.closed_at if round_.quorum_at is None else round_.quorum_at
        yield from self._write(
            "step",
            now,
            receipts=merged,
            launch=round_.launch,
            fragments=(event.step,),
            carried=tuple(sorted(carried)),
            waits=msgspec.structs.replace(
                event.waits,
                quorum_s=quorum_at - round_.opened_at,
                grace_s=job.closed_at - quorum_at,
                fetch_s=max(p.fetch_s for p in job.pendings),
            ),
            health=_with_losses(event.health, job.inputs),
            kernel=event.kernel,
            why=job.why,
        )

    def _on_merge_failed(self, event: e.MergeFailed, now: float) -> Iterator[e.Command]:
        job = self._merge_job(event.launch)
        if job is None or job.round is None:
            return
        round_ = job.round
        self._abandon_job()
        self._failed_merges += bool(event.bad)
        yield facts.round_failed(round_, event.reason)
        for id_, reason in event.bad:
            pending = self.inbox.pending.get(id_)
            if pending is not None:
                yield from self.inbox.settle(pending.handin, Verdict("refused", reason), now)
                yield from self._after_inbox(pending.handin, now)
        if not event.bad:  # the same again would only fail again at once
            round_.extended = True
            round_.reason = event.reason
            round_.retry_at = now + RETRY_BEATS * self.log.settings.liveness.beat_s
        self._wake_by(now)

    def _merge_job(self, launch: int) -> Job | None:
        """The job that waits for this merge."""
        job = self.job
        if job is None or job.round is None or job.record is not None:
            return None
        return job if job.round.launch == launch else None

    def _on_written(self, record: LogRecord, digest: str, now: float) -> Iterator[e.Command]:
        job, self.job = self.job, None
        assert job is not None
        assert job.record == record
        if record.kind == "step":
            self.board.pace.note_waits(record.waits)
            self._failed_merges = 0
        yield from self._follow(record, digest, now, answering=job.request)

    def _on_taken(self, record: LogRecord, digest: str, now: float) -> Iterator[e.Command]:
        if record.epoch >= self.epoch:
            self.over = True
            yield e.Quit(f"{record.holder} (epoch {record.epoch}) holds the run now", "lease_lost")
            return
        # A predecessor's word: follow it, and do our own work again on top of it. It may not be the
        # last one, which only a record of our own can tell.
        self._abandon_job()
        yield from self._follow(record, digest, now)

    def _follow(
        self, record: LogRecord, digest: str, now: float, *, answering: Request | None = None
    ) -> Iterator[e.Command]:
        """Take in a record that stands in the log, and show it."""
        state_before = self.log.state
        self.log.apply(record, digest)
        yield from self.inbox.take_logged(record.receipts)
        for receipt in record.receipts:
            self.membership.take_receipt(receipt)
        for step in record.fragments:
            self.membership.take_version(step.fragment, step.version_after, now)
            self.board.take_off(step.fragment)
        self._wake_by(now)  # a slot is free, and the next record may be written
        yield e.Show(
            head=self.log.head(),
            fragments=tuple(self.log.fragment_state(step.fragment) for step in record.fragments),
            receipts=record.receipts,
            settings_changed=record.kind == "settings",
        )
        yield from facts.record_logged(record, state_before)
        if answering is not None:
            yield requests.answer(answering, requests.DONE)
        for learner in record.barred:
            member = self.membership.members.get(learner)
            if member is not None:
                yield from self._enforce(member)
                yield from self._judge(member, now)
        moved = [step.fragment for step in record.fragments]
        for fragment in range(len(self.log.fragments)) if record.barred else moved:
            yield from self.inbox.expire(fragment, now)
        if moved and self.log.global_version % SWEEP_EVERY == 0:
            yield e.Sweep(horizon(self.log, self.membership.held()))
        if record.seq % CHECKPOINT_EVERY == 0:
            yield e.WriteCheckpoint(record.seq)
        early, self._early = self._early, {}
        for handin in early.values():
            yield from self._on_announced(handin, now)
        if record.kind == "stop":
            yield from self._end(record.why)

    # ---- what may happen now ------------------------------------------------------------------

    def _advance(self, now: float) -> Iterator[e.Command]:
        is_due = now >= self._due_at
        if is_due:
            yield from self._pass_time(now)
        if self.job is None:
            yield from self._next_job(now)
        if self.over:
            return
        if self.log.state == "running":
            if is_due:
                self.board.open_due(now, merging=self.job.round if self.job else None)
            yield from self._look_at_rounds(now)
        if is_due:
            self._due_at = self._next_due(now)
        yield from self.board.show()

    def _pass_time(self, now: float) -> Iterator[e.Command]:
        self.board.touch_all()
        liveness = self.log.settings.liveness
        for member in self.membership.members.values():
            if member.judge(now, liveness) != member.state:
                yield from self._judge(member, now)
        for member in self.membership.lapsed(now, liveness):
            self.membership.forget(member)
            yield e.Forget(member.id, member.record.incarnation)
        yield from self.inbox.refetch(now)

    def _next_due(self, now: float) -> float:
        beat_s = self.log.settings.liveness.beat_s
        instants = [now + beat_s, *self.inbox.instants(), *self.board.instants(now)]
        return min(instant for instant in instants if instant > now)

    def _wake_by(self, instant: float) -> None:
        self._due_at = min(self._due_at, instant)

    def _next_job(self, now: float) -> Iterator[e.Command]:
        while self.job is None and (request := self._requests.next()) is not None:
            yield from self._serve(request, now)
        if self.job is not None:
            return
        budget = self.log.budget_used
        if self.log.state == "stopped" and (budget or not self._take_up):
            yield from self._end(budget or self.log.why)
        elif budget:
            yield from self._write("stop", now, who="budget", why=budget)
        elif self.log.state == "stopped":
            yield from self._write(
                "settings", now, state="running", who=self.holder, why="started again"
            )
        elif self.log.state == "running" and (alarm := self._alarm()):
            yield from self._on_alarm(alarm, now)
        elif self.log.state == "running" and (choice := self._outer_choice()):
            changes, why = choice.changes, choice.why
            yield from self._write("settings", now, changes=changes, who=preset.AUTO, why=why)
        elif self.inbox.unlogged:
            if now >= self.inbox.unlogged_since + RECEIPTS_WAIT_S:
                yield from self._write("receipts", now)
            else:
                self._wake_by(self.inbox.unlogged_since + RECEIPTS_WAIT_S)
        elif self._early or (self.log.epoch < self.epoch and self.log.state != "running"):
            # A predecessor's last record may have come after we read the log: the one that ends a pause,
            # say. In a run that goes on our own step soon finds it, unless all waits for what we do not know.
            yield from self._write("receipts", now)

    def _outer_choice(self) -> preset.Choice | None:
        """Another outer step, if one suits the run now: looked for once a record."""
        if self._chosen_at != self.log.seq:
            self._chosen_at, self._choice = self.log.seq, preset.choose(self.log)
        return self._choice

    def _serve(self, request: Request, now: float) -> Iterator[e.Command]:
        """Turn a person's wish into a record; it is answered when that stands in the log."""
        if request.id in self.log.answered:  # by a coordinator that did not live to say so
            yield requests.answer(request, requests.DONE)
            return
        match requests.decide(request, log=self.log, membership=self.membership):
            case requests.Refusal(reason):
                yield requests.answer(request, f"refused: {reason}")
            case requests.Ordered(learner, order):
                yield e.GiveOrder(learner, order)
                yield facts.order_given(learner, order, request.who)
                yield requests.answer(request, requests.DONE)
            case requests.Entry(kind, fields):
                self.job = Job(request=request)
                named = {"who": request.who, "why": request.why, "request": request.id}
                yield from self._write(kind, now, **(named | fields))
            case requests.Return(version):
                self.job = Job(request=request, back_to=version, who=request.who, why=request.why)
                yield e.FindVersion(version)

    # ---- health -------------------------------------------------------------------------------------

    def _alarm(self) -> str:
        """Why the run must not go on as it is; empty if it may."""
        health = self.log.settings.health
        if health.rollback != "off" and self._failed_merges >= health.bad_rounds:
            return f"{self._failed_merges} merges in a row were not finite"
        return self.log.vitals.alarm(health)

    def _on_alarm(self, alarm: str, now: float) -> Iterator[e.Command]:
        """Hold the run, or go back to the last healthy version if the settings say so."""
        self._failed_merges = 0
        vitals = self.log.vitals
        if self.log.settings.health.rollback == "auto" and vitals.may_roll_back:
            version = vitals.healthy_version
            self.job = Job(back_to=version, who=HEALTH, why=alarm)
            yield e.FindVersion(version)
        else:
            yield from self._write("settings", now, state="held", who=HEALTH, why=alarm)

    def _on_version_found(self, event: e.VersionFound, now: float) -> Iterator[e.Command]:
        job = self.job
        if job is None or job.back_to != event.version or job.record is not None:
            return
        if event.problem and job.request is not None:
            self.job = None
            yield requests.answer(job.request, f"refused: {event.problem}")
        elif event.problem:
            why = f"{job.why}; and no way back to version {event.version}: {event.problem}"
            yield from self._write("settings", now, state="held", who=job.who, why=why)
        else:
            yield from self._write(
                "rollback",
                now,
                fragments=[
                    FragmentStep(
                        fragment=fragment,
                        version_before=head.version,
                        version_after=head.version + 1,
                        published=there.published,
                        outer=there.outer,
                    )
                    for fragment, (head, there) in enumerate(
                        zip(self.log.fragments, event.fragments, strict=True)
                    )
                ],
                progress=event.progress,
                back_to=event.version,
                who=job.who,
                why=job.why,
                request=job.request.id if job.request else "",
            )

    def _end(self, reason: str) -> Iterator[e.Command]:
        self.over = True
        yield e.ShowRounds((), opened=False)
        yield e.Quit(reason, "stopped")

    def _look_at_rounds(self, now: float) -> Iterator[e.Command]:
        """Close or extend what is due. While a record is under way, what might close now stays open
        and may still gain contributions."""
        if not self.board.touched:
            return
        for round_ in list(self.board.rounds.values()):
            if round_.fragment not in self.board.touched:
                continue
            decision = self.board.judge(round_, now)
            if decision.kind == "extend":
                yield from self.board.extend(round_, now)
            elif decision.kind == "close" and self.job is None:
                yield from self._close(round_, now)
            if round_.grace_until is not None:
                self._wake_by(round_.grace_until)

    def _close(self, round_: OpenRound, now: float) -> Iterator[e.Command]:
        settings = self.log.settings
        head = self.log.fragments[round_.fragment]
        ready = [(p.handin, p.norm) for p in self.inbox.of(round_.fragment) if p.phase == "ready"]
        chosen, refused = selection.choose(ready, head=head, settings=settings)
        for handin, verdict in refused:
            yield from self.inbox.settle(handin, verdict, now)
            yield from self._after_inbox(handin, now)
        if len(chosen) < settings.round.quorum:
            return  # the round goes on as if the refused ones had never been
        inputs = [e.MergeInput(handin, weight) for handin, weight in chosen]
        pendings = [self.inbox.pending[i.handin.id] for i in inputs]
        for pending in pendings:
            pending.phase = "merging"
        self.board.take_off(round_.fragment)
        self.job = Job(
            round_=round_,
            pendings=pendings,
            inputs=inputs,
            closed_at=now,
            why=_closed_because(round_, pendings),
        )
        yield e.Merge(
            launch=round_.launch,
            fragment=round_.fragment,
            base=msgspec.structs.replace(head),
            inputs=tuple(inputs),
            lr=settings.outer.lr,
            momentum=settings.outer.momentum,
        )

    # ---- records ----------------------------------------------------------------------------------

    def _write(
        self,
        kind: RecordKind,
        now: float,
        *,
        receipts: Sequence[Receipt] = (),
        fragments: Sequence[FragmentStep] = (),
        **more: Any,
    ) -> Iterator[e.Command]:
        """Order the next record; all fates that wait for one travel with it."""
        record = self.log.next_record(
            kind,
            epoch=self.epoch,
            holder=self.holder,
            written_at=now,
            ddl_version=self._ddl_version,
            receipts=sorted([*receipts, *self.inbox.unlogged.values()], key=lambda r: r.id),
            units=self.units.unlogged(self.log.units),
            fragments=fragments,
            **more,
        )
        self.job = self.job or Job()
        self.job.record = record
        yield e.WriteRecord(record)

    def _abandon_job(self) -> None:
        """Give up the record under way; what it came from is as it was before."""
        job, self.job = self.job, None
        if job is None:
            return
        for pending in job.pendings:
            pending.phase = "ready"
        if job.round is not None:
            self.board.put_back(job.round)
        if job.request is not None:
            self._requests.put_back(job.request)

    def _shift(self, seconds: float) -> None:
        """Move all instants, after the server's clock has jumped."""
        self._due_at += seconds
        self.board.shift(seconds)
        self.inbox.shift(seconds)
        self.membership.shift(seconds)
        if self.job is not None:
            self.job.closed_at += seconds
            if self.job.round is not None:
                self.job.round.shift(seconds)


def _closed_because(round_: OpenRound, pendings: Sequence[Pending]) -> str:
    """Why a round closes, and whom it has waited for longest, for the log."""
    last = max(pendings, key=lambda pending: pending.ready_at).handin.learner
    return f"{round_.reason}; {last} came last" if len(pendings) > 1 else round_.reason


def _with_losses(health: Health, inputs: Sequence[e.MergeInput]) -> Health:
    """Health with the losses told: their mean, weighted like the contributions, and the least."""
    told = [(i.handin.loss, i.weight) for i in inputs if i.handin.loss is not None]
    total = sum(weight for _, weight in told)
    if not total:
        return health
    return msgspec.structs.replace(
        health,
        loss_mean=sum(loss * weight for loss, weight in told) / total,
        loss_least=min(loss for loss, _ in told),
    )
