"""A coordinator without I/O: carries out the real machine's commands after fixed delays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ddl.codec.contribution import Contribution, decode_contribution
from ddl.coordinator.payloads import Base
from ddl.core import events as e
from ddl.core.invariants import Watch
from ddl.core.log import FragmentHead, LogState
from ddl.core.machine import Machine
from ddl.merge.examine import examine
from ddl.merge.step import Offer, merge_fragment
from ddl.protocol import wire
from ddl.protocol.records import Handin, LogRecord, Waits

if TYPE_CHECKING:
    from tests.lockstep.runner import Run


class Coordinator:
    """A thin shell around the real machine. `died` coordinators hear and do nothing more."""

    def __init__(
        self,
        run: Run,
        log: LogState,
        epoch: int,
        *,
        fetch_s: float = 0.05,
        merge_s: float = 0.05,
        write_s: float = 0.05,
    ) -> None:
        self.run = run
        self.machine = Machine(
            run=run.record.name, log=log, epoch=epoch, holder=f"c{epoch}", ddl_version="0"
        )
        self.watch = Watch()
        self.died = False
        self.quit: e.Quit | None = None
        self.said: list[e.Say] = []
        self.answers: dict[str, str] = {}
        self.forgotten: list[str] = []
        self.outcome: Callable[[Handin], e.Fetched | None] = lambda handin: None
        self.find_version = run.find_version
        self.fail_merge: Callable[[e.Merge], e.MergeFailed | None] = lambda merge: None
        self._fetch_s, self._merge_s, self._write_s = fetch_s, merge_s, write_s
        self._tick_at = float("inf")

    def begin(self, first: e.Event) -> None:
        """Bring Redis up to the log; take the first event, then hear what stands in Redis."""
        services, log = self.run.services, self.machine.log
        services.settings = log.settings
        fragments = tuple(log.fragment_state(p) for p in range(len(log.fragments)))
        services.show(log.head(), fragments, tuple(a.last for a in log.accounts.values()))
        self.tell(first)
        for name, record in sorted(services.learners.items()):
            self.tell(e.Beat(record, services.beats[name]))
        for _, handin in sorted(services.handins.items()):
            self.tell(e.Announced(handin))

    def die(self) -> None:
        """Stop at once, as by SIGKILL: whatever was under way has no effect."""
        self.died = True

    def tell(self, event: e.Event) -> None:
        if self.died or self.machine.over:
            return
        now = self.run.time.now
        commands = self.machine.step(event, now)
        broken = self.watch.check(self.machine)
        assert not broken, f"after {event}: {broken}"
        for command in commands:
            self._perform(command)
        self._plan_tick()

    def _plan_tick(self) -> None:
        now = self.run.time.now
        wake_at = self.machine.wake_at(now)
        if wake_at < self._tick_at:
            self._tick_at = wake_at
            self.run.time.at(wake_at, lambda: self._tick(wake_at))

    def _tick(self, planned: float) -> None:
        if planned == self._tick_at:
            self._tick_at = float("inf")
            self.tell(e.Tick())

    def _later(self, seconds: float, make: Callable[[], e.Event]) -> None:
        def act() -> None:
            if not self.died:
                self.tell(make())

        self.run.time.after(seconds, act)

    def _perform(self, command: e.Command) -> None:  # noqa: C901 - one branch a command
        services = self.run.services
        match command:
            case e.Fetch(handin):
                self._later(self._fetch_s, lambda: self._fetch(handin))
            case e.AskAgain(handin):
                services.asked.add(handin.id)
                services.wake()
            case e.Merge():
                self._later(self._merge_s, lambda: self._merge(command))
            case e.WriteRecord(record):
                self._later(self._write_s, lambda: self._write(record))
            case e.WriteCheckpoint(seq):
                assert seq == self.machine.log.seq
                services.checkpoints[seq] = wire.canonical(self.machine.log)
            case e.Show():
                if command.settings_changed:
                    services.settings = self.machine.log.settings
                services.show(command.head, command.fragments, command.receipts)
                services.wake()
            case e.ShowRounds(rounds, opened):
                services.rounds = rounds
                if opened:
                    services.wake()
            case e.GiveOrder(learner, order):
                services.orders.pop(learner, None)
                if order is not None:
                    services.orders[learner] = order
            case e.Answer(request_id, text):
                self.answers[request_id] = text
            case e.Forget(learner, incarnation):
                if services.learners[learner].incarnation == incarnation:
                    del services.learners[learner], services.beats[learner]
                self.forgotten.append(learner)
            case e.Say():
                self.said.append(command)
            case e.Quit():
                self.quit = command
            case e.FindVersion(version):
                self._later(self._fetch_s, lambda: self.find_version(version))
            case e.Drop() | e.Sweep():
                pass
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _fetch(self, handin: Handin) -> e.Fetched:
        scripted = self.outcome(handin)
        if scripted is not None:
            return scripted
        data = self.run.services.objects.get(handin.payload.key)
        if data is None:
            return e.Fetched(handin.id, "missing", "no such object", seconds=self._fetch_s)
        found = examine(self._decode(handin).deltas, {})
        if found.bad:
            return e.Fetched(handin.id, "refused", f"not finite: {found.bad}")
        return e.Fetched(handin.id, "ok", norm=found.norm, seconds=self._fetch_s)

    def _decode(self, handin: Handin) -> Contribution:
        data = bytearray(self.run.services.objects[handin.payload.key])
        specs = self.run.layout.by_fragment[handin.fragment]
        return decode_contribution(data, specs, handin.codec)

    def _merge(self, command: e.Merge) -> e.Event:
        failed = self.fail_merge(command)
        if failed is not None:
            return failed
        payloads = self.run.payloads
        specs = payloads.specs(command.fragment)
        base = self.base(command.fragment, command.base)
        offers = []
        for item in command.inputs:
            contribution = self._decode(item.handin)
            found = examine(contribution.deltas, {})
            offers.append(
                Offer(
                    weight=item.weight,
                    deltas=contribution.deltas,
                    norms=found.norms,
                    buffers=contribution.buffers,
                )
            )
        merged = merge_fragment(
            specs,
            offers,
            master=base.master,
            momentum=base.momentum,
            lr=command.lr,
            mu=command.momentum,
        )
        before = command.base.version
        made = payloads.make(command.fragment, base, before, merged, payloads.put)
        waits = Waits(merge_s=self._merge_s)
        return e.Merged(command.launch, made.step, merged.health, merged.kernel, waits)

    def base(self, fragment: int, head: FragmentHead) -> Base:
        """What the next merge of a fragment starts from."""
        return self.run.payloads.base(fragment, head)

    def _write(self, record: LogRecord) -> e.Event:
        data = wire.canonical(record)
        standing = self.run.services.log.setdefault(record.seq, data)
        if standing == data:
            return e.RecordWritten(record, wire.digest(data))
        taken = wire.parse(standing, LogRecord, what=f"record {record.seq}")
        return e.RecordTaken(taken, wire.digest(standing))
