"""A learner without threads: the real learner's core, movement and codec, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
import torch
from torch import Tensor

from ddl.codec.codecs import CODECS
from ddl.codec.contribution import encode_contribution
from ddl.codec.digest import sha256
from ddl.codec.fragment import Fragment, decode_fragment, version_metadata
from ddl.codec.step import rebuild_version
from ddl.core import events as e
from ddl.core.invariants import check_learner
from ddl.core.learner import Adoption, LearnerMachine, Plan, Snapshot, Staged
from ddl.merge.movement import Movement
from ddl.protocol.records import (
    NO_PAYLOAD,
    Amount,
    BeatReply,
    FragmentState,
    Handin,
    HandinId,
    LearnerRecord,
    ObjectRef,
)
from tests.lockstep.tasks import NumericTask

if TYPE_CHECKING:
    from tests.lockstep.runner import Run


class Learner:
    """A thin shell around the real learner's core and movement.

    Attributes:
        step_s: seconds of a step.
        lag_s: seconds from a snapshot to its announcement.
        stage_s: seconds to stage one version of one fragment.
        decoded: by tensor, the fp64 sum of all that a reader decodes of what was handed in.
        handins: all that was handed in, as announced.
        adoptions: all that it carried out.
        bases: by fragment, the published bytes of the version staged last.
        steps_taken: versions that were had by their step objects.
        clock: what it took for the run's progress, at every step boundary.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        incarnation: int,
        task: NumericTask,
        *,
        step_s: float = 1.0,
        lag_s: float = 0.1,
        stage_s: float = 0.1,
    ) -> None:
        self.run = run
        self.name = name
        self.incarnation = incarnation
        self.task = task
        self.step_s, self.lag_s, self.stage_s = step_s, lag_s, stage_s
        self.machine = LearnerMachine(
            learner=name,
            incarnation=incarnation,
            shares=run.layout.shares,
            settings=run.services.settings,
            now=run.time.now,
        )
        self.movements = [Movement(specs) for specs in run.layout.by_fragment]
        self.staged: dict[int, Fragment] = {}
        self.bases: dict[int, bytes] = {}
        self.steps_taken = 0
        self.stored: dict[HandinId, Handin] = {}
        self.spool: dict[HandinId, bytes] = {}
        self.last_handed_in: dict[int, Amount] = {}
        self.decoded: dict[str, Tensor] = {}
        self.clock: list[int] = []
        self.handins: list[Handin] = []
        self.adoptions: list[Adoption] = []
        self.alive = True
        self._staging = False

    def books(self) -> Iterator[tuple[int, int, Amount, Amount]]:
        """Per fragment: last seq, everything handed in, and the last contribution alone."""
        for fragment, track in enumerate(self.machine.tracks):
            last = self.last_handed_in.get(fragment, Amount())
            yield fragment, track.seq, track.handed_in, last

    # ---- life ---------------------------------------------------------------------------------

    def begin(self) -> None:
        self.run.services.listeners.append(self._on_news)
        self._beat()
        self._step_later()

    def kill(self) -> None:
        """Do nothing more, as by SIGKILL or SIGSTOP."""
        self.alive = False

    def wake(self) -> None:
        """Go on after a long sleep, as by SIGCONT."""
        self.alive = True
        self._beat()
        self._step_later()

    def leave(self) -> None:
        """Say goodbye and end."""
        self._send_beat("left")
        self.alive = False

    def _plan(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.alive:
                action()

        self.run.time.after(seconds, act)

    # ---- training -----------------------------------------------------------------------------

    def _step_later(self) -> None:
        self._plan(self.step_s, self._boundary)

    def _boundary(self) -> None:
        plan = self.machine.plan(self.run.time.now)
        if self.machine.started and not plan.pause:
            self.machine.on_step(self.task.step())
            plan = self.machine.plan(self.run.time.now)
        self._carry_out(plan)
        self.clock.append(self.machine.progress_tokens())
        self._check()
        if plan.stop is not None:
            self.leave()
        else:
            self._step_later()

    def _carry_out(self, plan: Plan) -> None:
        copies = {s.fragment: self._read(s.fragment) for s in plan.snapshots}
        self.machine.begin(plan)
        for snapshot in plan.snapshots:
            self._hand_in(snapshot, *copies[snapshot.fragment])
        self.adoptions += plan.adoptions
        settings = self.run.record.settings.adopt
        for adoption in plan.adoptions:
            version = self.staged.pop(adoption.fragment)
            published = version.weights
            movement = self.movements[adoption.fragment]
            if adoption.realign:
                values = movement.realign(published)
            else:
                theta = {name: self.task.tensors[name].detach() for name in published}
                values = movement.adopt(
                    theta,
                    published,
                    mode=settings.mode,
                    alpha=settings.alpha,
                    in_flight=adoption.in_flight,
                )
            with torch.no_grad():
                for name, value in {**values, **version.buffers}.items():
                    self.task.tensors[name].copy_(value)

    def _read(self, fragment: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters in fp32, and buffers, as they are now."""
        specs = self.run.layout.by_fragment[fragment]
        now = {s.name: self.task.tensors[s.name].detach() for s in specs}
        return (
            {s.name: now[s.name].float().clone() for s in specs if s.kind == "parameter"},
            {s.name: now[s.name].clone() for s in specs if s.kind == "buffer"},
        )

    # ---- handing in -----------------------------------------------------------------------------

    def _hand_in(
        self, snapshot: Snapshot, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        p = snapshot.fragment
        codec = CODECS[self.run.record.settings.codec.up]
        movement = self.movements[p]
        handin = Handin(
            learner=self.name,
            incarnation=self.machine.incarnation,
            lineage=self.run.record.lineage,
            codec=codec.tag,
            payload=NO_PAYLOAD,
            step_s=self.step_s,
            **snapshot._asdict(),
        )
        deltas = movement.hand_in(theta)
        specs = self.run.layout.by_fragment[p]
        encoded = encode_contribution(specs, deltas, buffers, codec, handin.header)
        movement.handed_in(encoded.decoded)
        for name, coded in encoded.decoded.items():
            before = self.decoded.get(name, torch.zeros(coded.shape, dtype=torch.float64))
            self.decoded[name] = before + coded.whole().double()
        data = bytes(encoded.buffer)
        key = self.run.keys.contribution(*handin.id, encoded.sha256)
        payload = ObjectRef(key=key, bytes=len(data), sha256=encoded.sha256)
        handin = msgspec.structs.replace(handin, payload=payload)
        self.last_handed_in[p] = Amount(steps=handin.steps, tokens=handin.tokens)
        self.handins.append(handin)
        self.spool[handin.id] = data
        # the anchor moves within the boundary here, so encoding is over before anything is adopted
        self.machine.on_encoded(p)
        self._plan(self.lag_s, lambda: self._send(handin))

    def _send(self, handin: Handin) -> None:
        self.run.services.objects[handin.payload.key] = self.spool[handin.id]
        self.stored[handin.id] = handin
        self.machine.on_announced(handin.fragment)
        self._announce(handin)

    def _announce(self, handin: Handin) -> None:
        if self.run.services.announce(handin) and self.run.coordinator is not None:
            self.run.coordinator.tell(e.Announced(handin))

    # ---- beating --------------------------------------------------------------------------------

    def _on_news(self) -> None:
        if self.alive:
            self._plan(0.01, self._hear)

    def _beat(self) -> None:
        self._hear()
        self._plan(self.machine.settings.liveness.beat_s, self._beat)

    def _hear(self) -> None:
        named = set(self.stored)
        reply = self._send_beat("training" if self.machine.started else "joining")
        self.machine.on_beat(reply, named)
        waiting = {HandinId(self.name, i, f, s) for i, f, s in self.machine.outstanding}
        self.stored = {id_: h for id_, h in self.stored.items() if id_ in waiting}
        self.machine.on_fragments(self.run.services.fragments.values())
        for id_ in reply.again:
            self._plan(self.lag_s, lambda handin=self.stored[id_]: self._send(handin))  # type: ignore[misc]
        self._stage()
        self._check()

    def _send_beat(self, state: Literal["joining", "training", "draining", "left"]) -> BeatReply:
        machine = self.machine
        record = LearnerRecord(
            id=self.name,
            incarnation=machine.incarnation,
            lineage=self.run.record.lineage,
            state=state,
            step=machine.local_steps,
            step_s=self.step_s,
            tokens=machine.trained.tokens,
            held=machine.held,
            line=machine.line,
            realigns=machine.realigns,
        )
        reply = self.run.services.beat(record, list(self.stored), self.run.time.now)
        if self.run.coordinator is not None:
            self.run.coordinator.tell(e.Beat(record, self.run.time.now))
        return reply

    # ---- staging --------------------------------------------------------------------------------

    def _stage(self) -> None:
        wanted = self.machine.wanted()
        if wanted and not self._staging:
            self._staging = True
            self._plan(self.stage_s, lambda: self._staged(wanted[0]))

    def _staged(self, state: FragmentState) -> None:
        self._staging = False
        p, run = state.fragment, self.run
        specs, dtype = run.layout.by_fragment[p], run.record.settings.fragments.publish_dtype
        if state.step is not None and self.machine.takes_step(state):
            metadata = version_metadata("fragment", run.record.name, p, state.version)
            step = run.services.objects[state.step.key]
            data = bytes(rebuild_version(self.bases[p], step, specs, dtype, metadata).buffer)
            self.steps_taken += 1
        else:
            data = run.services.objects[state.published.key]
        assert sha256(data) == state.published.sha256
        self.bases[p] = data
        self.staged[p] = decode_fragment(bytearray(data), specs, dtype)
        self.machine.on_staged(p, Staged(state.version, state.line, sha256(data), state.seq))
        self._stage()
        self._check()

    # ---- checking -------------------------------------------------------------------------------

    def _check(self) -> None:
        broken = check_learner(self.machine)
        assert not broken, f"{self.name}: {broken}"
        if self.run.coordinator is not None:
            self.run.check_ledger()
