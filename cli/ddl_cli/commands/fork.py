"""`ddl fork`: a new run that begins where another one was."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ddl_cli.arguments import key_values, scalar
from ddl_cli.resolve import RedisOption, RunArgument, StoreOption, resolve
from ddl_cli.toml_text import toml_value


def fork(
    run: RunArgument,
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Name of the new run.", show_default=False)
    ],
    at: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Global version; the newest by default."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the new run."),
    ] = None,
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (Forked).")
    ] = False,
) -> None:
    """Create a new run from one version of a run, in the same store; the old run stays as it is.

    The new run has the weights of that version, a log and lineage of its own, zero outer momentum,
    and the settings that were in force, but for those given with --set.
    """
    from ddl.coordinator.fork import fork_run
    from ddl.protocol.wire import canonical
    from ddl_cli.progress import bars

    settings = {k: scalar(v) for k, v in key_values(changes or [], option="--set").items()}
    place = resolve(run, redis=redis, store=store)
    opened = place.find_store()
    try:
        with bars() as tick:
            forked = fork_run(
                opened, place.run, name, at=at, changes=settings, now=time.time(), tick=tick
            )
    finally:
        opened.close()
    if as_json:
        typer.echo(canonical(forked))
        return
    typer.echo(
        f"{name} is made from version {forked.source_version} of {forked.source}, in {forked.store}"
    )
    for key, value in forked.changes.items():
        typer.echo(f"  {key} = {toml_value(value)}")
    typer.echo(
        f"start it from the run.toml of {forked.source}: "
        f"`ddl coordinator start run.toml --set run.name={name}`",
        err=True,
    )
