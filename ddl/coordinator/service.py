"""The running coordinator: events in, the core's commands carried out.

Threads, and what each of them owns:

    main      the core, the folded log, the mirror of it in Redis; never waits for the store
    watcher   reads Redis after each wake-up and at least every beat
    fetchers  a few: get payloads and pass them through the gate
    writer    one: merges, and puts payloads and records, one after the other like the log itself
    sweeper   one: removes what nobody needs, and finds versions to go back to, never both at once
    lease     renews the lease (`ddl.coordinator.lease`)

All of them talk to the main thread through one inbox. What goes wrong in a thread and is nobody's
to mend comes through it too, and ends the service.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Literal, TypeVar

from ddl.clock import Clock, ServerClock
from ddl.config import Scalar
from ddl.coordinator.found import find_contributions
from ddl.coordinator.heap import Heap
from ddl.coordinator.history import History
from ddl.coordinator.lease import LeaseKeeper
from ddl.coordinator.mirror import Mirror
from ddl.coordinator.objects import find_version
from ddl.coordinator.sweep import sweep
from ddl.coordinator.syncer import Syncer
from ddl.coordinator.watcher import News, Polled, Unreachable, Watcher
from ddl.core import events as e
from ddl.core.log import START
from ddl.core.machine import Machine
from ddl.core.retire import Horizon
from ddl.core.snapshot import ledger_totals, outcomes
from ddl.errors import (
    DdlError,
    IntegrityError,
    LeaseLostError,
    RefusedError,
    RunOverError,
    StoreError,
    StoreUnavailableError,
)
from ddl.journal import Journal, Troubles
from ddl.names import counted
from ddl.protocol.records import FATES, Fact, Handin, LogRecord, Request, RunRecord
from ddl.protocol.wire import canonical
from ddl.registry.base import CoordinatorRegistry
from ddl.store.base import Store

FETCHERS: Final = 4
"""Payloads fetched at once."""

FLUSH_S: Final = 0.5
"""Longest time for which a full inbox keeps what happened from being shown."""

IDLE_S: Final = 30.0
"""A run in which nothing was committed for so long, and so long again, is worth a line."""

STORE: Final = "store requests"
"""The subject of the coordinator's `Troubles`."""

RETRY_S_MAX: Final = 10.0
"""Longest wait before a failed store call is tried again."""

T = TypeVar("T")
Outcome = Literal["finished", "asked"]
"""Why a service ended well: the run is over, or somebody asked this process to end."""


class StillThere:
    """Redis has lost the run, and the store has not, as far as anybody can tell."""


Message = e.Event | Polled | Unreachable | StillThere | BaseException | None
"""What comes through the inbox; None asks to end."""


class Service:
    """One coordinator at work; holds the lease while it runs.

    Args:
        run: record 0.
        machine: the core, on the newest state of the log.
        clock, server_clock: the latter has been told the server's time.
        inbox: where the lease keeper reports its loss.
        keeper: started.
        changes: settings to be changed first of all, by a record of their own.
        outdone: of these, what a file says of those that flags have given.
        find: whether to look for contributions in the store, since Redis knew none.
    """

    def __init__(
        self,
        *,
        run: RunRecord,
        machine: Machine,
        store: Store,
        registry: CoordinatorRegistry,
        keeper: LeaseKeeper,
        inbox: queue.SimpleQueue[Message],
        journal: Journal,
        troubles: Troubles,
        clock: Clock,
        server_clock: ServerClock,
        changes: dict[str, Scalar],
        outdone: dict[str, Scalar],
        find: bool,
    ) -> None:
        self._run = run
        self._machine = machine
        self._store = store
        self._registry = registry
        self._keeper = keeper
        self._inbox = inbox
        self._journal = journal
        self._troubles = troubles
        self._clock = clock
        self._server_clock = server_clock
        self._changes = changes
        self._outdone = {key: value for key, value in outdone.items() if key in changes}
        self._find = find
        self._history = History(store, run.name)
        self._syncer = Syncer(store, run, clock)
        self._mirror = Mirror(
            registry,
            run=run,
            log=machine.log,
            epoch=machine.epoch,
            store_url=store.url,
            clock=clock,
        )
        self._news = News()
        liveness = machine.log.settings.liveness
        self._watcher = Watcher(registry, beat_s=liveness.beat_s, put=inbox.put, clock=clock)
        self._closing = threading.Event()
        self._fetchers = ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._sweeper = ThreadPoolExecutor(1, thread_name_prefix="sweep")
        self._sweeping = False
        self._heap = Heap(clock)
        self._is_in_question = False
        self._is_removed = False
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="watch")
        self._version_at_start = machine.log.global_version
        self._outcome: Outcome | None = None
        self._why = ""
        self._told_at = clock.monotonic()
        self._leave_by = 0.0
        self._flushed_at = 0.0

    def run(self) -> Outcome:
        """Coordinate until the run is over or `end` is called.

        Raises: LeaseLostError; RefusedError: somebody removed the run; IntegrityError, ProtocolError.
        """
        why = "interrupted"
        try:
            self._follow_settings()
            self._flush()  # first of all, so that learners find the run
            self._step(self._first_event())
            self._submit(self._reader, self._watcher.watch)
            if self._find:
                self._look_for_contributions()
            while not self._may_leave():
                for event in self._next_events():
                    self._step(event)
                if self._inbox.empty() or self._clock.monotonic() >= self._flushed_at + FLUSH_S:
                    self._flush()
                self._tell_if_idle()
            assert self._outcome is not None
            why = self._why
            return self._outcome
        except DdlError as error:
            why = error.args[0]
            raise
        finally:
            self._close()
            self._tell_end(why)

    def end(self, why: str = "asked to end") -> None:
        """Ask the service to end; the run can be resumed. Safe in a signal handler."""
        self._why = self._why or why
        self._inbox.put(None)

    def _may_leave(self) -> bool:
        """Whether all is done, the last record shown; Redis is given `gone_s` for that."""
        if self._outcome is None:
            return False
        return (
            self._outcome == "asked"
            or self._mirror.is_current
            or self._clock.monotonic() >= self._leave_by
        )

    def _close(self) -> None:
        self._closing.set()
        self._watcher.close()
        self._keeper.close()
        self._store.close()  # ends transfers under way: they would count for nothing now
        for pool in (self._fetchers, self._writer, self._sweeper, self._reader):
            pool.shutdown(cancel_futures=True)

    # ---- events in --------------------------------------------------------------------------

    def _first_event(self) -> e.Event:
        if not self._changes:
            return e.Tick()
        return e.Requested(
            Request(
                id=f"start-{self._machine.holder}",
                kind="set",
                who=START,
                why="as its run.toml and flags say",
                changes=self._changes,
                outdone=self._outdone,
            )
        )

    def _next_events(self) -> Iterator[e.Event]:
        now = self._server_clock.now()
        try:
            message = self._inbox.get(timeout=max(0.0, self._machine.wake_at(now) - now))
        except queue.Empty:
            yield e.Tick()
            return
        match message:
            case None:
                self._outcome = self._outcome or "asked"
            case BaseException():
                raise message
            case Unreachable(error):
                self._mirror.reachable = False
                self._journal.on_change("redis", "redis.unreachable", f"{error}; trying again")
            case StillThere():
                self._is_in_question = False
                self._journal.tell(
                    "redis.lost", "Redis has lost the run; writing it anew from the log"
                )
                self._look_for_contributions()
            case Polled():
                yield from self._on_polled(message)
            case _:
                yield message

    def _on_polled(self, polled: Polled) -> Iterator[e.Event]:
        self._mirror.reachable = True
        if self._journal.forget("redis"):
            self._journal.tell("redis.reachable", "answers again")
        jump_s = self._server_clock.observe(polled.poll.now, at=polled.heard_at)
        if polled.is_jump(jump_s):
            self._say("clock.jumped", f"the clock of Redis moved by {jump_s:+.1f} s", {})
            yield e.ClockJumped(jump_s)
        if self._mirror.notice_loss(polled.poll, asked_at=polled.asked_at):
            self._is_in_question = True
            self._submit(self._fetchers, self._see_that_it_is_there)
        for sentence in polled.poll.broken:
            self._journal.on_change(sentence, "redis.unreadable", sentence)
        yield from self._news.events(polled.poll)

    # ---- commands out -----------------------------------------------------------------------

    def _step(self, event: e.Event) -> None:
        for command in self._machine.step(event, self._server_clock.now()):
            self._perform(command)

    def _perform(self, command: e.Command) -> None:  # noqa: C901 - one branch a command
        match command:
            case e.Fetch(handin):
                self._syncer.expect(handin.id)
                self._submit(self._fetchers, self._fetch, handin)
            case e.AskAgain(handin):
                self._mirror.note_asked(handin)
            case e.Drop(id_):
                self._syncer.drop(id_)
            case e.Merge():
                self._submit(self._writer, self._merge, command)
            case e.WriteRecord(record):
                self._submit(self._writer, self._write, record)
            case e.WriteCheckpoint(seq):
                # encoded here and now: the writer must not see the log change under it
                data = canonical(self._machine.log)
                self._submit(self._writer, self._write_checkpoint, seq, data)
            case e.FindVersion(version):
                self._submit(self._sweeper, self._find_version, version)
            case e.Sweep(horizon):
                if not self._sweeping:  # the next one does its work as well
                    self._sweeping = True
                    self._submit(self._sweeper, self._sweep, horizon)
            case e.Show():
                self._told_at = self._clock.monotonic()
                self._mirror.note_record(command)
                if command.settings_changed:
                    self._follow_settings()
            case e.ShowRounds(rounds, opened):
                self._mirror.note_rounds(rounds, wake=opened)
            case e.GiveOrder(learner, order):
                self._mirror.note_order(learner, order)
            case e.Forget(learner, incarnation):
                self._mirror.note_forgotten(learner, incarnation)
            case e.Answer(request_id, text, wish):
                self._mirror.note_answer(request_id)
                fields: dict[str, object] = {"request": request_id, "answer": text}
                self._say("request.answered", f"{wish}: {text}", fields)
            case e.Say(name, text, fields, at):
                self._say(name, text, fields, at)
            case e.Quit(reason, outcome):
                self._quit(reason, outcome)
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _follow_settings(self) -> None:
        liveness = self._machine.log.settings.liveness
        self._watcher.beat_s = liveness.beat_s
        self._keeper.set_length(liveness.lease_s)

    def _say(
        self, name: str, text: str, fields: dict[str, object], at: float | None = None
    ) -> None:
        self._journal.tell(name, text, **fields)
        at = self._server_clock.now() if at is None else at
        self._mirror.note_fact(Fact(at=at, name=name, text=text, fields=fields))

    def _quit(self, reason: str, outcome: Literal["stopped", "lease_lost"]) -> None:
        if outcome == "lease_lost":
            raise LeaseLostError(reason)
        self._outcome, self._why = "finished", f"the run is over: {reason}"
        self._leave_by = self._clock.monotonic() + self._machine.log.settings.liveness.gone_s

    def _tell_if_idle(self) -> None:
        """Say why nothing is committed, while nothing is."""
        now = self._clock.monotonic()
        if now < self._told_at + IDLE_S:
            return
        self._told_at = now
        log = self._machine.log
        reasons = [
            f"fragment {r.fragment}: {r.reason}" for r in self._machine.board.rounds.values()
        ]
        if log.state != "running":
            reasons = [f"it is {log.state}{': ' if log.why else ''}{log.why}"]
        present = sum(m.present for m in self._machine.membership.members.values())
        why = "; ".join(reasons) or "no round is open yet"
        idle_s = self._server_clock.now() - log.committed_at
        self._journal.tell(
            "run.idle",
            f"nothing committed for {idle_s:.0f} s, {counted(present, 'learner')} in the run; {why}",
            version=log.global_version,
            learners=present,
        )

    def _tell_end(self, why: str) -> None:
        """The last word: why this process ends, and where the run stands."""
        log = self._machine.log
        totals = ledger_totals(log.ledger, log.shares)
        ledger = {fate: round(getattr(totals, fate)) for fate in FATES}
        told = outcomes({fate: getattr(totals, fate) for fate in FATES}, log.progress)
        fates = ", ".join(f"{round(num):,} {word}" for word, num in told.items() if round(num))
        further = "; start a coordinator to go on with it"
        if self._is_removed:
            further = ""
        elif self._outcome == "finished":  # what to do about it asks who has seen nothing happen
            has_moved = log.global_version > self._version_at_start
            further = "" if has_moved else f". {RunOverError.GO_ON}"
        self._journal.tell(
            "coordinator.ended",
            f"{why}. {self._run.name} stands at version {log.global_version}, record {log.seq}; "
            f"tokens: {fates or 'none handed in'}{further}",
            why=why,
            version=log.global_version,
            seq=log.seq,
            ledger=ledger,
        )

    def _flush(self) -> None:
        if self._is_in_question:  # a run that was removed is not to appear again
            return
        error = self._mirror.flush()
        self._flushed_at = self._clock.monotonic()
        if error is not None:
            self._journal.on_change("mirror", "redis.behind", f"{error}; trying again")
        elif self._mirror.reachable and self._journal.forget("mirror"):
            self._journal.tell("redis.current", "shows the newest record again")

    # ---- in the other threads ---------------------------------------------------------------

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[..., None], *args: object) -> None:
        """Run in another thread; what it raises ends the service, unless it is closing anyway."""

        def report(future: Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None and not self._closing.is_set():
                self._inbox.put(error)

        pool.submit(work, *args).add_done_callback(report)

    def _fetch(self, handin: Handin) -> None:
        self._inbox.put(self._syncer.fetch(handin))

    def _see_that_it_is_there(self) -> None:
        self._check_not_removed()
        self._inbox.put(StillThere())

    def _check_not_removed(self) -> None:
        """Raises: RefusedError; not while the store does not answer: an outage removes no run."""
        try:
            with contextlib.suppress(StoreError):
                self._history.check_not_removed(self._run)
        except RefusedError:
            self._is_removed = True
            self._keeper.silence()
            raise

    def _look_for_contributions(self) -> None:
        accounts = self._machine.log.accounts.items()
        receipted = {field: account.last.seq for field, account in accounts}
        self._submit(self._fetchers, self._find_contributions, receipted)

    def _find_contributions(self, receipted: dict[str, int]) -> None:
        name = self._run.name
        found = self._until_stored(lambda: find_contributions(self._store, name, receipted))
        for handin in found or ():
            self._inbox.put(e.Announced(handin))

    def _merge(self, command: e.Merge) -> None:
        try:
            event = self._until_stored(lambda: self._syncer.merge(command))
        except IntegrityError:
            self._check_not_removed()
            raise
        if event is not None:
            self._keeper.store_wrote()
            self._inbox.put(event)

    def _write(self, record: LogRecord) -> None:
        def write() -> e.RecordWritten | e.RecordTaken | None:
            if not self._keeper.wait_sure():
                return None
            sent_at = self._clock.monotonic()
            entry = self._history.write(record)
            self._keeper.store_wrote(since=sent_at)
            kind = e.RecordWritten if entry.record == record else e.RecordTaken
            return kind(entry.record, entry.digest)

        event = self._until_stored(write)
        if event is not None:
            self._inbox.put(event)

    def _write_checkpoint(self, seq: int, data: bytes) -> None:
        self._until_stored(lambda: self._history.write_checkpoint(seq, data))

    def _find_version(self, version: int) -> None:
        found = self._until_stored(lambda: find_version(self._store, self._history, version))
        if found is not None:
            self._inbox.put(found)

    def _sweep(self, horizon: Horizon) -> None:
        try:
            sweep(self._store, self._run, horizon, check=self._check_closing)
        except (RefusedError, IntegrityError):
            self._check_not_removed()
            raise
        except StoreError as error:  # tried again by the next one
            self._journal.on_change("sweep", "sweep.failed", str(error))
        else:
            self._journal.forget("sweep")
        finally:
            self._heap.give_back()
            self._sweeping = False

    def _check_closing(self) -> None:
        if self._closing.is_set():
            raise StoreUnavailableError("the coordinator is ending")

    def _until_stored(self, action: Callable[[], T]) -> T | None:
        """Repeat what the store did not do until it does; None once the service closes.

        Payloads and records may be put again and again: equal keys hold equal bytes, and a record
        that was taken by its own bytes is a success.
        """
        pause_s = 0.2
        while not self._closing.is_set():
            try:
                result = action()
            except StoreError as error:
                self._troubles.begin(STORE, str(error))
                self._closing.wait(pause_s)
                pause_s = min(2.0 * pause_s, RETRY_S_MAX)
                continue
            self._troubles.end(STORE)
            return result
        return None
