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
    """Show a run: its learners, open rounds, version, loss and newest events.

    On a terminal this is a live view, until the run ends or Ctrl-C.

    If Redis does not answer, or does not know the run, and a store is named,
    the newest record in the store is shown instead.
    """
    if once and watch is not None:
        raise typer.BadParameter("--once and --watch exclude each other")
    from rich.console import Console

    from ddl_cli import display
    from ddl_cli.reading import Reader, first_look, reading

    place = resolve(run, redis=redis, store=store)
    read = reading(place)
    snapshot, code = first_look(place, read)
    console = Console(highlight=False)
    on_screen = display.is_screen(console) and not as_json
    follow = (watch is not None or (on_screen and not once)) and snapshot.services["redis"].ok
    shown: display.Display
    if as_json:
        shown = display.JsonLines()
    elif not follow:
        shown = display.Table(console)
    elif on_screen:
        shown = display.Screen(console)
    else:
        shown = display.Lines(typer.echo)
    reader = Reader(read, snapshot)
    with shown.running():
        shown.show(snapshot)
        looks = 1
        while follow and looks != watch and not display.is_over(snapshot):
            time.sleep(interval)
            snapshot, notice = reader.next()
            shown.show(snapshot, notice)
            looks += 1
    raise typer.Exit(code)
