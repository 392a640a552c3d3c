"""`ddl runs`: which runs there are, at a Redis or in a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ddl import config
from ddl.errors import ConfigError
from ddl.protocol.address import safe_url
from ddl_cli.resolve import REDIS_VARIABLE, STORE_VARIABLE, RedisOption, StoreOption

if TYPE_CHECKING:
    from ddl_cli.listing import RunList


def runs(
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (RunList).")
    ] = False,
) -> None:
    """List the runs that a Redis knows, or those that lie in a store.

    A store alone cannot tell whether anybody works on a run.
    """
    if redis is not None and store is not None:
        raise typer.BadParameter("--redis and --store exclude each other")
    redis_url = redis or (None if store else os.environ.get(REDIS_VARIABLE))
    store_url = store or os.environ.get(STORE_VARIABLE)
    if redis_url is not None:
        found = _at_redis(redis_url)
    elif store_url is not None:
        found = _in_store(store_url)
    else:
        raise ConfigError(
            "neither a Redis nor a store is named",
            hint=f"Give --redis or --store, or set {REDIS_VARIABLE} or {STORE_VARIABLE}",
        )
    if as_json:
        from ddl.protocol.wire import canonical

        typer.echo(canonical(found))
    elif found.runs:
        from rich.console import Console

        from ddl_cli.listing import lines
        from ddl_cli.view.paper import canvas

        console = Console(highlight=False)
        for line in lines(found, canvas(console)):
            console.print(line, soft_wrap=True)
    else:
        typer.echo(f"no runs at {found.where}", err=True)


def _at_redis(url: str) -> RunList:
    from ddl_cli.listing import RunList, runs_at_redis

    return RunList(where=safe_url(url), runs=tuple(runs_at_redis(url)))


def _in_store(url: str) -> RunList:
    from ddl_cli.listing import RunList, runs_in_store
    from ddl_cli.resolve import open_store

    opened = open_store(url, config.load(environment=os.environ).settings.store)
    try:
        return RunList(where=opened.url, runs=tuple(runs_in_store(opened)))
    finally:
        opened.close()
