"""`ddl doctor`: would a run work here, with this Redis, this store and this task file?"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from ddl import __version__, config
from ddl.names import counted
from ddl.places import spool_root
from ddl_cli.arguments import key_values
from ddl_cli.exits import Exit
from ddl_cli.resolve import (
    REDIS_VARIABLE,
    STORE_VARIABLE,
    Place,
    RedisOption,
    StoreOption,
    resolve,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ddl.doctor import Check

SCHEMA: Final = 1
MIB: Final = 1024**2

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run.toml, redis://HOST:PORT/DB?run=NAME, a name, or a store's address.",
            show_default=False,
        ),
    ] = None,
    redis: RedisOption = None,
    store: StoreOption = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting, such as store.endpoint_url=URL."
        ),
    ] = None,
    bandwidth: Annotated[
        int,
        typer.Option(metavar="MIB", min=0, help="Also move so many MiB up and down the store."),
    ] = 0,
    torch: Annotated[
        bool,
        typer.Option(
            "--torch/--no-torch", help="Look at torch and GPUs, run the task file (a few seconds)."
        ),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: schema, status and checks.")
    ] = False,
) -> None:
    """Check Redis, the object store, this machine and its task file before a run.

    Every line is ok, warn or fail; under one that is not ok stands the cure.
    Moves about 16 MB through the store, and leaves nothing in it.

    Exit codes: 0 no check failed (there may be warnings), 1 a check failed,
    2 a flag or the settings cannot be read.
    """
    from ddl.doctor import Target, examine

    flags = key_values(changes or [], option="--set")
    redis, store = redis or flags.get("redis.url"), store or flags.get("store.url")
    place = _place(run, redis=redis, store=store, environment=os.environ, flags=flags)
    checks = examine(
        Target(
            redis_url=place.redis_url,
            run=place.run or None,
            store_url=place.store_url,
            store=place.store,
            environment=os.environ,
            spool=spool_root(),
            bandwidth_bytes=bandwidth * MIB,
            torch=torch,
            task=place.task_file,
        )
    )
    if as_json:
        made = list(checks)
        typer.echo(msgspec.json.encode(_document(made)).decode())
    else:
        made = _print(checks)
    raise typer.Exit(Exit.FAILED if _worst(made) == "fail" else Exit.OK)


def _place(
    run: str | None,
    *,
    redis: str | None,
    store: str | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str],
) -> Place:
    """What RUN, flags and environment name; without RUN, a place without a run.

    Raises: ConfigError.
    """
    if run is not None:
        return resolve(run, redis=redis, store=store, environment=environment, flags=flags)
    redis_url = redis or environment.get(REDIS_VARIABLE)
    return Place(
        run="",
        redis_url=redis_url,
        store_url=store or environment.get(STORE_VARIABLE),
        store=config.load(environment=environment, flags=flags).settings.store,
    )


def _document(checks: list[Check]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "ddl_version": __version__,
        "host": socket.gethostname(),
        "status": _worst(checks),
        "checks": checks,
    }


def _worst(checks: list[Check]) -> str:
    seen = {check.status for check in checks}
    return next(status for status in ("fail", "warn", "ok") if status in seen)


def _print(checks: Iterator[Check]) -> list[Check]:
    """Print each check as soon as it is made, and what they come to."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    made = []
    for check in checks:
        _line(console, check)
        made.append(check)
    counts = {status: sum(c.status == status for c in made) for status in _STYLES}
    console.print(
        f"\n{counts['ok']} ok, {counted(counts['warn'], 'warning')}, {counts['fail']} failed"
    )
    return made


def _line(console: Console, check: Check) -> None:
    from rich.text import Text

    line = Text.assemble(
        (f"{check.status:<5}", _STYLES[check.status]), f"{check.name:<18} ", check.text
    )
    if check.cure:
        line.append(f"\n     -> {check.cure}", "bold")
    console.print(line)
