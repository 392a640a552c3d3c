"""Measuring versions of a model with the task that trained it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ddl.config import Scalar, Settings
from ddl.coordinator.export import read_version
from ddl.errors import IntegrityError, RefusedError, TaskError
from ddl.merge.inspect import describe_model
from ddl.protocol.records import Record, RunRecord
from ddl.protocol.wire import SCHEMA
from ddl.store.base import Store
from ddl.task import TaskContext, load_task


class Measured(Record, frozen=True, kw_only=True):
    """One version, the log record that made it, and what the task's `evaluate` says of it."""

    global_version: int
    seq: int
    progress: float
    measures: dict[str, float]


class Evaluation(Record, frozen=True, kw_only=True):
    """What `ddl evaluate --json` prints."""

    schema: int = SCHEMA
    run: str
    lineage: str
    task: str
    versions: tuple[Measured, ...]


class Evaluator:
    """A task, built once, to measure any number of versions with.

    Args:
        task_file: the task; it builds the model and holds the measure.
        settings: of the run.
        device: where to measure; the CPU by default.
        args: overrides of `[task.args]`.
    Raises: TaskError: the task has no `evaluate`, or cannot be built.
    """

    def __init__(
        self,
        task_file: Path,
        settings: Settings,
        *,
        device: torch.device | None = None,
        args: Mapping[str, Scalar] | None = None,
    ) -> None:
        self._seed = settings.run.seed
        context = TaskContext(
            run=settings.run.name,
            seed=self._seed,
            purpose="evaluate",
            learner=None,
            incarnation=0,
            data_seed=self._seed,
            device=device or torch.device("cpu"),
            rank=0,
            world_size=1,
            args={**settings.task.args, **(args or {})},
        )
        own_args = (args or {}).keys() - settings.task.args.keys()
        task = load_task(task_file, context, own_args=own_args)
        if task.evaluate is None:
            raise TaskError(
                f"{task_file}: the task has no `evaluate`",
                hint="Give ddl.Task(evaluate=lambda model: {'loss': ...})",
            )
        self._file = task_file
        self._model = task.model
        self._evaluate = task.evaluate
        description = describe_model(task.model)
        self._tensors = {**description.tensors, **description.frozen}

    def measure(self, weights: Mapping[str, Tensor], *, what: str) -> dict[str, float]:
        """What the task's `evaluate` says of these weights: equal weights give equal numbers.

        Args:
            weights: a whole model under canonical names.
            what: names it in an error.
        Raises:
            TaskError: `evaluate` raises, or gives anything but numbers by name.
            RefusedError: it is another model.
        """
        self._load(weights, what)
        self._model.eval()
        # a measure may draw samples: let them be the same ones for every version
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(self._seed)
            try:
                measures: Any = self._evaluate(self._model)
            except Exception as error:
                raise TaskError(
                    f"{self._file}: `evaluate` raised {type(error).__name__}: {error}",
                    hint="`ddl --debug ...` shows the whole traceback",
                ) from error
        try:
            return {str(name): float(value) for name, value in measures.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise TaskError(
                f"{self._file}: `evaluate` returned {measures!r:.80}",
                hint="It must give numbers by name, such as {'loss': 0.5}",
            ) from error

    def _load(self, weights: Mapping[str, Tensor], what: str) -> None:
        if weights.keys() != self._tensors.keys():
            different = sorted(weights.keys() ^ self._tensors.keys())
            raise RefusedError(
                f"{what} does not hold the task's model: {different[0]!r} is in one of them only",
                hint="Use the task file and the arguments of the run",
            )
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                if weights[name].shape != tensor.shape:
                    raise RefusedError(
                        f"{what} does not hold the task's model: {name!r} is "
                        f"{tuple(weights[name].shape)} in it, {tuple(tensor.shape)} in the task",
                        hint="Use the task file and the arguments of the run",
                    )
                tensor.copy_(weights[name])


def evaluate_versions(
    store: Store, run: RunRecord, versions: Iterable[int | None], evaluator: Evaluator
) -> Iterator[Measured]:
    """Measure global versions of a run, in the order given; None stands for the newest.

    Raises: ConfigError: no such version; RefusedError: one is not kept; IntegrityError: an object is
        missing or damaged; otherwise as `Evaluator.measure`; StoreError.
    """
    for version in versions:
        log, weights = read_version(store, run, version)
        what = f"version {log.global_version} of run {run.name!r}"
        yield Measured(
            global_version=log.global_version,
            seq=log.seq,
            progress=log.progress,
            measures=evaluator.measure(weights, what=what),
        )


def evaluate_file(
    weights: Path, *, task_file: Path, settings: Settings, device: torch.device | None = None
) -> dict[str, float]:
    """`Evaluator.measure` of an exported safetensors file, as `export_model` writes it.

    Raises: TaskError; IntegrityError: the file cannot be read; RefusedError: it holds another model.
    """
    evaluator = Evaluator(task_file, settings, device=device)
    try:
        found = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise IntegrityError(f"{weights} cannot be read: {error}") from error
    return evaluator.measure(found, what=str(weights))
