"""The beat thread: says what the learner is, hears what the run wants, follows the log.

It knows nothing of training: a step that holds up the training thread, or an upload that takes
minutes, does not delay a beat.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ddl.core.learner import LearnerMachine
from ddl.errors import (
    ObjectNotFoundError,
    RefusedError,
    RegistryError,
    StoreError,
)
from ddl.learner.meters import rss_bytes
from ddl.learner.session import DOWNLOADS, UPLOADS, Session
from ddl.learner.shared import Shared
from ddl.learner.voice import Voice
from ddl.learner.worker import Worker
from ddl.protocol.records import HandinId, LearnerRecord, LogRecord
from ddl.protocol.wire import digest, parse
from ddl.registry.base import settings_digest

GAP_S = (0.02, 0.2)
"""Shortest time between two beats, however fast the news come: a step, within these bounds. What is
heard is acted on at step boundaries, so more beats than steps would be heard in vain."""


class BeatThread(Worker):
    """Beats every `beat_s`, and at once when there is news.

    Args:
        voice: told now and then that it may be time for a line on progress.
        put_again: asked to put the payload of a contribution once more.
        lr: reads the inner learning rate now, or None.
    """

    def __init__(
        self,
        session: Session,
        shared: Shared,
        voice: Voice,
        *,
        put_again: Callable[[HandinId], None],
        lr: Callable[[], float | None],
    ) -> None:
        super().__init__("beat", shared)
        self._session = session
        self._voice = voice
        self._put_again = put_again
        self._lr = lr
        self._quiet_since: float | None = None

    def work(self) -> None:
        while not self._shared.leaving.is_set():
            self._wait()
            if not self._shared.leaving.is_set():
                self._beat_or_follow()
                self._voice.tell_progress()

    def record(self) -> LearnerRecord:
        """What to say of this learner now."""
        shared = self._shared
        now = self._session.clock.monotonic()
        troubles = self._session.troubles
        loss = shared.loss.value()
        with shared.changed:
            machine = shared.machine
            return msgspec.structs.replace(
                self._session.record,
                state=_state(machine),
                step=machine.local_steps,
                step_s=shared.clock.step_s,
                tokens=machine.trained.tokens,
                loss=loss,
                lr=self._lr(),
                held=machine.held,
                line=machine.line,
                realigns=machine.realigns,
                handed_in=machine.work("handed_in"),
                discarded=machine.work("discarded"),
                in_u=machine.work("in_u"),
                stall_s=shared.clock.stall_s,
                busy_s=shared.clock.busy_s,
                paused_s=shared.clock.paused_s,
                idle_s=shared.clock.idle_s(now) if machine.started else 0.0,
                rss_bytes=rss_bytes(),
                upload=shared.transfers.upload(now),
                up_bytes=shared.transfers.up_bytes,
                down_bytes=shared.transfers.down_bytes,
                store_down_s=troubles.seconds(UPLOADS, DOWNLOADS),
                error=troubles.reasons,
            )

    def leave(self, *, error: str, why: str) -> None:
        """Say that this incarnation ends: by an error, or else why; called after the thread has
        ended."""
        record = msgspec.structs.replace(self.record(), error=error, why=why)
        self._session.registry.leave(record)

    # ---- one beat -----------------------------------------------------------------------------

    def _wait(self) -> None:
        beat_s = self._shared.machine.settings.liveness.beat_s
        if self._quiet_since is not None:
            self._shared.leaving.wait(beat_s)
            return
        least, most = GAP_S
        self._shared.leaving.wait(min(max(least, self._shared.clock.step_s or 0.0), most, beat_s))
        try:
            self._session.registry.wait_news(beat_s)
        except RegistryError as error:
            self._on_silence(error)

    def _beat_or_follow(self) -> None:
        try:
            self._beat()
        except RegistryError as error:
            self._on_silence(error)
            self._follow_log()
        else:
            if self._quiet_since is not None:
                quiet_s = self._session.clock.monotonic() - self._quiet_since
                self._quiet_since = None
                self._session.tell("registry.back", f"Redis answers again, after {quiet_s:.0f} s")

    def _beat(self) -> None:
        session, shared = self._session, self._shared
        with shared.changed:
            handins = tuple(shared.stored.values())
            known = settings_digest(shared.machine.settings)
        reply = session.registry.beat(self.record(), handins, settings_digest=known)
        session.server.observe(reply.now)
        with shared.changed:
            machine = shared.machine
            seq_before = machine.head.seq if machine.head else -1
            receipts = machine.on_beat(reply, {handin.id for handin in handins})
            if not reply.coordinated:
                machine.on_silence(session.clock.monotonic())
            must_register = machine.must_register
            moved = machine.head is not None and machine.head.seq != seq_before
            self._forget_receipted()
            shared.changed.notify_all()
        for receipt in receipts:
            self._voice.settled(receipt)
        if must_register:
            self._register_again()
        if moved or must_register:
            self._read_fragments()
        for id_ in reply.again:
            self._put_again(id_)

    def _read_fragments(self) -> None:
        states = self._session.registry.read_fragments()
        with self._shared.changed:
            self._shared.machine.on_fragments(states)
            self._shared.changed.notify_all()

    def _register_again(self) -> None:
        """Redis was emptied or replaced, and rebuilt: enter our incarnation anew."""
        liveness = self._shared.machine.settings.liveness
        joined = self._session.registry.register(
            self.record(), gone_s=liveness.gone_s, takeover=self._session.takeover
        )
        if joined.holder is not None and joined.refused:
            raise RefusedError(joined.refused)

    def _forget_receipted(self) -> None:
        """Drop from the spool what the machine knows to have its receipt. Lock held."""
        learner = self._session.learner
        waiting = {HandinId(learner, i, f, s) for i, f, s in self._shared.machine.outstanding}
        for id_ in [id_ for id_ in self._shared.stored if id_ not in waiting]:
            del self._shared.stored[id_]
            self._session.spool.drop(id_)

    # ---- without Redis ------------------------------------------------------------------------

    def _on_silence(self, error: RegistryError) -> None:
        now = self._session.clock.monotonic()
        with self._shared.changed:
            self._shared.machine.on_silence(now)
            self._shared.changed.notify_all()
        if self._quiet_since is None:
            self._quiet_since = now
            self._session.journal.tell("registry.lost", f"{error}; training goes on")
        if not error.retryable:
            raise error

    def _follow_log(self) -> None:
        """Read what the coordinator has committed meanwhile, straight from the store."""
        session, shared = self._session, self._shared
        while not shared.leaving.is_set():
            key = session.keys.commit(shared.machine.next_seq)
            try:
                data = bytes(session.store.get(key))
            except (ObjectNotFoundError, StoreError):
                return  # nothing new, or the store is away as well: the next beat looks again
            record = parse(data, LogRecord, what=key)
            with shared.changed:
                receipts = shared.machine.on_record(record, digest(data))
                self._forget_receipted()
                shared.changed.notify_all()
            for receipt in receipts:
                self._voice.settled(receipt)


def _state(machine: LearnerMachine) -> str:
    if machine.draining:
        return "draining"
    if machine.paused:
        return "paused"
    return "training" if machine.started else "joining"
