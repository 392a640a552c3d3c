"""`ddl status`: what a run is doing."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ddl_cli.resolve import RedisOption, RunArgument, StoreOption, resolve


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
    """Show a run: what is wrong with it, its learners, open rounds, loss and newest events.

    On a terminal this is a live view, until the run ends, q or Ctrl-C; ? tells the other keys, and
    what the words mean.

    If Redis does not answer, or does not know the run, and a store is named,
    what the log in the store tells is shown instead.
    """
    if once and watch is not None:
        raise typer.BadParameter("--once and --watch exclude each other")
    from rich.console import Console

    from ddl_cli import display
    from ddl_cli.reading import Reader, Source, first_look
    from ddl_cli.view.paper import is_screen

    place = resolve(run, redis=redis, store=store)
    source = Source(place)
    snapshot, code = first_look(place, source.read)
    console = Console(highlight=False)
    on_screen = is_screen(console) and not as_json
    follow = (watch is not None or (on_screen and not once)) and snapshot.services["redis"].ok
    reader = Reader(source.read, snapshot)
    looks = watch or None
    if follow and on_screen:
        from ddl_cli.view.screen import live

        live(
            console,
            snapshot,
            reader.next,
            facts=source.backlog(),
            interval_s=interval,
            looks=looks,
            is_over=display.is_over,
        )
        raise typer.Exit(code)
    shown: display.Display
    if as_json:
        shown = display.JsonLines()
    elif follow:
        shown = display.Lines(typer.echo, since_at=snapshot.taken_at)
    else:
        shown = display.Table(console)
    shown.show(snapshot)
    seen = 1
    while follow and seen != looks and not display.is_over(snapshot):
        time.sleep(interval)
        snapshot, notice = reader.next()
        shown.show(snapshot, notice)
        seen += 1
    raise typer.Exit(code)
