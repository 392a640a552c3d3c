"""`ddl export`: the model of a run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddl.errors import DdlError
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve

if TYPE_CHECKING:
    from ddl.store.base import Store


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
    opened = _open_store(place)
    try:
        exported = export_model(opened, place.run, out, at=at)
    finally:
        opened.close()
    typer.echo(msgspec.json.encode(exported).decode() if as_json else exported.path)


def _open_store(place: Place) -> Store:
    """The store that was named, else the one that Redis knows the run by."""
    if place.store_url is not None:
        return place.open_store()
    from ddl.store.open_url import open_url

    registry = place.reader()
    try:
        entry = registry.read_entry()
    finally:
        registry.close()
    if entry is None:
        raise DdlError(
            f"Redis does not know the run {place.run!r}",
            hint="Give the store instead, as file:///DIR/NAME or s3://BUCKET/PREFIX/NAME",
        )
    return open_url(entry.store_url, settings=entry.run.settings.store)
