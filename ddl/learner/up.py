"""The up thread: makes a contribution of a snapshot, spools it, stores it, announces it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from ddl.codec.codecs import CODECS
from ddl.codec.contribution import encode_contribution
from ddl.core.learner import Snapshot
from ddl.errors import RegistryError, StoreError, TaskError
from ddl.learner.port import Copy
from ddl.learner.session import SPOOL, UPLOADS, Session
from ddl.learner.shared import Shared, backoff_s
from ddl.learner.voice import Voice
from ddl.learner.warm import WarmState
from ddl.learner.worker import Worker
from ddl.merge.movement import Movement
from ddl.protocol.records import NO_PAYLOAD, Handin, HandinId, ObjectRef, TensorSpec
from ddl.store.base import Body

SPOOL_WAIT_S: Final = 2.0
"""Longest wait before the local disk is tried again."""

SPOILED_MAX: Final = 3
"""Snapshots in a row with values that are not finite before the learner gives up."""


class Taken(NamedTuple):
    """A snapshot and the values that were copied for it."""

    snapshot: Snapshot
    copy: Copy


class UpThread(Worker):
    """Works through snapshots in order; what is stored already can be put again on request."""

    def __init__(
        self, session: Session, shared: Shared, voice: Voice, movements: Sequence[Movement]
    ) -> None:
        super().__init__("up", shared)
        self._session = session
        self._voice = voice
        self._movements = movements
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._in_flight: dict[int, bytearray] = {}  # payloads, by fragment
        self._spare = bytearray()
        self._spoiled = 0
        self._again: set[HandinId] = set()

    def take(self, taken: Taken) -> None:
        """Hand this snapshot in. Called by the training thread."""
        self._queue.put(lambda: self._hand_in(taken))

    def landed(self, fragment: int) -> None:
        """A version that has what was handed in last is adopted. Called by the training thread."""
        self._queue.put(lambda: self._release(fragment))

    def put_again(self, id_: HandinId) -> None:
        """Put the payload of a contribution once more. Called by the beat thread."""
        with self._shared.changed:
            handin = self._shared.stored.get(id_)
            if handin is None or id_ in self._again:
                return
            self._again.add(id_)
        self._queue.put(lambda: self._repeat(handin))

    def inherit(self) -> None:
        """Take up what a predecessor under the same id left in the spool. Before `start`."""
        for handin in self._session.spool.waiting():
            if handin.lineage != self._session.run.run.lineage:
                self._session.spool.drop(handin.id)
                continue
            with self._shared.changed:
                self._shared.machine.on_inherited(handin)
            self._queue.put(lambda handin=handin: self._repeat(handin))  # type: ignore[misc]

    def keep_warm(self, warm: WarmState, data: bytearray) -> None:
        """Write a copy of the learner's own state to disk, in this thread."""

        def write() -> None:
            try:
                warm.write(data)
            except OSError as error:  # only the next life would miss it
                self._session.journal.tell("warm.not_kept", f"optimizer state: {error}")

        self._queue.put(write)

    def finish(self) -> None:
        """Make the thread end once its queue is empty."""
        self._queue.put(None)

    def work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    # ---- one contribution -----------------------------------------------------------------------

    def _hand_in(self, taken: Taken) -> None:
        snapshot, shared = taken.snapshot, self._shared
        fragment = snapshot.fragment
        taken.copy.wait()
        codec = CODECS[self._session.run.run.settings.codec.up]
        handin = self._announcement(snapshot, codec.tag)
        movement = self._movements[fragment]
        buffer = self._free_buffer(fragment)
        try:
            encoded = encode_contribution(
                self._specs(fragment),
                movement.hand_in(taken.copy.parameters, out=taken.copy.parameters),
                taken.copy.buffers,
                codec,
                handin.header,
                buffer,
            )
        except TaskError as error:
            self._on_spoiled(fragment, error)
            return
        grown = encoded.buffer.obj  # another one where ours was too small
        self._in_flight[fragment] = grown if isinstance(grown, bytearray) else buffer
        movement.handed_in(encoded.decoded)
        self._spoiled = 0
        with shared.changed:
            shared.machine.on_encoded(fragment)
            shared.changed.notify_all()
        key = self._session.keys.contribution(*handin.id, encoded.sha256)
        payload = ObjectRef(key=key, bytes=len(encoded.buffer), sha256=encoded.sha256)
        handin = msgspec.structs.replace(handin, payload=payload)
        self._keep(handin, encoded.buffer)
        self._send(handin, encoded.buffer)

    def _free_buffer(self, fragment: int) -> bytearray:
        """Memory to encode into: that of the fragment's last payload, else of another that has landed."""
        if fragment not in self._in_flight:
            self._in_flight[fragment], self._spare = self._spare, bytearray()
        return self._in_flight[fragment]

    def _release(self, fragment: int) -> None:
        """Keep the memory of a payload for the next one: fresh pages take longer than what fills them."""
        buffer = self._in_flight.pop(fragment, None)
        if buffer is not None and len(buffer) > len(self._spare):
            self._spare = buffer

    def _specs(self, fragment: int) -> Sequence[TensorSpec]:
        return self._session.run.run.layout.by_fragment[fragment]

    def _announcement(self, snapshot: Snapshot, tag: str) -> Handin:
        return Handin(
            learner=self._session.learner,
            incarnation=self._session.incarnation,
            lineage=self._session.run.run.lineage,
            codec=tag,
            payload=NO_PAYLOAD,
            loss=self._shared.loss.value(),
            step_s=self._shared.clock.step_s,
            **snapshot._asdict(),
        )

    def _on_spoiled(self, fragment: int, error: TaskError) -> None:
        """The weights are not finite: give them up for the run's, as after a refusal."""
        self._spoiled += 1
        if self._spoiled >= SPOILED_MAX:
            raise error
        with self._shared.changed:
            self._shared.machine.on_spoiled(fragment)
            self._shared.changed.notify_all()
        self._session.tell("learner.spoiled", f"{error}. The run's weights are taken anew")

    def _keep(self, handin: Handin, payload: memoryview) -> None:
        """Spool it; a full disk holds up this thread alone, and only until there is room, or until
        the learner is to leave: its last contributions go to the store without a copy here."""
        troubles, attempt = self._session.troubles, 0
        while True:
            try:
                self._session.spool.keep(handin, payload)
            except StoreError as error:
                attempt += 1
                troubles.begin(SPOOL, str(error))
                draining = self._shared.machine.draining
                if draining or self._shared.leaving.wait(backoff_s(attempt, most=SPOOL_WAIT_S)):
                    return
            else:
                troubles.end(SPOOL)
                return

    def _repeat(self, handin: Handin) -> None:
        """Put a spooled payload (again), and announce it (again)."""
        path = self._session.spool.payload(handin.id)
        if path.exists():
            self._send(handin, path)
        else:  # a predecessor that still lived dropped it with its receipt: a beat tells us as well
            self._announce(handin)
        with self._shared.changed:
            self._again.discard(handin.id)

    def _send(self, handin: Handin, body: Body) -> None:
        session, shared = self._session, self._shared
        shared.transfers.begin_upload(handin.payload.bytes, session.clock.monotonic())
        try:
            if not self._put(handin, body):
                return
        finally:
            shared.transfers.end_upload()
        self._voice.handed_in(handin)
        self._announce(handin)

    def _announce(self, handin: Handin) -> None:
        session, shared = self._session, self._shared
        with shared.changed:
            shared.stored[handin.id] = handin
            shared.machine.on_announced(handin.fragment)
            shared.changed.notify_all()
        try:
            answer = session.registry.announce(handin, incarnation=session.incarnation)
        except RegistryError:
            return  # every beat repeats it, so it is announced as soon as Redis answers
        if answer.startswith("refused"):
            session.tell("contribution.not_announced", f"{handin.id}: {answer}")

    def _put(self, handin: Handin, body: Body) -> bool:
        """Store the payload, however long it takes; False if the learner leaves before."""
        shared = self._shared
        attempt = 0
        while True:
            try:
                self._session.store.put(handin.payload.key, body, progress=shared.transfers.add_up)
            except StoreError as error:
                if not error.retryable:
                    raise
                attempt += 1
                self._session.troubles.begin(UPLOADS, str(error))
                if shared.leaving.wait(backoff_s(attempt)):
                    return False
            else:
                self._session.troubles.end(UPLOADS)
                return True
