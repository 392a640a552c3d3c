"""`ddl evaluate`: measure versions of a run with its task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddl import config
from ddl.errors import ConfigError, RefusedError
from ddl.protocol.address import parse_address
from ddl_cli.arguments import key_values, scalar
from ddl_cli.resolve import RedisOption, RunArgument, StoreOption, resolve

if TYPE_CHECKING:
    from ddl.protocol.records import RunRecord


def evaluate(
    run: RunArgument,
    at: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Global version; may be given several times."),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Task file; else that of RUN, if it is a run.toml.",
            show_default=False,
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An argument of the task, on this machine."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda:N.")] = "auto",
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (Evaluation).")
    ] = False,
) -> None:
    """Measure versions of the model with the task's `evaluate`; the newest one by default.

    A version is read from the store, checked against the log, and never written anywhere.
    """
    args = {k: scalar(v) for k, v in key_values(arg or [], option="--arg").items()}
    place = resolve(run, redis=redis, store=store)
    file = task or _task_of(run)
    from ddl.coordinator.evaluate import Evaluation, Evaluator, evaluate_versions
    from ddl.coordinator.history import History
    from ddl.learner.run import choose_device
    from ddl.protocol.wire import canonical

    opened = place.find_store()
    try:
        record = History(opened, place.run).existing_run()
        _check_task(record, file)
        evaluator = Evaluator(file, record.settings, device=choose_device(device), args=args)
        measured = []
        for row in evaluate_versions(opened, record, at or [None], evaluator):
            measured.append(row)
            if not as_json:
                typer.echo(f"version {row.global_version}  {_shown(row.measures)}")
    finally:
        opened.close()
    if as_json:
        found = Evaluation(
            run=record.name, lineage=record.lineage, task=str(file), versions=tuple(measured)
        )
        typer.echo(canonical(found))


def _task_of(run: str) -> Path:
    """The task that a run.toml names. Raises: ConfigError when RUN is none."""
    toml = parse_address(run).toml_path
    if toml is None:
        raise ConfigError(
            "no task file is named", hint="Give --task FILE, or the run's run.toml as RUN"
        )
    return toml.parent / config.load(toml, environment=os.environ).settings.task.file


def _check_task(run: RunRecord, file: Path) -> None:
    from ddl.task import task_digest

    if task_digest(file) == run.task_digest:
        return
    text = f"{file} is not the task file that run {run.name!r} was created with"
    if run.settings.task.digest == "refuse":
        raise RefusedError(text, hint='Use that file; task.digest is "refuse" in this run')
    typer.echo(f"note: {text}", err=True)


def _shown(measures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.6g}" for name, value in measures.items())
