"""`ddl exits`: what exit codes mean."""

from __future__ import annotations

from typing import Annotated

import typer

from ddl.errors import ConfigError
from ddl_cli.exits import EXPLAINED, Exit


def exits(
    code: Annotated[
        int | None, typer.Argument(metavar="[CODE]", help="Only this one.", show_default=False)
    ] = None,
) -> None:
    """Tell what an exit code of `ddl` means, and what to do about it; without one, all of them."""
    if code is not None and code not in EXPLAINED:
        raise ConfigError(
            f"ddl never ends with {code}",
            hint="Above 128 it is a signal: 137 is SIGKILL, 143 is SIGTERM"
            if code > 128
            else "`ddl exits` lists the codes it ends with",
        )
    for one in EXPLAINED if code is None else (Exit(code),):
        told = EXPLAINED[one]
        typer.echo(f"{one.value:>3}  {told.meaning}\n     To do: {told.todo}.")
