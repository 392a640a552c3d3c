"""The task file: whether it runs on this machine, and is the one that the run was started with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ddl.doctor.check import Check, fail, failed, ok, warn
from ddl.errors import TaskError
from ddl.protocol.records import RunRecord
from ddl.task import import_task, task_digest

NAME: Final = "task.file"


def check_task(file: Path, run: RunRecord | None, *, runs: bool) -> Check:
    """Look at a task file.

    Args:
        run: the run that is to train it, if there is one already.
        runs: also run the file for its `build`, which imports what the file does.
    """
    try:
        digest = task_digest(file)
        if runs:
            import_task(file)
    except TaskError as error:
        return failed(NAME, error)
    if run is not None and digest != run.task_digest:
        differs = f"{file} differs from the one that run {run.name!r} was started with"
        if run.settings.task.digest == "refuse":
            return fail(
                NAME, f"{differs}, which lets no other in (task.digest)", "Use the same file"
            )
        return warn(
            NAME,
            f"{differs}; with another model in it, the run refuses it",
            "Use the same file; for another model, another run.name",
        )
    runs_well = " can be imported and defines `build`" if runs else " can be read"
    return ok(NAME, str(file) + runs_well)
