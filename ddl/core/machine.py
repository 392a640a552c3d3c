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

An event looks only at the rounds that it may concern (`_touch`). What time alone may change is
looked at by the first event from `_due_at` on, of whatever kind; `wake_at` tells the shell when to
send a `Tick` for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from ddl import config
from ddl.core import events as e
from ddl.core import rounds, selection
from ddl.core.inbox import RECEIPTS_WAIT_S, Inbox, Pending
from ddl.core.log import CHECKPOINT_EVERY, LogState
from ddl.core.membership import Member, Membership
from ddl.core.pace import Pace
from ddl.core.rounds import OpenRound
from ddl.core.selection import Verdict
from ddl.errors import ConfigError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    FragmentStep,
    Handin,
    LearnerRecord,
    LogRecord,
    Receipt,
    Request,
    Round,
)

RETRY_BEATS = 2.0
"""Beats until a round whose merge has failed may close again."""


class Job:
    """The record under way: what it came from, and once it is ordered, the record itself."""

    __slots__ = ("closed_at", "inputs", "pendings", "record", "request", "round")

    def __init__(
        self,
        *,
        round_: OpenRound | None = None,
        pendings: Sequence[Pending] = (),
        inputs: Sequence[e.MergeInput] = (),
        closed_at: float = 0.0,
        request: Request | None = None,
    ) -> None:
        self.round = round_
        self.pendings = tuple(pendings)
        self.inputs = tuple(inputs)
        self.closed_at = closed_at
        self.request = request
        self.record: LogRecord | None = None


class Machine:
    """The coordinator's core. `step` is its only entry; the rest is for reading.

    Args:
        run: the run's name.
        log: the folded log; owned by the machine from here on.
        epoch: the lease's fencing number, above every epoch in the log.
        holder: name of this coordinator, written into records.
        ddl_version: written into records.
    Attributes:
        inbox: contributions without a receipt in the log.
        membership: learners.
        rounds: by fragment, the open ones.
        job: the record under way, or None.
        over: set once `Quit` was ordered; nothing more happens.
    """

    def __init__(
        self, *, run: str, log: LogState, epoch: int, holder: str, ddl_version: str
    ) -> None:
        self.log = log
        self.epoch = epoch
        self.holder = holder
        self.membership = Membership()
        self.inbox = Inbox(log=log, membership=self.membership, keys=ObjectKeys(run))
        self.rounds: dict[int, OpenRound] = {}
        self.over = False
        self._ddl_version = ddl_version
        self._pace = Pace(
            epoch=epoch, num_fragments=len(log.fragments), last_fragment=log.last_fragment
        )
        self.job: Job | None = None
        self._requests: deque[Request] = deque()
        self._requested: set[str] = set()
        self._due_at = float("-inf")
        self._touched: set[int] = set()
        self._shown: tuple[Round, ...] | None = None
        self._opened = False

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

    def shown_rounds(self) -> tuple[Round, ...]:
        """The open rounds as last ordered to be shown, oldest first."""
        return self._shown or ()

    # ---- events -----------------------------------------------------------------------------

    def _take(self, event: e.Event, now: float) -> Iterator[e.Command]:
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
                if request.id not in self._requested:
                    self._requested.add(request.id)
                    self._requests.append(request)
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
            yield e.Say(
                "learner.joined",
                f"{record.id} joined from {record.host} ({record.device})",
                {"learner": record.id, "incarnation": record.incarnation},
            )
        if member.may_return():
            yield e.GiveOrder(record.id, None)
        yield from self._judge(member, now)
        if expected_before != (record.id in self.membership.expected):
            self._touched.update(self.rounds)

    def _judge(self, member: Member, now: float) -> Iterator[e.Command]:
        before = self.membership.judge(member, now, self.log.settings.liveness)
        if before is None:
            return
        self._touched.update(self.rounds)
        sentence = f"{member.id} is {member.state} (was {before})"
        if member.record.error:
            sentence += f": {member.record.error}"
        yield e.Say(f"learner.{member.state}", sentence, {"learner": member.id})

    def _on_announced(self, handin: Handin, now: float) -> Iterator[e.Command]:
        if not 0 <= handin.fragment < len(self.log.fragments):
            return  # no account to write a receipt into
        yield from self.inbox.announce(handin, now)
        yield from self._after_inbox(handin, now)

    def _on_fetched(self, event: e.Fetched, now: float) -> Iterator[e.Command]:
        pending = self.inbox.pending.get(event.id)
        if pending is None:
            return
        yield from self.inbox.fetched(event, now)
        if pending.phase == "ready":
            self._pace.note_arrival(pending.handin.launch, now)
        yield from self._after_inbox(pending.handin, now)

    def _after_inbox(self, handin: Handin, now: float) -> Iterator[e.Command]:
        self._touched.add(handin.fragment)
        member = self.membership.members.get(handin.learner)
        if member is not None:  # a refusal may have set it aside
            yield from self._judge(member, now)

    def _on_merged(self, event: e.Merged, now: float) -> Iterator[e.Command]:
        job = self._merge_job(event.launch)
        if job is None or job.round is None:
            return
        round_ = job.round
        assert event.step.fragment == round_.fragment
        merged = [
            self.inbox.receipt(i.handin, Verdict("merged", ""), weight=i.weight) for i in job.inputs
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
            health=msgspec.structs.replace(event.health, loss_mean=_mean_loss(job.inputs)),
            kernel=event.kernel,
        )

    def _on_merge_failed(self, event: e.MergeFailed, now: float) -> Iterator[e.Command]:
        job = self._merge_job(event.launch)
        if job is None or job.round is None:
            return
        round_ = job.round
        self._abandon_job()
        yield e.Say(
            "round.failed",
            f"fragment {round_.fragment} v{round_.version_before + 1}: {event.reason}",
            {"fragment": round_.fragment, "launch": round_.launch},
        )
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
            self._pace.note_waits(record.waits)
        yield from self._follow(record, digest, now, answering=job.request)

    def _on_taken(self, record: LogRecord, digest: str, now: float) -> Iterator[e.Command]:
        if record.epoch >= self.epoch:
            self.over = True
            yield e.Quit(f"{record.holder} (epoch {record.epoch}) holds the run now", "lease_lost")
            return
        # A predecessor's last word: follow it, and do our own work again on top of it.
        self._abandon_job()
        yield from self._follow(record, digest, now)

    def _follow(
        self, record: LogRecord, digest: str, now: float, *, answering: Request | None = None
    ) -> Iterator[e.Command]:
        """Take in a record that stands in the log, and show it."""
        self.log.apply(record, digest)
        yield from self.inbox.take_logged(record.receipts)
        for receipt in record.receipts:
            self.membership.take_receipt(receipt)
        for step in record.fragments:
            self.rounds.pop(step.fragment, None)
        self._wake_by(now)  # a slot is free, and the next record may be written
        yield e.Show(
            head=self.log.head(),
            fragments=tuple(self.log.fragment_state(step.fragment) for step in record.fragments),
            receipts=record.receipts,
            settings_changed=record.kind == "settings",
        )
        yield from _tell_record(record)
        if answering is not None:
            yield e.Answer(answering.id, "stopped" if record.kind == "stop" else "done")
        for step in record.fragments:
            yield from self.inbox.expire(step.fragment, now)
        if record.seq % CHECKPOINT_EVERY == 0:
            yield e.WriteCheckpoint(record.seq)
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
                self._open_rounds(now)
            for round_ in self._rounds_in_order():
                if round_.fragment in self._touched:
                    yield from self._look_at(round_, now)
        if is_due:
            self._due_at = self._next_due(now)
        yield from self._show_rounds()

    def _pass_time(self, now: float) -> Iterator[e.Command]:
        self._touched.update(self.rounds)
        liveness = self.log.settings.liveness
        for member in self.membership.members.values():
            if member.judge(now, liveness) != member.state:
                yield from self._judge(member, now)
        for member in self.membership.lapsed(now, liveness):
            self.membership.forget(member)
            yield e.Forget(member.id, member.record.incarnation)
        yield from self.inbox.refetch(now)

    def _next_due(self, now: float) -> float:
        instants = [now + self.log.settings.liveness.beat_s, *self.inbox.instants()]
        for round_ in self.rounds.values():
            instants += round_.instants()
        if (step_s := self.membership.step_s()) is not None:
            instants.append(self._pace.opens_at(self.log.settings.round, step_s, now))
        return min(instant for instant in instants if instant > now)

    def _wake_by(self, instant: float) -> None:
        self._due_at = min(self._due_at, instant)

    def _next_job(self, now: float) -> Iterator[e.Command]:
        while self._requests and self.job is None:
            yield from self._serve(self._requests.popleft(), now)
        if self.job is not None:
            return
        budget = stop_reason(self.log)
        if budget and self.log.state == "stopped":
            yield from self._end(budget)
        elif budget:
            yield from self._write("stop", now, who="budget", why=budget)
        elif self.log.state == "stopped":
            yield from self._write("settings", now, who=self.holder, why="resumed")
        elif self.inbox.unlogged:
            if now >= self.inbox.unlogged_since + RECEIPTS_WAIT_S:
                yield from self._write("receipts", now)
            else:
                self._wake_by(self.inbox.unlogged_since + RECEIPTS_WAIT_S)

    def _serve(self, request: Request, now: float) -> Iterator[e.Command]:
        """Turn a person's wish into a record; it is answered when that stands in the log."""
        if request.kind == "stop":
            self.job = Job(request=request)
            yield from self._write("stop", now, who=request.who, why=request.why or "asked to stop")
        elif request.kind == "set":
            try:
                config.amend(self.log.settings, request.changes)
            except ConfigError as error:
                yield e.Answer(request.id, f"refused: {error}")
                return
            self.job = Job(request=request)
            yield from self._write(
                "settings", now, changes=request.changes, who=request.who, why=request.why
            )
        else:
            yield e.Answer(request.id, f"refused: this coordinator does not know {request.kind!r}")

    def _end(self, reason: str) -> Iterator[e.Command]:
        self.over = True
        yield e.ShowRounds((), opened=False)
        yield e.Quit(reason, "stopped")

    # ---- rounds -----------------------------------------------------------------------------------

    def _look_at(self, round_: OpenRound, now: float) -> Iterator[e.Command]:
        """Note a quorum, close the round, or extend it. While a record is under way, what might
        close now stays open and may still gain contributions."""
        settings = self.log.settings.round
        pending = self.inbox.of(round_.fragment)
        ready = [p for p in pending if p.phase == "ready"]
        fresh = sum(p.handin.launch == round_.launch for p in ready)
        own = sum(p.handin.launch == round_.launch for p in pending if p.phase != "asked")
        expected = self.membership.expected
        awaited = sorted(expected - {p.handin.learner for p in ready})
        if fresh < settings.quorum:
            round_.quorum_at = round_.grace_until = None
        elif round_.quorum_at is None:
            step_s = self.membership.step_s() or self.membership.reported_step_s()
            round_.quorum_at = now
            round_.grace_until = self._pace.grace_end(round_, settings, now=now, step_s=step_s)
            self._wake_by(round_.grace_until)
        decision = rounds.close_decision(
            round_,
            quorum=settings.quorum,
            live=len(expected),
            fresh=fresh,
            carried=len(ready) - fresh,
            coming=own - fresh,
            awaited=awaited,
            now=now,
        )
        round_.reason = decision.reason
        if decision.kind == "extend":
            round_.deadline_at = now + rounds.deadline_s(settings, self.membership.step_s())
            if not round_.extended:
                round_.extended = True
                yield e.Say(
                    "round.extended",
                    f"fragment {round_.fragment} v{round_.version_before + 1}: {decision.reason}",
                    {"fragment": round_.fragment, "launch": round_.launch},
                )
        elif decision.kind == "close" and self.job is None:
            yield from self._close(round_, ready, now)

    def _close(self, round_: OpenRound, ready: list[Pending], now: float) -> Iterator[e.Command]:
        settings = self.log.settings
        head = self.log.fragments[round_.fragment]
        chosen, refused = selection.choose(
            [(p.handin, p.norm) for p in ready], head=head, settings=settings
        )
        for handin, verdict in refused:
            yield from self.inbox.settle(handin, verdict, now)
            yield from self._after_inbox(handin, now)
        if len(chosen) < settings.round.quorum:
            return  # the round goes on as if the refused ones had never been
        inputs = [e.MergeInput(handin, weight) for handin, weight in chosen]
        pendings = [self.inbox.pending[i.handin.id] for i in inputs]
        for pending in pendings:
            pending.phase = "merging"
        del self.rounds[round_.fragment]
        self.job = Job(round_=round_, pendings=pendings, inputs=inputs, closed_at=now)
        yield e.Merge(
            launch=round_.launch,
            fragment=round_.fragment,
            base=msgspec.structs.replace(head),
            inputs=tuple(inputs),
            lr=settings.outer.lr,
            momentum=settings.outer.momentum,
        )

    def _open_rounds(self, now: float) -> None:
        settings = self.log.settings.round
        busy = set(self.rounds)
        slots_used = sum(not r.extended for r in self.rounds.values())
        if self.job is not None and self.job.round is not None:
            busy.add(self.job.round.fragment)
            slots_used += 1
        while slots_used < settings.in_flight and self._may_open(now):
            fragment = self._pace.due_fragment(busy)
            if fragment is None:
                return
            round_ = self._pace.open(
                fragment,
                version_before=self.log.fragments[fragment].version,
                line=self.log.line,
                now=now,
                deadline_s=rounds.deadline_s(settings, self.membership.step_s()),
            )
            self.rounds[fragment] = round_
            self._touched.add(fragment)
            self._opened = True
            busy.add(fragment)
            slots_used += 1

    def _may_open(self, now: float) -> bool:
        """Whether the pace allows one more round now."""
        if stop_reason(self.log):
            return False
        settings = self.log.settings.round
        step_s = self.membership.step_s()
        if step_s is not None:
            return now >= self._pace.opens_at(settings, step_s, now)
        # with fewer learners than the quorum a round opens all the same: it waits, and says why
        enough = max(1, min(settings.quorum, len(self.membership.expected)))
        return self.membership.num_seasoned(settings.every_steps) >= enough

    def _rounds_in_order(self) -> list[OpenRound]:
        """The open rounds, oldest first."""
        return sorted(self.rounds.values(), key=lambda r: r.launch)

    def _show_rounds(self) -> Iterator[e.Command]:
        """Order the open rounds to be shown if they have changed."""
        expected = self.membership.expected
        for round_ in self.rounds.values():
            if round_.fragment not in self._touched:
                continue
            pending = self.inbox.of(round_.fragment)
            arrived = {p.handin.learner for p in pending if p.phase == "ready"}
            late = {p.handin.learner for p in pending if p.handin.launch != round_.launch}
            round_.shown = round_.record(
                quorum=self.log.settings.round.quorum,
                arrived=sorted(arrived),
                awaited=sorted(expected - arrived),
                late=sorted(late),
            )
        self._touched.clear()
        shown = tuple(r.shown for r in self._rounds_in_order() if r.shown is not None)
        if shown != self._shown:
            yield e.ShowRounds(shown, opened=self._opened)
            self._shown = shown
            self._opened = False

    # ---- records ----------------------------------------------------------------------------------

    def _write(
        self,
        kind: Literal["step", "receipts", "settings", "stop"],
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
            self.rounds[job.round.fragment] = job.round
            self._touched.add(job.round.fragment)
        if job.request is not None:
            self._requests.appendleft(job.request)

    def _shift(self, seconds: float) -> None:
        """Move all instants, after the server's clock has jumped."""
        self._due_at += seconds
        self._pace.shift(seconds)
        self.inbox.shift(seconds)
        self.membership.shift(seconds)
        for round_ in self.rounds.values():
            round_.shift(seconds)
        if self.job is not None:
            self.job.closed_at += seconds
            if self.job.round is not None:
                self.job.round.shift(seconds)
        self._touched.update(self.rounds)


def stop_reason(log: LogState) -> str:
    """Which budget of the run is used up; empty while it goes on."""
    stop = log.settings.stop
    if stop.commits and sum(f.merges for f in log.fragments) >= stop.commits:
        return f"stop.commits = {stop.commits} reached"
    if stop.tokens and log.progress >= stop.tokens:
        return f"stop.tokens = {stop.tokens} reached"
    return ""


def _mean_loss(inputs: Sequence[e.MergeInput]) -> float | None:
    """Mean of the losses told, weighted like the contributions."""
    told = [(i.handin.loss, i.weight) for i in inputs if i.handin.loss is not None]
    total = sum(weight for _, weight in told)
    return sum(loss * weight for loss, weight in told) / total if total else None


def _tell_record(record: LogRecord) -> Iterator[e.Command]:
    if record.kind == "step":
        merged = [r for r in record.receipts if r.fate == "merged"]
        names = ", ".join(sorted({r.learner for r in merged}))
        moves = ", ".join(f"fragment {s.fragment} v{s.version_after}" for s in record.fragments)
        loss = record.health.loss_mean
        yield e.Say(
            "version.published",
            f"version {record.global_version}: {moves} from {names}"
            + (f", loss {loss:.3f}" if loss is not None else ""),
            {
                "seq": record.seq,
                "fragment": record.fragments[0].fragment,
                "learners": [r.learner for r in merged],
                "contributions": [str(r.id) for r in merged],
                "carried": len(record.carried),
            },
        )
    elif record.kind in ("settings", "stop"):
        yield e.Say(f"run.{record.kind}", f"{record.kind}: {record.why} ({record.who})", {})
