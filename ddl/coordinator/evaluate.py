"""Measuring an exported model with the task that trained it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ddl.config import Settings
from ddl.errors import IntegrityError, TaskError
from ddl.merge.inspect import describe_model
from ddl.task import TaskContext, load_task


def evaluate_file(
    weights: Path, *, task_file: Path, settings: Settings, device: torch.device | None = None
) -> dict[str, float]:
    """What the task's `evaluate` says of the weights in an exported safetensors file.

    Args:
        weights: a whole model under canonical names, as `export_model` writes it.
        task_file: the task; it builds the model and holds the measure.
        settings: of the run.
        device: where to measure; the CPU by default.
    Raises:
        TaskError: the task has no `evaluate`, or something in it raises.
        IntegrityError: the file cannot be read, or holds another model.
    """
    device = device or torch.device("cpu")
    context = TaskContext(
        run=settings.run.name,
        seed=settings.run.seed,
        purpose="evaluate",
        learner=None,
        incarnation=0,
        data_seed=settings.run.seed,
        device=device,
        rank=0,
        world_size=1,
        args=settings.task.args,
    )
    task = load_task(task_file, context)
    if task.evaluate is None:
        raise TaskError(
            f"{task_file}: the task has no `evaluate`",
            hint="Give ddl.Task(evaluate=lambda model: {'loss': ...})",
        )
    try:
        found = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise IntegrityError(f"{weights} cannot be read: {error}") from error
    description = describe_model(task.model)
    tensors = {**description.tensors, **description.frozen}
    if found.keys() != tensors.keys():
        different = sorted(found.keys() ^ tensors.keys())
        raise IntegrityError(
            f"{weights} does not hold the task's model: {different[0]!r} is in one of them only"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(found[name])
    task.model.eval()
    return {name: float(value) for name, value in task.evaluate(task.model).items()}
