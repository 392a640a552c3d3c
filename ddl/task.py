"""What a user hands to `ddl`: a task file that builds a model and says how to train it.

    def build(ctx: ddl.TaskContext) -> ddl.Task: ...

The file comes from the machine it runs on; nothing of it travels. It is built for three purposes:
once at genesis ("init", on the CPU, for the start weights), by each learner ("train") and to
measure a version ("evaluate"). torch is imported when a task is checked, not before.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from ddl.errors import TaskError
from ddl.protocol.records import Rule

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType, ModuleType

    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ddl.config import Scalar

Purpose = Literal["init", "train", "evaluate"]

MODULE_PREFIX: Final = "_ddl_task_"

LIKE: Final = 0.8
"""From which likeness on, 1 is equal, one name is taken for another one misspelt: `widht`, `lrr`."""
"""Task files are modules of a private name, which no other process can import."""


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """For whom, on what and with which arguments a task is built.

    Attributes:
        run: name of the run.
        seed: seeds the start weights; the same on every machine.
        purpose: only "train" needs an optimizer and batches; "init" runs on the CPU.
        learner: id of the learner, None when no learner is training.
        incarnation: which life of that learner this is, from 1; 0 when there is no learner.
        data_seed: seeds the order of the data; differs between learners and between their lives.
        device: where the model must stand.
        rank: this process among those of the learner.
        world_size: number of processes of the learner.
        args: `[task.args]` of `run.toml`, overridden by `--arg KEY=VALUE` of this machine. One that
            `build` does not ask for is refused as misspelt if it stands only in `--arg`, or if
            `build` asks in vain for one of nearly its name.
    """

    run: str
    seed: int
    purpose: Purpose
    learner: str | None
    incarnation: int
    data_seed: int
    device: torch.device
    rank: int
    world_size: int
    args: Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where the run stands, as this learner knows it.

    Attributes:
        tokens: the run's clock; never falls, except after a rollback.
        fraction: share of the token or commit budget used, 0 to 1; 0 when the run has none.
        global_version: the version that the model was last moved to.
        local_steps: optimizer steps of this incarnation.
        share: this learner's part of a global batch: 1 / the learners that are in, itself included.
    """

    tokens: int
    fraction: float
    global_version: int
    local_steps: int
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a `Task.step` of one's own did.

    Attributes:
        loss: scalar mean over the batch; a tensor is read later, so that the device never waits.
        tokens: tokens (or samples) trained on, > 0.
        applied: False when the optimizer left the step out, as a gradient scaler does on overflow.
    """

    loss: Tensor | float
    tokens: int
    applied: bool = True

    def __post_init__(self) -> None:
        _check_tokens(self.tokens, "StepResult.tokens")


@dataclass(kw_only=True)
class Task:
    """A model and how to train it. `build(ctx)` of a task file returns one.

    Attributes:
        model: stands on `ctx.device`; its start weights follow from `ctx.seed` alone.
        optimizer: the inner optimizer over the model's parameters; `ddl` never resets it.
        batches: what to train on, iterated again when it ends. If it has `state_dict` and
            `load_state_dict`, its position survives a restart. `ddl.data.Units` has, and shares the
            data among all learners besides.
        loss: (model, batch) -> scalar mean loss with a gradient.
        step: (batch, progress) -> StepResult: a whole optimizer step of one's own. Training needs
            exactly one of `loss` and `step`.
        tokens: (batch) -> tokens (or samples) in it, > 0; needed with `loss`. Contributions are
            weighted by it, and the run's clock counts it.
        lr_factor: (progress) -> factor on the initial learning rate of each parameter group.
        evaluate: (model) -> named measures on held-out data, "loss" among them.
        masters: (parameter) -> the fp32 copy that the optimizer keeps of it, None while there is none.
            Needed where a model in bf16 or fp16 has such copies: they are what moves.
        rules: tensor name -> how contributions of it are merged, where the default is not right.
    """

    model: nn.Module
    optimizer: Optimizer | None = None
    batches: Iterable[Any] | None = None
    loss: Callable[[nn.Module, Any], Tensor] | None = None
    step: Callable[[Any, Progress], StepResult] | None = None
    tokens: Callable[[Any], int] | None = None
    lr_factor: Callable[[Progress], float] | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    masters: Callable[[Tensor], Tensor | None] | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)

    def mean_loss(self, batch: Any) -> Tensor:
        """The loss of a batch, by `loss`. Raises: TaskError unless a step can be taken on it."""
        import torch

        assert self.loss is not None, "checked at load: there is `loss` or `step`"
        loss: Any = self.loss(self.model, batch)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
            return loss
        if not isinstance(loss, torch.Tensor):
            found = f"returned {type(loss).__name__}"
        elif loss.numel() != 1:
            found = f"returned a tensor of shape {tuple(loss.shape)}"
        else:
            found = "returned a tensor without a gradient"
        raise TaskError(
            f"Task.loss(model, batch) {found}",
            hint="It must give a scalar tensor that depends on the model's parameters",
        )

    def own_step(self, batch: Any, progress: Progress) -> StepResult:
        """A step by `step`. Raises: TaskError unless it says what it did."""
        assert self.step is not None, "checked at load: there is `loss` or `step`"
        result: Any = self.step(batch, progress)
        if not isinstance(result, StepResult):
            raise TaskError(
                f"Task.step(batch, progress) returned {type(result).__name__}",
                hint="It must return ddl.StepResult(loss=..., tokens=...)",
            )
        return result

    def num_tokens(self, batch: Any) -> int:
        """Tokens in a batch, by `tokens`. Raises: TaskError unless that is a whole number > 0."""
        assert self.tokens is not None, "checked at load: `loss` comes with `tokens`"
        return _check_tokens(self.tokens(batch), "Task.tokens(batch)")


Build: TypeAlias = Callable[[TaskContext], Task]
"""What a task file defines as `build`."""


def load_task(file: Path, ctx: TaskContext, *, own_args: Collection[str] = ()) -> Task:
    """Import a task file, build its task for `ctx`, and check it. Raises: as the two parts."""
    return build_task(file, import_task(file), ctx, own_args=own_args)


def import_task(file: Path) -> Build:
    """Run a task file, for its function `build`.

    Each call runs the file anew, under a private module name. The file's folder is appended to
    `sys.path`, so that it may import its neighbours but these never hide an installed module.
    Raises: TaskError, naming file, line and cause; what the file raised is its `__cause__`.
    """
    build = getattr(_import(file), "build", None)
    if not callable(build):
        raise TaskError(f"{file} defines no function `build`", hint=_BUILD_HINT)
    made: Build = build
    return made


def build_task(
    file: Path, build: Build, ctx: TaskContext, *, own_args: Collection[str] = ()
) -> Task:
    """Build the task of `file` for `ctx`, and check it.

    Args:
        own_args: arguments that only this machine gives. `build` must read them: else they are
            misspelt, and another data set is trained on than was meant.
    Raises: TaskError, naming file, line and cause; what the file raised is its `__cause__`.
    """
    args = _ReadArgs(ctx.args)
    try:
        task = build(replace(ctx, args=args))
    except (Exception, SystemExit) as error:
        raise _raised(file, "build(ctx)", error) from error
    if not isinstance(task, Task):
        raise TaskError(
            f"{file}: build(ctx) returned {type(task).__name__}, not ddl.Task",
            hint="Return ddl.Task(model=..., optimizer=..., batches=..., loss=..., tokens=...)",
        )
    with in_file(file):
        check_task(task, ctx)
        _check_read(args, own_args)
    return task


@contextmanager
def in_file(file: Path) -> Iterator[None]:
    """Let a TaskError of the block say which file's task is meant."""
    try:
        yield
    except TaskError as error:
        raise TaskError(f"{file}: {error.args[0]}", hint=error.hint) from None


def task_digest(file: Path) -> str:
    """SHA-256 of the task file's bytes, in hex; its imports do not count. Raises: TaskError."""
    return hashlib.sha256(_read(file)).hexdigest()


class _ReadArgs(Mapping[str, "Scalar"]):
    """Arguments that remember which of them were asked for."""

    def __init__(self, args: Mapping[str, Scalar]) -> None:
        self._args = args
        self.given = frozenset(args)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Scalar:
        self.asked.add(name)
        return self._args[name]

    def __iter__(self) -> Iterator[str]:
        self.asked.update(self._args)
        return iter(self._args)

    def __len__(self) -> int:
        return len(self._args)


def _check_read(args: _ReadArgs, own_args: Collection[str]) -> None:
    """Refuse misspelt arguments. One of `[task.args]` may be for another purpose than this one, so
    that it is not read proves nothing; that a name close to it is missed does. Raises: TaskError."""
    unread = sorted(set(own_args) - args.asked)
    if unread:
        near = difflib.get_close_matches(unread[0], sorted(args.asked), n=1)
        known = f"It asks for: {', '.join(sorted(args.asked)) or 'none'}"
        raise TaskError(
            f"--arg {unread[0]}: build(ctx) does not ask for such an argument",
            hint=f"Did you mean {near[0]!r}?" if near else known,
        )
    missed = sorted(args.asked - args.given)
    for name in sorted(args.given - args.asked):
        if near := difflib.get_close_matches(name, missed, n=1, cutoff=LIKE):
            raise TaskError(
                f"[task.args] {name}: build(ctx) does not ask for it, but for {near[0]!r}",
                hint=f"Call it {near[0]} in run.toml; where the run exists already, give "
                f"--arg {near[0]}=VALUE",
            )


def check_task(task: Task, ctx: TaskContext) -> None:
    """Refuse a task that cannot serve `ctx.purpose`. Raises: TaskError that names the field."""
    _check_fields(task)
    _check_device(task, ctx)
    if ctx.purpose == "train":
        _check_trainable(task)


_BUILD_HINT = "Define `def build(ctx: ddl.TaskContext) -> ddl.Task` in it"


def _read(file: Path) -> bytes:
    if file.is_dir():
        raise TaskError(f"task file {file} is a folder", hint="Give the .py file in it")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise TaskError(
            f"task file {file} does not exist", hint="Check --task, or task.file in run.toml"
        ) from None
    except OSError as error:
        raise TaskError(f"task file {file} cannot be read: {error.strerror}") from error


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Runs the file as it is now. Python's own would take bytecode of a file with the same size that
    was written in the same second, and would leave `__pycache__` beside the user's file."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the signature it has there
        return self.source_to_code(self.get_data(self.path), self.path)


def _import(file: Path) -> ModuleType:
    _read(file)
    path = file.resolve()
    name = f"{MODULE_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    # by loader, not by suffix: any file name will do
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module  # dataclasses and pickles of the file look their module up here
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _raised(file, "the import", error) from error
    return module


def _raised(file: Path, what: str, error: BaseException) -> TaskError:
    """The error of a task file, with the last of its own lines that led there."""
    path = str(file.resolve())
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    where = f"{file}:{lines[-1]}" if lines else str(file)
    detail = traceback.format_exception_only(error)[-1].strip()
    return TaskError(
        f"{where}: {what} of the task raised {detail}",
        hint="Mend the task file; `ddl --debug ...` shows the whole traceback",
    )


def _check_fields(task: Task) -> None:
    from torch import nn
    from torch.optim import Optimizer

    if not isinstance(task.model, nn.Module):
        raise TaskError(f"Task.model is {type(task.model).__name__}, not a torch.nn.Module")
    if task.optimizer is not None and not isinstance(task.optimizer, Optimizer):
        raise TaskError(
            f"Task.optimizer is {type(task.optimizer).__name__}, not a torch.optim.Optimizer"
        )
    if task.batches is not None and not isinstance(task.batches, Iterable):
        raise TaskError(f"Task.batches is {type(task.batches).__name__}, which is not iterable")
    for name in ("loss", "step", "tokens", "lr_factor", "evaluate"):
        value = getattr(task, name)
        if value is not None and not callable(value):
            raise TaskError(f"Task.{name} is {type(value).__name__}, which cannot be called")
    if task.loss is not None and task.step is not None:
        raise TaskError(
            "Task has both `loss` and `step`",
            hint="Give `loss` and let ddl do the step, or `step` to do all of it yourself",
        )
    for name, rule in task.rules.items():
        if rule not in get_args(Rule):
            raise TaskError(
                f"Task.rules[{name!r}] is {rule!r}", hint=f"Use one of {', '.join(get_args(Rule))}"
            )


def _check_device(task: Task, ctx: TaskContext) -> None:
    kinds = {p.device.type for p in task.model.parameters()}
    if kinds and ctx.device.type not in kinds:
        raise TaskError(
            f"Task.model stands on {', '.join(sorted(kinds))}, but was asked for on {ctx.device}",
            hint="Build it with model.to(ctx.device), before the optimizer",
        )


def _check_trainable(task: Task) -> None:
    if task.loss is None and task.step is None:
        raise TaskError(
            "Task has neither `loss` nor `step`",
            hint="Give loss=lambda model, batch: ..., a scalar tensor",
        )
    needed = ["optimizer", "batches", *(["tokens"] if task.loss is not None else [])]
    missing = [name for name in needed if getattr(task, name) is None]
    if missing:
        raise TaskError(
            f"Task has no {' and no '.join(missing)}, which training needs",
            hint="Only for the purposes init and evaluate may they be left out",
        )
    assert task.optimizer is not None
    held = {id(p) for group in task.optimizer.param_groups for p in group["params"]}
    if not any(p.requires_grad and id(p) in held for p in task.model.parameters()):
        raise TaskError(
            "Task.optimizer holds no trainable parameter of Task.model",
            hint="Make it from model.parameters() of this very model, after model.to(ctx.device)",
        )


def _check_tokens(tokens: int, what: str) -> int:
    if type(tokens) is not int or tokens <= 0:  # not bool, not a tensor
        raise TaskError(
            f"{what} is {tokens!r}",
            hint="It must be a whole number above 0: what the batch weighs in a merge",
        )
    return tokens
