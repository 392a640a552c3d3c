"""`ddl pause`, `resume`, `set` and `rollback`: change the course of a run under way.

Each becomes a record in the log, with who asked, when and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from ddl import config
from ddl_cli.arguments import key_values
from ddl_cli.asking import TimeoutOption, WhyOption, ask
from ddl_cli.resolve import Place, RedisOption, RunArgument, resolve


def pause(
    run: RunArgument,
    redis: RedisOption = None,
    why: WhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Let a run stand still: nothing is merged, and its learners wait at their next step."""
    from ddl.protocol.records import Request

    place = resolve(run, redis=redis)
    head = ask(place, Request(id="", kind="pause", who="", why=why), timeout_s=timeout)
    typer.echo(f"{place.run} is paused, at version {head.global_version}")


def resume(
    run: RunArgument,
    redis: RedisOption = None,
    why: WhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Let a run go on that was paused, or that is held because its model went bad.

    What made it bad counts as healthy from then on; `ddl rollback` undoes it instead.
    """
    from ddl.protocol.records import Request

    place = resolve(run, redis=redis)
    ask(place, Request(id="", kind="resume", who="", why=why), timeout_s=timeout)
    typer.echo(f"{place.run} goes on")


def set_(
    run: RunArgument,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE", help="Settings, such as round.quorum=3.", show_default=False
        ),
    ],
    redis: RedisOption = None,
    why: WhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Change settings of a run; all of them, or none if one of them cannot be.

    `ddl config show` tells which settings may change during a run.
    """
    from ddl.protocol.records import Request

    place = resolve(run, redis=redis)
    values = config.read_changes(key_values(changes, option="ddl set"))
    _check(place, values)
    wish = Request(id="", kind="set", who="", why=why, changes=values)
    ask(place, wish, timeout_s=timeout)
    for key, value in values.items():
        typer.echo(f"{key} = {value}")


def _check(place: Place, values: Mapping[str, config.Scalar]) -> None:
    """Refuse values that no coordinator could take, as a settings file with them would be refused.

    Raises: ConfigError, RegistryError.
    """
    entry = place.entry()
    if entry is not None:
        config.replace(entry.settings, values)


def rollback(
    run: RunArgument,
    to: Annotated[
        int,
        typer.Option("--to", metavar="N", help="Global version to go back to.", show_default=False),
    ],
    redis: RedisOption = None,
    why: WhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Take up an earlier version of the model again, with its momentum and its progress.

    It becomes the newest version; what learners have trained since is thrown away.
    Versions that the keep settings let go cannot be gone back to.
    """
    from ddl.protocol.records import Request

    place = resolve(run, redis=redis)
    wish = Request(id="", kind="rollback", who="", why=why, version=to)
    head = ask(place, wish, timeout_s=timeout)
    typer.echo(f"{place.run} goes on from version {to}, as its version {head.global_version}")
