"""`ddl.Learner`: a run's learner around any PyTorch loop.

    with ddl.Learner.join("redis://host/0?run=NAME", model=model, optimizer=optimizer) as learner:
        for batch in data:
            ...                                   # forward, backward, optimizer.step()
            progress = learner.step(tokens=n, loss=loss)
            if learner.should_stop:
                break

`step` is the step boundary: weights are copied for contributions and versions are adopted there,
in the training thread, and nowhere else. Everything slow happens in other threads (`beat`, `up`,
`down`, and `claim` for `ddl.data.Units`); the training thread never waits for a network, another
learner or the coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from ddl.core.learner import LearnerMachine, Plan, Stop
from ddl.errors import DdlError, RegistryError, told
from ddl.learner.beat import BeatThread
from ddl.learner.claiming import ClaimThread, claim_for
from ddl.learner.departure import Departed, Departure, is_nobodys
from ddl.learner.down import DownThread
from ddl.learner.frozen import take_frozen
from ddl.learner.meters import LossMeter, StepClock, Transfers
from ddl.learner.port import Masters, ModelPort
from ddl.learner.session import JoinOptions, Session, find_run
from ddl.learner.shared import Shared, StagedFragment
from ddl.learner.up import Taken, UpThread
from ddl.learner.voice import Voice
from ddl.learner.warm import LEAST_GAP_S, WarmState
from ddl.limits import JOIN_WAIT_S
from ddl.merge.movement import Movement
from ddl.protocol.records import LearnerRecord
from ddl.task import Progress

ITS_LOOP_ENDED: Final = "its training loop has ended"

THREADS_END_S: Final = 5.0
"""Longest wait for threads of a learner that leaves; a call to Redis under way takes 2.5 s at most."""


class Learner:
    """One learner of a run. Made by `join`; used by one training thread.

    Attributes:
        id: this learner's id.
        stop: why it should stop, None as long as it should not. After a `kind` of "drained" or
            "offline" a program ends with exit code 75, as `ddl learner join` does, so that whatever
            supervises it starts it again; after "ended" with 0.
    """

    def __init__(self, session: Session) -> None:
        """Begin to beat as a joining learner; `attach` brings in the model."""
        now = session.clock.monotonic()
        self.id = session.learner
        self.stop: Stop | None = None
        self._session = session
        self._shared = Shared(
            machine=LearnerMachine(
                learner=session.learner,
                incarnation=session.incarnation,
                shares=session.run.run.layout.shares,
                settings=session.run.settings,
                now=now,
            ),
            loss=LossMeter(),
            clock=StepClock(now),
            transfers=Transfers(),
        )
        self._optimizer: Optimizer | None = None
        self._port: ModelPort | None = None
        self._warm: WarmState | None = None
        self._claiming: ClaimThread | None = None
        layout = session.run.run.layout
        self._voice = Voice(session, self._shared)
        self._movements = [Movement(specs) for specs in layout.by_fragment]
        self._up = UpThread(session, self._shared, self._voice, self._movements)
        self._down = DownThread(session, self._shared)
        self._beat = BeatThread(
            session,
            self._shared,
            self._voice,
            put_again=self._up.put_again,
            lr=self._learning_rate,
        )
        self._up.inherit()
        self._closed = False
        self._at_end = ExitStack()
        for thread in (self._up, self._beat):
            thread.start()

    @classmethod
    def join(
        cls,
        address: str,
        *,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        batches: Iterable[Any] | None = None,
        masters: Masters | None = None,
        id: str | None = None,  # noqa: A002 - the word that users know
        store: str | None = None,
        takeover: bool = False,
        wait_s: float = JOIN_WAIT_S,
    ) -> Self:
        """Join a run and give `model` the run's weights.

        Until `close`, SIGTERM asks this learner to `drain`: its loop ends with the next step, and a
        process that does not come to one is ended within `drain_s` (exit code 75). That is so in
        the main thread of a process without a handler of its own for SIGTERM; call `drain` there.

        Args:
            address: `redis://HOST:PORT/DB?run=NAME`.
            model: the run's model; its weights are replaced by the newest version.
            optimizer: shown to people by its learning rate; never reset or changed.
            batches: what the loop is going to iterate over, if it can resume where a former life
                has stopped, or is shared by all learners as `ddl.data.Units` is.
            masters: (parameter) -> the fp32 copy that the optimizer keeps of it, None while there is
                none. Needed where a model in bf16 or fp16 has such copies.
            id: this learner's id; by default made from the host's name and a random part.
            store: where this machine reaches the store, if not where the run says.
            takeover: replace a living process of the same id.
            wait_s: how long to wait for a run, or its Redis, that is not started yet.
        Raises:
            UnknownRunError: nobody started it meanwhile.
            RefusedError: another model than the run's, or the id is taken; RunOverError: it has come
                to its end.
            AddressError, RegistryError, StoreError.
        """
        device = str(next((p.device for p in model.parameters()), "cpu"))
        options = JoinOptions(
            address=address,
            learner=id,
            store=store,
            takeover=takeover,
            wait_s=wait_s,
            device=device,
        )
        session = find_run(options)
        try:
            if taken := take_frozen(model, session.run.run, session.store):
                session.journal.tell("model.frozen", taken)
            session.enter()
        except BaseException:
            session.close()
            raise
        learner = cls(session)
        try:
            if is_nobodys():
                learner._mind_sigterm()
            learner.attach(model, optimizer, batches, masters)
        except BaseException as error:
            learner._close_for(error)
            raise
        return learner

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        batches: Iterable[Any] | None = None,
        masters: Masters | None = None,
    ) -> None:
        """Bring in the model and wait until it holds the run's newest weights.

        The optimizer, and the position in `batches`, resume where a former life of this id left
        them on this machine. For `ddl.data.Units` it begins to claim.
        Raises: RefusedError when it is not the run's model.
        """
        self._optimizer = optimizer
        self._resume_warm(optimizer, batches)
        self._claiming = claim_for(self._session, self._shared, batches)
        self._port = ModelPort(model, self._session.run.run.layout, masters)
        self._down.start()
        shared = self._shared
        with shared.changed:
            while not shared.machine.started:
                shared.raise_fatal()
                plan = shared.machine.plan(self._now())
                if plan.stop is not None:
                    self.stop = plan.stop
                    return
                if plan.adoptions:
                    self._adopt(plan, self._begin(plan))
                else:
                    shared.changed.wait(1.0)
        if self._claiming is not None:
            self._claiming.wait_ready()
        self._voice.started()
        shared.clock.begin(self._now())

    # ---- the step boundary ----------------------------------------------------------------------

    def step(
        self, *, tokens: int, loss: Tensor | float | None = None, applied: bool = True
    ) -> Progress:
        """Tell that one optimizer step was taken; hand in and adopt what is due.

        Args:
            tokens: tokens (or samples) that went into the step, > 0.
            loss: the step's loss, for people; a tensor is read later, without a sync here.
            applied: False when the optimizer left the step out (a gradient scaler that overflowed).
        Raises: what has ended a background thread (fenced, refused, store denied, ...).
        """
        if tokens < 1:
            raise ValueError(f"tokens must be at least 1, got {tokens!r}")
        shared = self._shared
        now = self._now()
        shared.clock.enter(now)
        shared.raise_fatal()
        if loss is not None:
            shared.loss.add(loss)
        with shared.changed:
            shared.machine.on_step(tokens, applied=applied)
            shared.skipped += not applied
        if applied:
            shared.clock.applied(now)
        plan = self._do_what_is_due()
        if self._warm is not None and self._warm.is_due(now):
            self._keep_warm(self._warm)
        if plan.pause and plan.stop is None:
            self._stand_still(plan.pause)
        shared.clock.leave(self._now())
        return self.progress

    @property
    def progress(self) -> Progress:
        """Where the run stands, as this learner knows it."""
        with self._shared.changed:
            machine = self._shared.machine
            return Progress(
                tokens=machine.progress_tokens(),
                fraction=machine.progress_fraction(),
                global_version=machine.head.global_version if machine.head else 0,
                local_steps=machine.local_steps,
                share=machine.share,
            )

    @property
    def record(self) -> LearnerRecord:
        """What it says of itself with its next beat; may be read in any thread."""
        return self._beat.record()

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end: the run is over, or this learner is to leave."""
        return self.stop is not None

    def _do_what_is_due(self) -> Plan:
        """Hand in and adopt; return the plan that was carried out."""
        assert self._port is not None, "step() before attach()"
        with self._shared.changed:
            plan = self._shared.machine.plan(self._now())
            staged = self._begin(plan)
        for snapshot in plan.snapshots:
            self._up.take(Taken(snapshot, self._port.read(snapshot.fragment)))
        self._adopt(plan, staged)
        if plan.stop is not None:
            self.stop = plan.stop
        return plan

    def _begin(self, plan: Plan) -> dict[int, StagedFragment]:
        """Book the plan and take what it adopts off the stage. Lock held."""
        self._shared.machine.begin(plan)
        return {a.fragment: self._shared.staged.pop(a.fragment) for a in plan.adoptions}

    def _adopt(self, plan: Plan, staged: dict[int, StagedFragment]) -> None:
        assert self._port is not None
        settings = self._session.run.run.settings.adopt
        for adoption in plan.adoptions:
            fragment = staged[adoption.fragment]
            movement = self._movements[adoption.fragment]
            mastered = self._port.mastered(adoption.fragment)
            if adoption.realign:
                self._shared.loss.restart()
                values = movement.realign(fragment.parameters, mastered=mastered)
            else:
                values = movement.adopt(
                    self._port.current(adoption.fragment),
                    fragment.parameters,
                    mode=settings.mode,
                    alpha=settings.alpha,
                    mastered=mastered,
                    in_flight=adoption.in_flight,
                )
            self._port.assign({**values, **fragment.buffers})
            if not adoption.in_flight:
                self._up.landed(adoption.fragment)

    def _stand_still(self, reason: str) -> None:
        """Take no step until there is no more reason for it; beats, hand-ins and adoptions go on."""
        shared = self._shared
        started = told = self._now()
        self._session.journal.tell("learner.paused", reason)
        while True:
            shared.raise_fatal()
            with shared.changed:
                ordered = shared.machine.run_is_paused
                plan = shared.machine.plan(self._now())
                if plan.pause and not (plan.snapshots or plan.adoptions or plan.stop):
                    shared.changed.wait(shared.machine.settings.liveness.beat_s)
            plan = self._do_what_is_due()
            now = self._now()
            shared.clock.pause(now - told, ordered=ordered)  # at once: beats tell of it
            told = now
            if plan.stop is not None or not plan.pause:
                break
        if plan.stop is None:
            self._session.journal.tell("learner.resumed", f"after {told - started:.1f} s")

    # ---- across lives ---------------------------------------------------------------------------

    def _resume_warm(self, optimizer: Optimizer | None, batches: Iterable[Any] | None) -> None:
        if optimizer is None:
            return
        self._warm = WarmState(
            self._session.spool.warm_file,
            lineage=self._session.run.run.lineage,
            optimizer=optimizer,
            batches=batches,
        )
        outcome = self._warm.restore()
        if not outcome and self._session.incarnation > 1:
            outcome = (
                "starts cold: its former life left no optimizer state here, as one does that ran "
                f"elsewhere or was killed in its first {LEAST_GAP_S:.0f} s"
            )
        if outcome:
            self._session.tell("learner.warm", f"{self.id} {outcome}")

    def _keep_warm(self, warm: WarmState) -> None:
        started = self._now()
        try:
            data = warm.copy()
        except DdlError as error:
            self._session.tell("warm.not_kept", f"{self.id} would start cold: {error}")
            self._warm = None
            return
        self._up.keep_warm(warm, data)
        warm.took(self._now(), self._now() - started)

    # ---- leaving --------------------------------------------------------------------------------

    def drain(self, why: str = "asked to leave") -> None:
        """Ask to leave: the next `step` hands in all that was trained, then `should_stop` is set.

        It may stand still meanwhile, for less than `drain_s`. Safe to call from a signal handler.
        """
        self._shared.machine.drain(why)

    def _mind_sigterm(self) -> None:
        departure = Departure()
        departure.found(drain_s=self._shared.machine.settings.liveness.drain_s)
        departure.joined(self.cut_off)
        departure.training(lambda: self.drain("SIGTERM"))
        self._at_end.enter_context(departure)

    def close(self, *, error: str = "", why: str = "", at_once: bool = False) -> None:
        """Leave the run: hand in what was trained and finish uploads within `drain_s`, say goodbye, end all
        threads.

        `error` is shown to people as the reason, and as a trouble of the run. `why` is told where
        nobody asked this learner to stop and nothing failed. After an error, when it was sent
        away, or `at_once`, nothing more is handed in, and uploads are given up: they wait in the spool
        for the next life of this id. Can be called more than once.
        Raises: DdlError: it could not go on handing in; it has left all the same.
        """
        if self._closed:
            return
        machine = self._shared.machine
        if self.stop is None and machine.aligned and not (error or at_once or self._port is None):
            try:
                self._hand_in_rest(why or ITS_LOOP_ENDED)
            except BaseException as failure:
                self._close_for(failure)
                raise
        self._closed = True
        sent_away = self.stop is not None and self.stop.kind in ("fenced", "kicked")
        at_once = at_once or bool(error) or sent_away
        goes_well = machine.aligned and not at_once
        if self._warm is not None and goes_well:
            self._keep_warm(self._warm)
        if self._claiming is not None:
            self._claiming.finish(handed_in=goes_well)
        self._up.finish()
        self._up.join(timeout=max(0.5, 0.0 if at_once else machine.drain_left_s(self._now())))
        self._join(self._claiming)
        asked = self.stop.reason if self.stop is not None else ""
        why = "" if error else asked or why or ITS_LOOP_ENDED
        is_kicked = self.stop is not None and self.stop.kind == "kicked"
        self._voice.left(why, error=error, cure=self._session.way_back if is_kicked else "")
        self.say_goodbye(error=error, why=why)
        self._join(self._up, self._down)
        self._session.close()
        self._at_end.close()

    def _hand_in_rest(self, why: str) -> None:
        """What a loop that ends by itself has trained and not handed in goes the way of a drained
        learner's; nobody has asked it to stop, so there is no `stop` to tell of."""
        self.drain(why)
        self._stand_still("hands in what it has trained")
        if self.stop is not None and self.stop.kind == "drained":
            self.stop = None

    def cut_off(self) -> None:
        """Say goodbye for a process that will be ended though it still has something to hand in."""
        why = "SIGTERM, and no time is left to hand in (liveness.drain_s)"
        self._voice.left(why)
        self.say_goodbye(why=why)

    def say_goodbye(self, *, error: str = "", why: str = "") -> None:
        """Tell the run that this incarnation has ended; in any thread, and more than once if need be.

        What is being uploaded is cut off: it is whole in the store or not there.
        """
        shared, session = self._shared, self._session
        shared.leaving.set()
        session.registry.interrupt()
        session.store.close()
        with shared.changed:
            shared.changed.notify_all()
        self._join(self._beat)  # or it would say that we are here
        try:
            self._beat.leave(error=error, why=why)
        except RegistryError as failure:
            session.journal.tell("learner.left_silently", str(failure))
        except DdlError as failure:  # fenced: the id is somebody else's now
            session.journal.tell("learner.fenced", str(failure))

    def _join(self, *threads: threading.Thread | None) -> None:
        deadline = self._now() + THREADS_END_S
        for thread in threads:
            if thread is not None and thread.ident is not None:
                thread.join(timeout=max(0.1, deadline - self._now()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_for(error)

    def _close_for(self, error: BaseException | None) -> None:
        """Leave because of what a block was left by; only what failed is an error."""
        match error:
            case None | SystemExit(code=None | 0):
                self.close()
            case Departed():
                self.close(why="SIGTERM came before it could train")
            case KeyboardInterrupt():
                self.close(why="Ctrl-C", at_once=True)
            case _:
                self.close(error=told(error))

    # ---- small things ---------------------------------------------------------------------------

    def _now(self) -> float:
        return self._session.clock.monotonic()

    def _learning_rate(self) -> float | None:
        if self._optimizer is None or not self._optimizer.param_groups:
            return None
        return float(self._optimizer.param_groups[0]["lr"])
