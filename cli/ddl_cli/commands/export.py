"""`ddl export`: the model of a run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddl_cli.resolve import RedisOption, RunArgument, StoreOption, resolve


def export(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write to.", show_default=False)
    ],
    at: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Global version; the newest by default."),
    ] = None,
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the path.")
    ] = False,
) -> None:
    """Write one version of the model as one safetensors file, and print its path.

    Every byte is checked against the run's log. With a store's address nothing else is needed.
    """
    import msgspec

    from ddl.coordinator.export import export_model

    place = resolve(run, redis=redis, store=store)
    opened = place.find_store()
    try:
        exported = export_model(opened, place.run, out, at=at)
    finally:
        opened.close()
    typer.echo(msgspec.json.encode(exported).decode() if as_json else exported.path)
