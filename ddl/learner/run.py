"""`ddl learner join`: train a task file's task as a learner of a run, until told to stop."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal

import torch

from ddl.config import Scalar
from ddl.errors import (
    ConfigError,
    DdlError,
    RefusedError,
    RunOverError,
    TaskError,
    TrainingError,
)
from ddl.journal import Journal
from ddl.learner.departure import Departure
from ddl.learner.frozen import take_frozen
from ddl.learner.learner import Learner
from ddl.learner.session import JoinOptions, Session, find_run
from ddl.metrics.families import Family, of_learner
from ddl.metrics.log import writing
from ddl.metrics.serve import serving
from ddl.task import Build, Task, TaskContext, build_task, import_task, in_file, task_digest

Ended = Literal["ended", "drained", "offline", "max_steps"]


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What to train, beside where to join.

    Attributes:
        task: the task file of this machine.
        args: overrides of `[task.args]`.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: torch threads within an operation; None leaves torch's own choice.
        max_steps: leave after this many steps; None for no limit.
        metrics_port: where to serve `/metrics`; None for nowhere.
        log: where to write curves: "tensorboard:DIR", "wandb:PROJECT".
    """

    task: Path
    args: Mapping[str, Scalar] = field(default_factory=dict)
    device: str = "auto"
    threads: int | None = None
    max_steps: int | None = None
    metrics_port: int | None = None
    log: tuple[str, ...] = ()


def run_task(join: JoinOptions, options: TaskOptions, departure: Departure) -> Ended:
    """Build the task, join, train until the run ends, and leave.

    Whatever is wrong with the files of this machine, with its model or its id shows before the join:
    the run never hears of a learner that could not train.
    Raises: Departed when SIGTERM came before training began. DdlError for everything that is wrong
        with addresses, settings, task or run. What the task's code raises while it trains is a
        TrainingError, after a clean leave.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    digest, build = task_digest(options.task), import_task(options.task)
    try:
        session = find_run(_with_device(join, device))
    except RunOverError as over:  # as of a run that ends while one trains: there is nothing to do
        (join.journal or Journal(sys.stderr)).tell("learner.ended", str(over))
        return "ended"
    with ExitStack() as stack:
        try:
            departure.found(drain_s=session.run.settings.liveness.drain_s)
            tell_of = stack.enter_context(_numbers(options, session))
            difference = _difference(session, digest, options.task)
            task = _build(build, session, options, device)
            session.enter()
        except BaseException:
            session.close()
            raise
        if difference:
            session.tell("task.differs", f"{session.learner}: {difference}")
        learner = stack.enter_context(Learner(session))
        tell_of(learner)
        departure.joined(learner.cut_off)
        learner.attach(task.model, task.optimizer, task.batches, task.masters)
        departure.training(lambda: learner.drain("SIGTERM"))
        with _task_errors(options.task):
            _train(learner, task, options.max_steps)
        learner.close(why=f"it has taken --max-steps = {options.max_steps}")
        return _ended(learner, session)


@contextmanager
def _numbers(options: TaskOptions, session: Session) -> Iterator[Callable[[Learner], None]]:
    """Serve `/metrics` and write curves, as far as asked, of the learner that is told of later on."""
    joined: list[Learner] = []

    def families() -> Iterator[Family]:
        for learner in joined:
            yield from of_learner(learner.record)

    label = {"run": session.run.run.name, "learner": session.learner}
    journal = session.journal
    with ExitStack() as stack:
        if options.metrics_port is not None:
            port = stack.enter_context(serving(options.metrics_port, families, label=label))
            journal.tell("metrics.served", f"/metrics is at port {port}")
        for where in options.log:
            stack.enter_context(
                writing(where, families, over="ddl_tokens_total", label=label, journal=journal)
            )
        yield joined.append


@contextmanager
def _task_errors(file: Path) -> Iterator[None]:
    """What the task's own code raises while it trains becomes one sentence with its place."""
    try:
        with in_file(file):
            yield
    except DdlError:
        raise
    except Exception as error:
        path = str(file.resolve())
        lines = [at.lineno for at in extract_tb(error.__traceback__) if at.filename == path]
        where = f"{file}:{lines[-1]}" if lines else str(file)
        raise TrainingError(
            f"{where}: training raised {type(error).__name__}: {error}",
            hint="`ddl --debug ...` shows the whole traceback",
        ) from error


def choose_device(name: str) -> torch.device:
    """The device that `--device` means. Raises: ConfigError when it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name!r} is unknown", hint="Use auto, cpu or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r} is not supported", hint="Use auto, cpu or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices",
            hint="Use --device auto or cpu",
        )
    return device


def _with_device(join: JoinOptions, device: torch.device) -> JoinOptions:
    import dataclasses

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return dataclasses.replace(join, device=name)


def _context(session: Session, options: TaskOptions, device: torch.device) -> TaskContext:
    run = session.run.run
    seed = f"{run.settings.run.seed}/{session.learner}/{session.incarnation}"
    return TaskContext(
        run=run.name,
        seed=run.settings.run.seed,
        purpose="train",
        learner=session.learner,
        incarnation=session.incarnation,
        data_seed=int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6], "big"),
        device=device,
        rank=0,
        world_size=1,
        args={**run.settings.task.args, **options.args},
    )


def _build(build: Build, session: Session, options: TaskOptions, device: torch.device) -> Task:
    """The task, with the run's model."""
    run = session.run.run
    own_args = options.args.keys() - run.settings.task.args.keys()
    context = _context(session, options, device)
    task = build_task(options.task, build, context, own_args=own_args)
    with in_file(options.task):
        taken = take_frozen(task.model, run, session.store)
    if taken:
        session.journal.tell("model.frozen", taken)
    return task


def _difference(session: Session, digest: str, file: Path) -> str:
    """What there is to say about the task file's digest. Raises: RefusedError."""
    run = session.run.run
    if digest == run.task_digest:
        return ""
    message = f"task file {file} differs from the one that run {run.name!r} was started with"
    if run.settings.task.digest == "refuse":
        raise RefusedError(message, hint="Use the same file, or start the run with task.digest")
    return message


def _train(learner: Learner, task: Task, max_steps: int | None) -> None:
    groups = task.optimizer.param_groups if task.optimizer is not None else []
    initial = [group["lr"] for group in groups]
    progress = learner.progress

    def ends() -> bool:
        return learner.should_stop or (max_steps is not None and progress.local_steps >= max_steps)

    if ends():
        return
    for batch in _endless(task):
        if task.lr_factor is not None:
            factor = task.lr_factor(progress)
            for group, lr in zip(groups, initial, strict=True):
                group["lr"] = lr * factor
        if task.step is not None:
            result = task.own_step(batch, progress)
            progress = learner.step(tokens=result.tokens, loss=result.loss, applied=result.applied)
        else:
            loss = _own_step(task, batch)
            progress = learner.step(tokens=task.num_tokens(batch), loss=loss)
        if ends():  # before the next batch is taken: it would count as read
            return


def _own_step(task: Task, batch: Any) -> torch.Tensor:
    assert task.optimizer is not None
    loss = task.mean_loss(batch)
    task.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    task.optimizer.step()
    return loss


def _endless(task: Task) -> Iterator[Any]:
    """The task's batches, begun again whenever they end."""
    assert task.batches is not None
    while True:
        num = 0
        for batch in task.batches:
            num += 1
            yield batch
        if num == 0:
            raise TaskError(
                "Task.batches is empty, or can be iterated only once",
                hint="Give an iterable that starts anew each time, such as a DataLoader",
            )


def _ended(learner: Learner, session: Session) -> Ended:
    if learner.stop is None:
        return "max_steps"
    if learner.stop.kind == "fenced" or learner.stop.kind == "kicked":
        raise RefusedError(
            f"learner {learner.id!r} has to leave: {learner.stop.reason}",
            hint=session.way_back if learner.stop.kind == "kicked" else "",
        )
    return learner.stop.kind
