"""Taking an existing run up again: is it this one, and what has changed since?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from ddl import config
from ddl.config import FIXED, FLAG, LIVE, Loaded, Scalar, Settings
from ddl.coordinator.genesis import build_model
from ddl.core.log import LogState
from ddl.errors import ConfigError, RefusedError
from ddl.journal import Journal
from ddl.protocol.records import Layout, RunEntry, RunRecord, TensorSpec
from ddl.task import task_digest

MACHINE_KEYS: Final = frozenset(
    {"task.file", "task.args", "store.url", "store.endpoint_url", "store.region"}
)
"""Fixed settings that may be spelt otherwise on another machine: the same run is reached by them."""


def check_entry(entry: RunEntry | None, run: RunRecord | None, store_url: str) -> None:
    """Refuse a name that another run has in this Redis.

    An entry is no obstacle if it tells of this very store: then the store knows better.
    Raises: RefusedError.
    """
    if entry is None or entry.store_url == store_url:
        return
    if run is None or entry.run.lineage != run.lineage:
        raise RefusedError(
            f"the name {entry.run.name!r} is taken in this Redis by another run (lineage "
            f"{entry.run.lineage[:8]}..., store {entry.store_url})",
            hint="Use another run.name, another Redis database, or that run's store",
        )


def check_run(run: RunRecord, loaded: Loaded, task_file: Path, journal: Journal) -> None:
    """Refuse settings and a task that are not those of the run.

    Only settings that were given are compared, not defaults. The model is built only if the task
    file or its arguments have changed.
    Raises: ConfigError, RefusedError, TaskError.
    """
    differences = [
        f"{key} = {config.get(run.settings, key)!r}, but {origin} says "
        f"{config.get(loaded.settings, key)!r}"
        for key, origin in _given(loaded, FIXED)
        if key not in MACHINE_KEYS
        and config.get(run.settings, key) != config.get(loaded.settings, key)
    ]
    if differences:
        raise ConfigError(
            f"run {run.name!r} was created with {'; with '.join(differences)}",
            hint="These are settled when a run is created: keep them, or use another run.name",
        )
    same_file = task_digest(task_file) == run.task_digest
    if not same_file:
        text = f"{task_file} is not the file that run {run.name!r} was created with"
        if run.settings.task.digest == "refuse":
            raise RefusedError(text, hint='Use that file; task.digest is "refuse" in this run')
        journal.tell("task.differs", text)
    if not same_file or loaded.settings.task.args != run.settings.task.args:
        _, layout = build_model(_with_args(run.settings, loaded.settings.task.args), task_file)
        _check_model(run, layout)


def live_changes(log: LogState, loaded: Loaded) -> dict[str, Scalar]:
    """Settings that were given, may change during a run, and are not those in force.

    One that a person has changed since it was given so, by `ddl set` or by a flag of an earlier start,
    is not among them: a coordinator that is started again undoes no orders.
    """
    return {
        key: value
        for key, value in _differing(log, loaded)
        if not _is_old(log, key, value, loaded.origins[key])
    }


def standing_orders(log: LogState, loaded: Loaded) -> str:
    """What people have ordered, where what was given says what that replaced, in one sentence; empty
    if there is nothing of the kind. One order may have changed several settings."""
    old = [
        (key, value)
        for key, value in _differing(log, loaded)
        if _is_old(log, key, value, loaded.origins[key])
    ]
    if not old:
        return ""
    now = ", ".join(f"{key} = {config.get(log.settings, key)}" for key, _ in old)
    before = ", ".join(f"{key} = {value}" for key, value in old)
    stand, are = ("stands, as it was", "is") if len(old) == 1 else ("stand, as they were", "are")
    return f"{now} {stand} ordered (by `ddl set` or --set); {before} {are} from before that"


def _differing(log: LogState, loaded: Loaded) -> Iterator[tuple[str, Scalar]]:
    for key, _ in _given(loaded, LIVE):
        value = config.get(loaded.settings, key)
        if value != config.get(log.settings, key):
            yield key, value


def _is_old(log: LogState, key: str, value: Scalar, origin: str) -> bool:
    if key in log.ordered and log.ordered[key] == value:
        return True
    return origin != FLAG and key in log.outdone and log.outdone[key] == value


def _given(loaded: Loaded, sections: tuple[str, ...]) -> list[tuple[str, str]]:
    """(key, origin) of the settings in these sections that are not left at their default."""
    return [
        (key, origin)
        for key, origin in loaded.origins.items()
        if origin != "default" and key.partition(".")[0] in sections
    ]


def _with_args(settings: Settings, args: dict[str, Scalar]) -> Settings:
    task = msgspec.structs.replace(settings.task, args=args)
    return msgspec.structs.replace(settings, task=task)


def _check_model(run: RunRecord, layout: Layout) -> None:
    if layout.fingerprint == run.layout.fingerprint:
        return
    raise RefusedError(
        f"run {run.name!r} is of another model: {_first_difference(run.layout, layout)}",
        hint="Use the task and its arguments that the run was created with, or another run.name",
    )


def _first_difference(run: Layout, ours: Layout) -> str:
    theirs = {spec.name: spec for spec in run.tensors}
    mine = {spec.name: spec for spec in ours.tensors}
    if unknown := sorted(mine.keys() - theirs.keys()):
        return f"it has no tensor {unknown[0]!r}, which this task's model has"
    if missing := sorted(theirs.keys() - mine.keys()):
        return f"it has the tensor {missing[0]!r}, which this task's model lacks"
    for name, spec in mine.items():
        for before, now in zip(_described(theirs[name]), _described(spec), strict=True):
            if before != now:
                return f"{name!r} is {before} in the run and {now} in this task"
    return "its tensors are tied or dealt to fragments in another way"


def _described(spec: TensorSpec) -> tuple[str, ...]:
    """What a tensor is, from the plainest on."""
    return f"{spec.dtype} {spec.shape}", f"a {spec.kind}", f"merged by the rule {spec.rule!r}"
