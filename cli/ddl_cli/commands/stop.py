"""`ddl stop`: end a run."""

from __future__ import annotations

import getpass
import secrets
import time
from typing import Annotated, Final

import typer

from ddl.errors import DdlError
from ddl_cli.resolve import RedisOption, RunArgument, resolve

LOOK_S: Final = 0.2
"""Between two looks whether the run has stopped."""


def stop(
    run: RunArgument,
    redis: RedisOption = None,
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the log.")] = "",
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds to wait for the run's end.")
    ] = 60.0,
) -> None:
    """End a run: its coordinator writes that into the log, and the learners leave.

    `ddl coordinator start` takes the run up again.
    """
    from ddl.protocol.records import Request

    place = resolve(run, redis=redis)
    registry = place.reader()
    try:
        view = registry.view(num_facts=0)
        if view.head is not None and view.head.state == "stopped":
            typer.echo(f"{place.run} has stopped already, at version {view.head.global_version}")
            return
        if view.entry is not None and view.lease is None:
            raise DdlError(
                f"no coordinator of {place.run!r} is running, so nothing can end the run",
                hint="Its learners can be ended one by one; the run goes on when it is started",
            )
        who, id_ = getpass.getuser(), secrets.token_hex(8)
        registry.request(Request(id=id_, kind="stop", who=who, why=why, at=view.now))
        deadline = time.monotonic() + timeout
        while view.head is None or view.head.state != "stopped":
            if time.monotonic() >= deadline:
                raise DdlError(
                    f"{place.run!r} has not stopped within {timeout:g} s; the wish stands",
                    hint=f"See `ddl status {run} --once` for what it waits for",
                )
            time.sleep(LOOK_S)
            view = registry.view(num_facts=0)
    finally:
        registry.close()
    typer.echo(f"{place.run} has stopped, at version {view.head.global_version}")
