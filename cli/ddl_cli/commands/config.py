"""`ddl config`: what the settings are, and where each came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ddl import config
from ddl.config import Loaded, Settings
from ddl.errors import ConfigError
from ddl.protocol.address import parse_address, safe_url
from ddl_cli.arguments import key_values
from ddl_cli.resolve import Place, RedisOption, StoreOption, resolve
from ddl_cli.toml_text import toml_value

app = typer.Typer(help="Look at settings.", no_args_is_help=True)

SCHEMA = 1


@app.callback()
def _group() -> None:
    """Look at settings."""


@app.command("show")
def show(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A settings file, or a run by its name or address.",
            show_default=False,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Such as round.quorum=3; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: schema, settings, origins, may_change.")
    ] = False,
    origin: Annotated[
        bool, typer.Option("--origin/--no-origin", help="Say where each value came from.")
    ] = True,
    redis: RedisOption = None,
    store: StoreOption = None,
) -> None:
    """Show every setting, its value and where it came from.

    Of a settings file, what a run started with it would have: a flag stands above the environment,
    that above the file, and that above the default. In the environment a setting is
    DDL_SECTION_KEY, for example DDL_ROUND_QUORUM; DDL_REDIS and DDL_STORE are short for redis.url
    and store.url.

    Of a run, the settings that are in force in it, and what those were that have been changed.

    The output is TOML. Passwords are shown as ***.
    """
    if run is None or parse_address(run).toml_path is not None:
        flags = key_values(changes or [], option="--set")
        file = Path(run) if run is not None else None
        loaded = config.load(file, environment=os.environ, flags=flags)
    elif changes:
        raise ConfigError(
            "--set is for a settings file", hint=f"`ddl set {run} KEY=VALUE` changes a run"
        )
    else:
        loaded = _of_run(resolve(run, redis=redis, store=store))
    tables: dict[str, dict[str, Any]] = msgspec.to_builtins(loaded.settings)
    tables["redis"]["url"] = safe_url(tables["redis"]["url"])
    if as_json:
        document = {
            "schema": SCHEMA,
            "settings": tables,
            "origins": loaded.origins,
            "may_change": config.LIVE,
        }
        typer.echo(msgspec.json.encode(document).decode())
    else:
        typer.echo(_toml(tables, loaded.origins if origin else None))


def _of_run(place: Place) -> Loaded:
    """What is in force in a run. Raises: UnknownRunError, RegistryError, StoreError."""
    created, settings = _in_force(place)
    origins = {}
    for key in config.all_keys():
        was, now = config.get(created, key), config.get(settings, key)
        origins[key] = "run" if was == now else f"changed during the run, was {toml_value(was)}"
    if place.redis_url is not None:  # it belongs to each machine, and is no part of the run
        redis = msgspec.structs.replace(settings.redis, url=place.redis_url)
        settings = msgspec.structs.replace(settings, redis=redis)
    origins["redis.url"] = "default" if place.redis_url is None else "RUN, --redis or DDL_REDIS"
    return Loaded(settings=settings, origins=origins)


def _in_force(place: Place) -> tuple[Settings, Settings]:
    """The settings that a run was created with, and those of now: as the log says, if the store is
    named, else as Redis shows them."""
    from ddl.coordinator.history import History

    if place.store_url is None:
        entry = place.entry()
        if entry is not None:
            return entry.run.settings, entry.settings
    opened = place.find_store()
    try:
        history = History(opened, place.run)
        record = history.existing_run()
        return record.settings, history.fold(record).settings
    finally:
        opened.close()


def _toml(tables: dict[str, dict[str, Any]], origins: dict[str, str] | None) -> str:
    blocks = []
    for section, table in tables.items():
        lines = [f"{key} = {toml_value(value)}" for key, value in table.items()]
        heading = f"[{section}]"
        if origins is not None:
            width = max(map(len, lines))
            said = [origins[f"{section}.{key}"] for key in table]
            lines = [f"{line:<{width}}  # {o}" for line, o in zip(lines, said, strict=True)]
            heading += f"  # {_when(section)}"
        blocks.append("\n".join([heading, *lines]))
    return "\n\n".join(blocks)


def _when(section: str) -> str:
    """Whether a table may change during a run."""
    if section in config.LIVE:
        return "may change during a run, by `ddl set`"
    return "of each machine" if section in config.LOCAL else "fixed when a run is created"
