"""The ways to spend the same batches: data-parallel, synchronous DiLoCo, `ddl`, and each for itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor, nn

from ddl import config
from ddl.config import Settings
from ddl.core import events as e
from ddl.merge.inspect import describe_model
from examples.quality import text
from examples.quality.cells import Cell, Outcome, Scalar
from examples.quality.real import run_processes
from examples.quality.workload import Workload
from tests.lockstep.coordinator import Coordinator
from tests.lockstep.learner import Learner
from tests.lockstep.runner import Run

FRAGMENTS = 4

LOOKS = 10
"""Points of a curve."""


def train(cell: Cell, work: Workload = text) -> Outcome:
    """What the cell's method makes of a workload."""
    match cell.method:
        case "data-parallel":
            return data_parallel(cell, work)
        case "synchronous":
            return synchronous(cell, work)
        case "alone":
            each = (_plain(cell, work, [m]) for m in range(cell.learners))
            return min(each, key=lambda outcome: outcome.heldout_loss)
        case "decoupled":
            return decoupled(cell, work)
        case "processes":
            return run_processes(cell, changes_of(cell, work))


def data_parallel(cell: Cell, work: Workload) -> Outcome:
    """One model, steps on the batches of all learners together."""
    return _plain(cell, work, range(cell.learners))


def _plain(cell: Cell, work: Workload, learners: Sequence[int]) -> Outcome:
    """One model, on the batches of these learners."""
    model = work.make_model(cell.seed)
    optimizer = work.make_optimizer(model)
    streams = [work.batches(cell.seed, m) for m in learners]
    tokens_per_step = len(learners) * work.tokens_per_step()
    curve = []
    for step in range(cell.steps):
        batch = torch.cat([next(stream) for stream in streams])
        work.train_step(model, optimizer, batch, local_steps=step, fraction=step / cell.steps)
        if _is_look(step, cell.steps):
            curve.append(((step + 1) * tokens_per_step, work.heldout_loss(model)))
    return _outcome(cell, work, model, curve)


def _is_look(step: int, steps: int) -> bool:
    """Whether one of the points of the curve lies after this step; the last step has one."""
    return (step + 1) * LOOKS // steps > step * LOOKS // steps


def _outcome(
    cell: Cell, work: Workload, model: nn.Module, curve: list[tuple[int, float]], versions: int = 0
) -> Outcome:
    tokens, loss = curve[-1]
    return Outcome(
        cell=cell,
        tokens=tokens,
        heldout_loss=loss,
        accuracy=work.accuracy(model),
        versions=versions,
        curve=tuple(curve),
    )


def synchronous(cell: Cell, work: Workload) -> Outcome:
    """Plain DiLoCo: all stop every H steps, their mean goes through Nesterov, all take it over."""
    settings = settings_of(cell, work)
    every, outer = settings.round.every_steps, settings.outer
    shared = work.make_model(cell.seed)
    nesterov = torch.optim.SGD(
        shared.parameters(), lr=outer.lr, momentum=outer.momentum, nesterov=outer.momentum > 0
    )
    replicas = [work.make_model(cell.seed) for _ in range(cell.learners)]
    optimizers = [work.make_optimizer(replica) for replica in replicas]
    streams = [work.batches(cell.seed, m) for m in range(cell.learners)]
    tokens_per_step = cell.learners * work.tokens_per_step()
    versions, curve = 0, []
    for step in range(cell.steps):
        for replica, optimizer, stream in zip(replicas, optimizers, streams, strict=True):
            fraction = step / cell.steps
            work.train_step(replica, optimizer, next(stream), local_steps=step, fraction=fraction)
        if (step + 1) % every == 0 or step + 1 == cell.steps:
            _outer_step(shared, replicas, nesterov)
            versions += 1
        if _is_look(step, cell.steps):
            curve.append(((step + 1) * tokens_per_step, work.heldout_loss(shared)))
    return _outcome(cell, work, shared, curve, versions)


@torch.no_grad()
def _outer_step(
    shared: nn.Module, replicas: list[nn.Module], nesterov: torch.optim.Optimizer
) -> None:
    moved = zip(shared.parameters(), *(r.parameters() for r in replicas), strict=True)
    for parameter, *others in moved:
        parameter.grad = parameter - torch.stack(others).mean(dim=0)
    nesterov.step()
    for buffer, *theirs in zip(shared.buffers(), *(r.buffers() for r in replicas), strict=True):
        together = torch.stack(theirs)
        buffer.copy_(together.mean(dim=0) if buffer.is_floating_point() else together.amax(dim=0))
    for replica in replicas:
        replica.load_state_dict(shared.state_dict())


# ---- ddl itself ---------------------------------------------------------------------------------


class WorkTask:
    """A learner of the lockstep runner: `tensors` change in place; the clock is the learner's own."""

    def __init__(self, work: Workload, seed: int, stream: Iterator[Tensor]) -> None:
        self._work = work
        self.model = work.make_model(seed)
        self.tensors: Mapping[str, Tensor] = describe_model(self.model).tensors
        self.learner: Learner | None = None
        self._optimizer = work.make_optimizer(self.model)
        self._stream = stream
        self._steps = 0

    def step(self) -> int:
        assert self.learner is not None
        self._work.train_step(
            self.model,
            self._optimizer,
            next(self._stream),
            local_steps=self._steps,
            fraction=self.learner.machine.progress_fraction(),
        )
        self._steps += 1
        return self._work.tokens_per_step()


def changes_of(cell: Cell, work: Workload) -> dict[str, Scalar]:
    """Dotted settings: four fragments, the cell's seed and budget, and what the cell changes."""
    changes = {
        "run.seed": cell.seed,
        "health.rollback": "off",
        "stop.tokens": cell.learners * cell.steps * work.tokens_per_step(),
        "fragments.num": FRAGMENTS,
        **cell.settings,
    }
    return config.by_hand(changes)


def settings_of(cell: Cell, work: Workload) -> Settings:
    """The defaults with these changes."""
    return config.replace(Settings(), changes_of(cell, work))


def decoupled(cell: Cell, work: Workload) -> Outcome:
    """The real core, codec and merge, in virtual time: a step takes a second."""
    start = work.make_model(cell.seed)
    described = describe_model(start)
    run = Run(settings_of(cell, work), described.infos, start=described.tensors)
    coordinator = run.start_coordinator()
    if cell.drop:
        _drop(coordinator, cell)
    late = run.time.now + cell.steps / 2
    for m in range(cell.learners):
        task = WorkTask(work, cell.seed, work.batches(cell.seed, m))
        if m >= cell.learners - cell.late:
            run.time.at(late, lambda m=m, task=task: _join(run, cell, m, task))  # type: ignore[misc]
        else:
            _join(run, cell, m, task)
    model, curve = work.make_model(cell.seed), []
    for look in range(1, LOOKS + 1):
        far = partial(_is_far, run, look / LOOKS)
        if not run.time.run(20.0 * cell.steps, until=far):
            raise RuntimeError(f"{cell.name}: {run.versions} versions, {run.rounds}, and no end")
        with torch.no_grad():
            for name, value in run.model().items():
                describe_model(model).tensors[name].copy_(value)
        curve.append((round(run.log.progress), work.heldout_loss(model)))
    return _outcome(cell, work, model, curve, run.versions)


def _is_far(run: Run, share: float) -> bool:
    """Whether so much of the budget has been merged; all of it is when the run has ended."""
    is_merged = share < 1.0 and run.log.progress >= share * run.log.settings.stop.tokens
    return is_merged or run.log.state == "stopped"


def _join(run: Run, cell: Cell, m: int, task: WorkTask) -> None:
    step_s = cell.pace[m] if m < len(cell.pace) else 1.0
    slow = {"lag_s": cell.lag, "stage_s": cell.lag} if cell.lag else {}
    task.learner = run.add_learner(f"l{m}", task, step_s=step_s, **slow)


def _drop(coordinator: Coordinator, cell: Cell) -> None:
    """Some announcements arrive as if they had been under way for longer than work may be late."""
    chance = random.Random(cell.seed)  # noqa: S311 - no secret
    tell = coordinator.tell

    def tell_late(event: e.Event) -> None:
        if isinstance(event, e.Announced) and chance.random() < cell.drop:
            event = e.Announced(msgspec.structs.replace(event.handin, oldest_base=0))
        tell(event)

    coordinator.tell = tell_late  # type: ignore[method-assign]
