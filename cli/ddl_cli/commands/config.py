"""`ddl config`: what the settings are, and where each came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ddl import config
from ddl.protocol.address import safe_url
from ddl_cli.arguments import key_values
from ddl_cli.toml_text import toml_value

app = typer.Typer(help="Look at settings.", no_args_is_help=True)

SCHEMA = 1


@app.callback()
def _group() -> None:
    """Look at settings."""


@app.command("show")
def show(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN.toml]", help="A settings file.", show_default=False),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Such as round.quorum=3; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: schema, settings, origins.")
    ] = False,
    origin: Annotated[
        bool, typer.Option("--origin/--no-origin", help="Say where each value came from.")
    ] = True,
) -> None:
    """Show every setting, its value and where it came from.

    A flag stands above the environment, that above the file, and that above the default.
    In the environment a setting is DDL_SECTION_KEY, for example DDL_ROUND_QUORUM;
    DDL_REDIS and DDL_STORE are short for redis.url and store.url.

    The output is TOML. Passwords are shown as ***.
    """
    loaded = config.load(
        file, environment=os.environ, flags=key_values(changes or [], option="--set")
    )
    tables: dict[str, dict[str, Any]] = msgspec.to_builtins(loaded.settings)
    tables["redis"]["url"] = safe_url(tables["redis"]["url"])
    if as_json:
        document = {"schema": SCHEMA, "settings": tables, "origins": loaded.origins}
        typer.echo(msgspec.json.encode(document).decode())
    else:
        typer.echo(_toml(tables, loaded.origins if origin else None))


def _toml(tables: dict[str, dict[str, Any]], origins: dict[str, str] | None) -> str:
    blocks = []
    for section, table in tables.items():
        lines = [f"{key} = {toml_value(value)}" for key, value in table.items()]
        if origins is not None:
            width = max(map(len, lines))
            said = [origins[f"{section}.{key}"] for key in table]
            lines = [f"{line:<{width}}  # {o}" for line, o in zip(lines, said, strict=True)]
        blocks.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(blocks)
