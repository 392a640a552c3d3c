"""`ddl stop`: end a run."""

from __future__ import annotations

import typer

from ddl_cli.asking import TimeoutOption, WhyOption, ask
from ddl_cli.resolve import RedisOption, RunArgument, resolve


def stop(
    run: RunArgument,
    redis: RedisOption = None,
    why: WhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """End a run: its coordinator writes that into the log, and the learners leave.

    `ddl coordinator start` takes the run up again.
    """
    from ddl.protocol.records import Request

    place = resolve(run, redis=redis)
    registry = place.reader()
    try:
        head = registry.view(num_facts=0).head
    finally:
        registry.close()
    if head is not None and head.state == "stopped":
        typer.echo(f"{place.run} has stopped already, at version {head.global_version}")
        return
    head = ask(place, Request(id="", kind="stop", who="", why=why), timeout_s=timeout)
    typer.echo(f"{place.run} has stopped, at version {head.global_version}")
