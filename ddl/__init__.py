"""Decoupled DiLoCo: one model, many machines that come and go.

The names below are what a training script or a task file needs. They are looked up when first
used, so that `import ddl` alone brings in neither torch nor redis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddl.learner.learner import Learner
    from ddl.task import Progress, StepResult, Task, TaskContext

__version__ = "0.1.0"

__all__ = ["Learner", "Progress", "StepResult", "Task", "TaskContext"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "ddl.learner.learner" if name == "Learner" else "ddl.task"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
