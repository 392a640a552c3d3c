"""`ddl status`: what a run is doing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Console

from ddl.coordinator.history import History
from ddl.core.snapshot import snapshot, snapshot_of_log
from ddl.errors import DdlError, RegistryError
from ddl.protocol.address import safe_url
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import RunSnapshot
from ddl.store.search import last_present
from ddl_cli import display
from ddl_cli.exits import Exit
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve

EVENTS_READ: Final = 100
"""Newest events that one look at Redis brings: more than come between two looks."""


def status(
    run: RunArgument,
    redis: RedisOption = None,
    store: StoreOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Show the present state and end; no live view.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object (RunSnapshot); a line each with --watch."),
    ] = False,
    watch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Look N times, 0: until the run ends. Plain lines in a log."
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Show a run: its learners, open rounds, version, loss and newest events.

    On a terminal this is a live view, until the run ends or Ctrl-C.

    If Redis does not answer, or does not know the run, and a store is named,
    the newest record in the store is shown instead.
    """
    if once and watch is not None:
        raise typer.BadParameter("--once and --watch exclude each other")
    console = Console(highlight=False)
    place = resolve(run, redis=redis, store=store)
    read = _reading(place)
    first, code = _first(place, read)
    live = display.is_screen(console) and not as_json
    follow = watch is not None or (live and not once)
    shown: display.Display
    if as_json:
        shown = display.JsonLines()
    elif live and follow:
        shown = display.Screen(console)
    elif follow:
        shown = display.Lines(typer.echo)
    else:
        shown = display.Table(console)
    reader = display.Reader(read, first)
    with shown.running():
        shown.show(first)
        looks = 1
        while follow and not display.is_over(first) and looks != watch and code is Exit.OK:
            time.sleep(interval)
            first, notice = reader.next()
            shown.show(first, notice)
            looks += 1
    raise typer.Exit(code)


def _reading(place: Place) -> Callable[[], RunSnapshot | None]:
    """Reads the run from Redis; finds nothing where no Redis is named but a store is."""
    if place.redis_url is None and place.store_url is not None:
        return lambda: None
    registry = place.reader()
    return lambda: snapshot(registry.view(num_facts=EVENTS_READ))


def _first(place: Place, read: Callable[[], RunSnapshot | None]) -> tuple[RunSnapshot, Exit]:
    """The run as Redis shows it, else as the store does.

    Raises: the RegistryError, or DdlError that the run is unknown, if no store is named.
    """
    where = safe_url(place.redis_url) if place.redis_url else ""
    code, reason = Exit.OK, f"{where} does not know this run" if where else "not named"
    try:
        found = read()
    except RegistryError as error:
        if place.store_url is None:
            raise
        found, code, reason = None, Exit.UNREACHABLE, str(error)
    if found is not None:
        return found, Exit.OK
    if place.store_url is None:
        raise DdlError(
            f"Redis at {where} does not know the run {place.run!r}",
            hint="`ddl runs` lists those it knows; with --store the log in the store can be read",
        )
    return _from_store(place, reason), code


def _from_store(place: Place, reason: str) -> RunSnapshot:
    """The run as the newest record in the store tells it. Raises: DdlError, StoreError."""
    store = place.open_store()
    try:
        history = History(store, place.run)
        run = history.run_record()
        if run is None:
            raise DdlError(
                f"there is no run {place.run!r} in {store.url}",
                hint="A store's address in --store or DDL_STORE stands without the run's name",
            )
        keys = ObjectKeys(place.run)
        seq = last_present(lambda number: store.head(keys.commit(number)) is not None)
        newest = history.read(seq) if seq else None
        return snapshot_of_log(run, newest.record if newest else None, redis_error=reason)
    finally:
        store.close()
