"""The coordinator's rules: told events, it orders commands. Nothing else decides.

Rule 1. All that affects what the coordinator does lies in this package: no clock, no I/O, no
        randomness, no threads. The same events at the same instants give the same commands.
Rule 2. Durable state (`log`) changes only by applying a record that stands in the store.
Rule 3. One record is under way at a time (`_job`): the log is a chain, and so is its writing.

How it goes. `Announced` is judged and fetched; `Fetched` makes it *ready*. Every event ends in
`_advance`, which looks at what may happen now: contributions expire, a round closes and becomes a
`Merge`, its `Merged` becomes a `WriteRecord`, its `RecordWritten` is applied and shown; receipts
that no merge takes along get a record of their own; new rounds open when a slot is free and the
pace allows. What a round leaves behind stays pending and counts as *carried* in the fragment's next.

States of a pending contribution: *fetching* (ordered) -> *ready*, or *asked* (damaged or missing,
the learner is to put it again; fetched anew after a while) -> gone with its receipt in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from ddl import config
from ddl.core import events as e
from ddl.core import rounds, selection
from ddl.core.log import CHECKPOINT_EVERY, LogState
from ddl.core.membership import Member, median_step_s
from ddl.core.rounds import OpenRound
from ddl.core.selection import Verdict
from ddl.errors import ConfigError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    Fate,
    FragmentStep,
    Handin,
    HandinId,
    LearnerRecord,
    LogRecord,
    Order,
    Receipt,
    Request,
    Round,
)

RECEIPTS_WAIT_S: Final = 2.0
"""How long a fate may wait for a `step` record to travel with."""

ASK_ATTEMPTS: Final = 5
"""How often a living learner may put a damaged or missing payload again before it is given up."""

LAUNCHES_PER_EPOCH: Final = 1_000_000
"""Launch numbers of an epoch start at epoch * this, so that no two coordinators share one."""

LAGS_KEPT: Final = 64


class Pending:
    """A contribution without a receipt."""

    __slots__ = ("asked", "fetch_at", "handin", "norm", "phase")

    def __init__(self, handin: Handin) -> None:
        self.handin = handin
        self.phase: Literal["fetching", "ready", "asked", "merging"] = "fetching"
        self.norm: float | None = None
        self.asked = 0
        self.fetch_at = 0.0


class Job:
    """The record under way."""

    __slots__ = ("inputs", "record", "round")

    def __init__(
        self, round_: OpenRound | None = None, inputs: tuple[e.MergeInput, ...] = ()
    ) -> None:
        self.round = round_
        self.inputs = inputs
        self.record: LogRecord | None = None


class Machine:
    """The coordinator's core. `step` is its only entry; the rest is for reading.

    Args:
        run: the run's name.
        log: the folded log; owned by the machine from here on.
        epoch: the lease's fencing number, above every epoch in the log.
        holder: name of this coordinator, written into records.
        ddl_version: written into records.
    """

    def __init__(
        self, *, run: str, log: LogState, epoch: int, holder: str, ddl_version: str
    ) -> None:
        self.log = log
        self.epoch = epoch
        self.holder = holder
        self.members: dict[str, Member] = {}
        self.pending: dict[HandinId, Pending] = {}
        self.rounds: dict[int, OpenRound] = {}
        self.unlogged: dict[HandinId, Receipt] = {}
        self.over = False
        self._keys = ObjectKeys(run)
        self._ddl_version = ddl_version
        self._launch = epoch * LAUNCHES_PER_EPOCH
        self._opened_at: float | None = None
        self._next_fragment = (log.last_fragment + 1) % len(log.fragments)
        self._job: Job | None = None
        self._unlogged_since = 0.0
        self._requests: deque[Request] = deque()
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        self._quorum_s = rounds.Ema()
        self._sync_s = rounds.Ema()
        self._rounds_dirty = True
        self._rounds_opened = False

    # ---- entry ------------------------------------------------------------------------------

    def step(self, event: e.Event, now: float) -> list[e.Command]:  # noqa: C901 - one branch an event
        """Take one event at Redis server time `now`; return what to do, in this order."""
        if self.over:
            return []
        commands: list[e.Command] = []
        match event:
            case e.Beat(record, at):
                commands += self._on_beat(record, at, now)
            case e.Announced(handin):
                commands += self._on_announced(handin, now)
            case e.Fetched():
                commands += self._on_fetched(event, now)
            case e.Merged():
                commands += self._on_merged(event, now)
            case e.MergeFailed():
                commands += self._on_merge_failed(event, now)
            case e.RecordWritten(record, digest):
                commands += self._on_written(record, digest, now)
            case e.RecordTaken(record, digest):
                commands += self._on_taken(record, digest)
            case e.Requested(request):
                if all(request.id != known.id for known in self._requests):
                    self._requests.append(request)
            case e.ClockJumped(seconds):
                self._shift(seconds)
            case e.Tick():
                pass
            case _:
                raise AssertionError(f"unknown event {event!r}")
        commands += self._advance(now)
        return commands

    def wake_at(self, now: float) -> float:
        """The next instant at which a `Tick` may change something."""
        instants = [now + self.log.settings.liveness.beat_s]
        for round_ in self.rounds.values():
            instants.append(round_.deadline_at)
            if round_.grace_until is not None:
                instants.append(round_.grace_until)
        if self.unlogged:
            instants.append(self._unlogged_since + RECEIPTS_WAIT_S)
        gap_s = self._gap_s()
        if gap_s is not None and self._opened_at is not None:
            instants.append(self._opened_at + gap_s)
        instants += [p.fetch_at for p in self.pending.values() if p.phase == "asked"]
        return min((i for i in instants if i > now), default=now)

    # ---- events -----------------------------------------------------------------------------

    def _on_beat(self, record: LearnerRecord, at: float, now: float) -> Iterator[e.Command]:
        member = self.members.get(record.id)
        if member is None or record.incarnation > member.record.incarnation:
            self.members[record.id] = member = Member(record, at)
            yield e.Say(
                "learner.joined",
                f"{record.id} joined from {record.host} ({record.device})",
                {"learner": record.id, "incarnation": record.incarnation},
            )
        elif record.incarnation < member.record.incarnation:
            return
        else:
            member.hear(record, at)
        if member.aside_reason and record.held == tuple(f.version for f in self.log.fragments):
            member.aside_reason = ""
            member.refusals = 0
            yield e.GiveOrder(record.id, None)
        yield from self._judge(member, now)

    def _judge(self, member: Member, now: float) -> Iterator[e.Command]:
        state = member.judge(now, self.log.settings.liveness)
        if state == member.state:
            return
        before, member.state, member.since_at = member.state, state, now
        self._rounds_dirty = True
        sentence = f"{member.id} is {state} (was {before})"
        if member.record.error:
            sentence += f": {member.record.error}"
        yield e.Say(f"learner.{state}", sentence, {"learner": member.id})

    def _on_announced(self, handin: Handin, now: float) -> Iterator[e.Command]:
        if handin.id in self.pending or handin.id in self.unlogged:
            return
        if not 0 <= handin.fragment < len(self.log.fragments):
            return  # no account to write a receipt into
        verdict = selection.admission(handin, log=self.log, keys=self._keys)
        if verdict == "ignore":
            return
        member = self.members.get(handin.learner)
        if verdict is None and member is not None and member.aside_reason:
            verdict = Verdict("refused", f"set aside until it re-aligns: {member.aside_reason}")
        if verdict is not None:
            yield from self._settle(handin, verdict, now)
            return
        self.pending[handin.id] = Pending(handin)
        round_ = self.rounds.get(handin.fragment)
        if round_ is not None and round_.launch == handin.launch:
            self._lags_s.append(now - round_.opened_at)
        self._rounds_dirty = True
        yield e.Fetch(handin)

    def _on_fetched(self, event: e.Fetched, now: float) -> Iterator[e.Command]:
        pending = self.pending.get(event.id)
        if pending is None or pending.phase != "fetching":
            return
        self._rounds_dirty = True
        handin = pending.handin
        if event.outcome == "ok":
            pending.phase = "ready"
            pending.norm = event.norm
            self._sync_s.add(event.seconds)
        elif event.outcome == "refused":
            yield from self._settle(handin, Verdict("refused", event.reason), now)
        elif event.outcome == "unavailable":
            pending.phase = "asked"  # not the learner's fault: only look again later
            pending.fetch_at = now + self.log.settings.liveness.beat_s
        else:
            pending.asked += 1
            if pending.asked > ASK_ATTEMPTS or not self._may_put_again(handin):
                fate: Fate = "lost" if event.outcome == "missing" else "refused"
                yield from self._settle(handin, Verdict(fate, event.reason), now)
                return
            pending.phase = "asked"
            pending.fetch_at = now + 2.0 * self.log.settings.liveness.beat_s
            yield e.AskAgain(handin)
            yield e.Say(
                "contribution.asked_again",
                f"{handin.id} is {event.outcome} ({event.reason}); asked to put it again",
                {"learner": handin.learner, "contribution": str(handin.id)},
            )

    def _may_put_again(self, handin: Handin) -> bool:
        """Whether a living process has this payload, itself or in its predecessor's spool."""
        member = self.members.get(handin.learner)
        return member is not None and member.state not in ("gone", "left")

    def _on_merged(self, event: e.Merged, now: float) -> Iterator[e.Command]:
        job = self._job
        if job is None or job.round is None or job.round.launch != event.launch:
            return
        round_ = job.round
        version = round_.version_before
        receipts = [
            self._receipt(i.handin, Verdict("merged", ""), weight=i.weight) for i in job.inputs
        ]
        carried = [
            str(p.handin.id) for p in self._pending_of(round_.fragment) if p.phase != "merging"
        ]
        losses = [(i.handin.loss, i.weight) for i in job.inputs if i.handin.loss is not None]
        weight = sum(w for _, w in losses)
        loss = sum(x * w for x, w in losses) / weight if weight else None
        quorum_s = (round_.quorum_at or now) - round_.opened_at
        yield from self._write(
            "step",
            now,
            receipts=[*receipts, *self.unlogged.values()],
            launch=round_.launch,
            fragments=[event.step],
            carried=tuple(sorted(carried)),
            waits=msgspec.structs.replace(event.waits, quorum_s=quorum_s),
            health=msgspec.structs.replace(event.health, loss_mean=loss),
            kernel=event.kernel,
        )
        assert event.step.version_before == version

    def _on_merge_failed(self, event: e.MergeFailed, now: float) -> Iterator[e.Command]:
        job = self._job
        if job is None or job.round is None or job.round.launch != event.launch:
            return
        self._abandon_job()
        yield e.Say("round.failed", f"fragment {job.round.fragment}: {event.reason}", {})
        for id_, reason in event.bad:
            if id_ in self.pending:
                yield from self._settle(self.pending[id_].handin, Verdict("refused", reason), now)
        round_ = job.round
        round_.extended = True
        round_.reason = event.reason
        round_.deadline_at = now + rounds.deadline_s(self.log.settings.round, self.step_s())
        self.rounds[round_.fragment] = round_

    def _on_written(self, record: LogRecord, digest: str, now: float) -> Iterator[e.Command]:
        job, self._job = self._job, None
        assert job is not None
        assert job.record == record
        round_ = job.round
        if round_ is not None:
            self._quorum_s.add(record.waits.quorum_s)
            self._sync_s.add(record.waits.merge_s + record.waits.publish_s)
        yield from self._apply(record, digest)
        yield from self._tell_record(record)
        if record.kind == "step":
            yield from self._expire(now, record.fragments[0].fragment)
        if record.seq % CHECKPOINT_EVERY == 0:
            yield e.WriteCheckpoint(record.seq)
        if record.kind == "stop":
            self.over = True
            yield e.ShowRounds((), opened=False)
            yield e.Quit(record.why, "stopped")

    def _on_taken(self, record: LogRecord, digest: str) -> Iterator[e.Command]:
        if record.epoch > self.epoch:
            self.over = True
            yield e.Quit(f"{record.holder} (epoch {record.epoch}) holds the run now", "lease_lost")
            return
        # A predecessor's last word: follow it, and do our own work again on top of it.
        self._abandon_job()
        yield from self._apply(record, digest)

    def _apply(self, record: LogRecord, digest: str) -> Iterator[e.Command]:
        self.log.apply(record, digest)
        for receipt in record.receipts:
            self.unlogged.pop(receipt.id, None)
            if self.pending.pop(receipt.id, None) is not None:
                yield e.Drop(receipt.id)
            member = self.members.get(receipt.learner)
            if member is not None and member.record.incarnation == receipt.incarnation:
                member.last_merged = receipt.fate == "merged"
                if member.last_merged:
                    member.refusals = 0
        moved = {step.fragment for step in record.fragments}
        for fragment in moved & set(self.rounds):
            del self.rounds[fragment]
        self._rounds_dirty = True
        yield e.Show(
            head=self.log.head(),
            fragments=tuple(self.log.fragment_state(p) for p in sorted(moved)),
            receipts=record.receipts,
            settings_changed=record.kind == "settings",
        )

    # ---- what may happen now ------------------------------------------------------------------

    def _advance(self, now: float) -> Iterator[e.Command]:
        for member in self.members.values():
            yield from self._judge(member, now)
        for pending in list(self.pending.values()):
            if pending.phase == "asked" and now >= pending.fetch_at:
                pending.phase = "fetching"
                yield e.Fetch(pending.handin)
        if self._job is None:
            yield from self._next_job(now)
        if self.log.state == "running":
            for round_ in sorted(self.rounds.values(), key=lambda r: r.opened_at):
                yield from self._look_at(round_, now)
        self._open_rounds(now)
        if self._rounds_dirty:
            opened, self._rounds_opened = self._rounds_opened, False
            self._rounds_dirty = False
            yield e.ShowRounds(self.shown_rounds(), opened=opened)

    def _next_job(self, now: float) -> Iterator[e.Command]:
        stop = self._stop_reason()
        if stop is not None:
            yield from self._write(
                "stop", now, receipts=list(self.unlogged.values()), who=stop[0], why=stop[1]
            )
            return
        while self._requests and self._job is None:
            yield from self._serve(self._requests.popleft(), now)
        if self._job is None and self.unlogged and now >= self._unlogged_since + RECEIPTS_WAIT_S:
            yield from self._write("receipts", now, receipts=list(self.unlogged.values()))

    def _look_at(self, round_: OpenRound, now: float) -> Iterator[e.Command]:
        """Note a quorum, close the round, or extend it. While a record is under way, what might
        close now stays open and may still gain contributions."""
        settings = self.log.settings.round
        ready = [p for p in self._pending_of(round_.fragment) if p.phase == "ready"]
        fresh = sum(p.handin.launch == round_.launch for p in ready)
        in_ids = {p.handin.learner for p in ready}
        expected = [m.id for m in self.members.values() if m.expected]
        awaited = sorted(id_ for id_ in expected if id_ not in in_ids)
        if round_.quorum_at is None and fresh >= settings.quorum:
            round_.quorum_at = now
            round_.grace_until = rounds.grace_end(
                settings,
                opened_at=round_.opened_at,
                quorum_at=now,
                step_s=self.step_s() or self._reported_step_s(),
                quorum_s=self._quorum_s.value,
                sync_s=self._sync_s.value,
                lags_s=self._lags_s,
            )
            self._rounds_dirty = True
        decision = rounds.close_decision(
            round_,
            quorum=settings.quorum,
            live=len(expected),
            fresh=fresh,
            carried=len(ready) - fresh,
            awaited=awaited,
            now=now,
        )
        if decision.reason != round_.reason:
            round_.reason = decision.reason
            self._rounds_dirty = True
        if decision.kind == "extend":
            round_.deadline_at = now + rounds.deadline_s(settings, self.step_s())
            self._rounds_dirty = True
            if not round_.extended:
                round_.extended = True
                yield e.Say(
                    "round.extended",
                    f"fragment {round_.fragment} v{round_.version_before + 1}: {decision.reason}",
                    {"fragment": round_.fragment, "launch": round_.launch},
                )
        elif decision.kind == "close" and self._job is None:
            yield from self._close(round_, ready, now)

    def _close(self, round_: OpenRound, ready: list[Pending], now: float) -> Iterator[e.Command]:
        head = self.log.fragments[round_.fragment]
        norms = {p.handin.id: p.norm / p.handin.steps for p in ready if p.norm is not None}
        outliers = selection.norm_outliers(norms, head, self.log.settings.gate)
        inputs = []
        refused = []
        for pending in sorted(ready, key=lambda p: p.handin.id):
            handin = pending.handin
            if handin.id in outliers:
                refused.append(handin.id)
                yield from self._settle(handin, Verdict("refused", outliers[handin.id]), now)
                continue
            weight = selection.weight(
                handin, version=head.version, settings=self.log.settings.round
            )
            inputs.append(e.MergeInput(handin, weight))
        if not inputs or (refused and len(inputs) < self.log.settings.round.quorum):
            return  # the round goes on as if the refused ones had never been
        for item in inputs:
            self.pending[item.handin.id].phase = "merging"
        self._job = Job(self.rounds.pop(round_.fragment), tuple(inputs))
        self._rounds_dirty = True
        yield e.Merge(
            launch=round_.launch,
            fragment=round_.fragment,
            base=msgspec.structs.replace(head),
            inputs=tuple(inputs),
            lr=self.log.settings.outer.lr,
            momentum=self.log.settings.outer.momentum,
        )

    def _open_rounds(self, now: float) -> None:
        if self.over or self.log.state != "running" or self._stop_reason() is not None:
            return
        settings = self.log.settings.round
        while self._slots_used() < settings.in_flight and self._may_open(now):
            fragment = self._due_fragment()
            if fragment is None:
                return
            self._launch += 1
            round_ = OpenRound(
                fragment=fragment,
                version_before=self.log.fragments[fragment].version,
                launch=self._launch,
                line=self.log.line,
                now=now,
                deadline_s=rounds.deadline_s(settings, self.step_s()),
            )
            self.rounds[fragment] = round_
            self._next_fragment = (fragment + 1) % len(self.log.fragments)
            self._opened_at = now
            self._rounds_dirty = self._rounds_opened = True

    def _may_open(self, now: float) -> bool:
        """Whether the pace allows one more round now."""
        gap_s = self._gap_s()
        if gap_s is not None:
            return self._opened_at is None or now >= self._opened_at + gap_s
        settings = self.log.settings.round
        expected = [m for m in self.members.values() if m.expected]
        seasoned = sum(m.record.step >= settings.every_steps for m in expected)
        # with fewer learners than the quorum a round opens all the same: it waits, and says why
        return seasoned >= max(1, min(settings.quorum, len(expected)))

    def _due_fragment(self) -> int | None:
        """The next fragment in cyclic order that is neither open nor being merged."""
        num = len(self.log.fragments)
        busy = set(self.rounds)
        if self._job is not None and self._job.round is not None:
            busy.add(self._job.round.fragment)
        for offset in range(num):
            fragment = (self._next_fragment + offset) % num
            if fragment not in busy:
                return fragment
        return None

    def _slots_used(self) -> int:
        merging = self._job is not None and self._job.round is not None
        return sum(not r.extended for r in self.rounds.values()) + merging

    def _expire(self, now: float, fragment: int) -> Iterator[e.Command]:
        for pending in list(self._pending_of(fragment)):
            verdict = selection.expiry(pending.handin, log=self.log)
            if verdict is not None:
                yield from self._settle(pending.handin, verdict, now)

    # ---- requests and the end -----------------------------------------------------------------

    def _serve(self, request: Request, now: float) -> Iterator[e.Command]:
        if request.kind == "stop":
            yield from self._write(
                "stop",
                now,
                receipts=list(self.unlogged.values()),
                who=request.who,
                why=request.why or "asked to stop",
            )
            yield e.Answer(request.id, "stopped")
        elif request.kind == "set":
            try:
                for key in request.changes:
                    if key.partition(".")[0] not in config.LIVE:
                        raise ConfigError(f"{key} is fixed at genesis and cannot change")
                config.replace(self.log.settings, request.changes)
            except ConfigError as error:
                yield e.Answer(request.id, f"refused: {error}")
                return
            yield from self._write(
                "settings",
                now,
                receipts=list(self.unlogged.values()),
                changes=request.changes,
                who=request.who,
                why=request.why,
            )
            yield e.Answer(request.id, "done")
        else:
            yield e.Answer(request.id, f"refused: this coordinator does not know {request.kind!r}")

    def _stop_reason(self) -> tuple[str, str] | None:
        """Who and why, when the budget is used up."""
        return stop_reason(self.log)

    # ---- receipts -------------------------------------------------------------------------------

    def _settle(self, handin: Handin, verdict: Verdict, now: float) -> Iterator[e.Command]:
        """Decide a fate; its receipt counts once it is in the log."""
        self._hold_receipt(self._receipt(handin, verdict), now)
        if self.pending.pop(handin.id, None) is not None:
            yield e.Drop(handin.id)
        self._rounds_dirty = True
        yield e.Say(
            f"contribution.{verdict.fate}",
            f"{handin.id} {verdict.fate}: {verdict.reason}",
            {"learner": handin.learner, "contribution": str(handin.id), "reason": verdict.reason},
        )
        member = self.members.get(handin.learner)
        if verdict.fate == "refused" and member is not None and not member.aside_reason:
            member.refusals += 1
            if member.refusals >= self.log.settings.gate.refusals_max:
                member.aside_reason = verdict.reason
                order = Order(
                    kind="realign", incarnation=member.record.incarnation, reason=verdict.reason
                )
                yield e.GiveOrder(member.id, order)

    def _hold_receipt(self, receipt: Receipt, now: float) -> None:
        if not self.unlogged:
            self._unlogged_since = now
        self.unlogged[receipt.id] = receipt

    def _receipt(self, handin: Handin, verdict: Verdict, *, weight: float = 0.0) -> Receipt:
        pending = self.pending.get(handin.id)
        head = self.log.fragments[handin.fragment]
        return Receipt(
            learner=handin.learner,
            incarnation=handin.incarnation,
            fragment=handin.fragment,
            seq=handin.seq,
            fate=verdict.fate,
            reason=verdict.reason,
            weight=weight,
            norm=pending.norm if pending else None,
            staleness=selection.staleness(handin, head.version),
            steps=handin.steps,
            tokens=handin.tokens,
        )

    # ---- small helpers --------------------------------------------------------------------------

    def _write(
        self,
        kind: Literal["step", "receipts", "settings", "stop"],
        now: float,
        *,
        receipts: list[Receipt],
        fragments: Sequence[FragmentStep] = (),
        **more: Any,
    ) -> Iterator[e.Command]:
        record = self.log.next_record(
            kind,
            epoch=self.epoch,
            holder=self.holder,
            written_at=now,
            ddl_version=self._ddl_version,
            receipts=sorted(receipts, key=lambda r: r.id),
            fragments=fragments,
            **more,
        )
        self._job = self._job or Job()
        self._job.record = record
        yield e.WriteRecord(record)

    def _abandon_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            for item in job.inputs:
                if item.handin.id in self.pending:
                    self.pending[item.handin.id].phase = "ready"
            if job.round is not None:
                self.rounds[job.round.fragment] = job.round

    def _pending_of(self, fragment: int) -> Iterable[Pending]:
        return [p for p in self.pending.values() if p.handin.fragment == fragment]

    def _tell_record(self, record: LogRecord) -> Iterator[e.Command]:
        if record.kind == "step":
            step = record.fragments[0]
            merged = [r for r in record.receipts if r.fate == "merged"]
            names = ", ".join(sorted({r.learner for r in merged}))
            loss = record.health.loss_mean
            yield e.Say(
                "version.published",
                f"version {record.global_version}: fragment {step.fragment} v{step.version_after} "
                f"from {names}" + (f", loss {loss:.3f}" if loss is not None else ""),
                {
                    "seq": record.seq,
                    "fragment": step.fragment,
                    "learners": [r.learner for r in merged],
                    "carried": len(record.carried),
                },
            )
        elif record.kind in ("settings", "stop"):
            yield e.Say(f"run.{record.kind}", f"{record.kind}: {record.why} ({record.who})", {})

    def shown_rounds(self) -> tuple[Round, ...]:
        """The open rounds as people and learners see them, oldest first."""
        shown = []
        for round_ in sorted(self.rounds.values(), key=lambda r: r.opened_at):
            pending = self._pending_of(round_.fragment)
            arrived = {p.handin.learner for p in pending if p.phase == "ready"}
            late = {p.handin.learner for p in pending if p.handin.launch != round_.launch}
            expected = {m.id for m in self.members.values() if m.expected}
            shown.append(
                round_.record(
                    quorum=self.log.settings.round.quorum,
                    arrived=sorted(arrived),
                    awaited=sorted(expected - arrived),
                    late=sorted(late),
                )
            )
        return tuple(shown)

    def step_s(self) -> float | None:
        """Seconds of an inner step over the run, None until known."""
        return median_step_s(self.members.values())

    def _reported_step_s(self) -> float | None:
        known = sorted(m.record.step_s for m in self.members.values() if m.record.step_s)
        return known[len(known) // 2] if known else None

    def _gap_s(self) -> float | None:
        step_s = self.step_s()
        if step_s is None:
            return None
        return rounds.opening_gap_s(self.log.settings.round, step_s, len(self.log.fragments))

    def _shift(self, seconds: float) -> None:
        for round_ in self.rounds.values():
            round_.shift(seconds)
        for member in self.members.values():
            member.beat_at += seconds
            member.stepped_at += seconds
        for pending in self.pending.values():
            pending.fetch_at += seconds
        self._unlogged_since += seconds
        if self._opened_at is not None:
            self._opened_at += seconds


def stop_reason(log: LogState) -> tuple[str, str] | None:
    """Who and why, when the run's budget is used up; None while it goes on."""
    stop = log.settings.stop
    commits = sum(f.merges for f in log.fragments)
    if stop.commits and commits >= stop.commits:
        return "budget", f"stop.commits = {stop.commits} reached"
    if stop.tokens and log.progress >= stop.tokens:
        return "budget", f"stop.tokens = {stop.tokens} reached"
    return None
