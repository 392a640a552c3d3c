"""`ddl export`: the model of a run as a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ddl_cli.resolve import RedisOption, RunArgument, StoreOption, resolve


class Form(StrEnum):
    SAFETENSORS = "safetensors"
    HF = "hf"


def export(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write to.", show_default=False)
    ],
    at: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Global version; the newest by default."),
    ] = None,
    form: Annotated[
        Form,
        typer.Option(
            "--format",
            help="safetensors: RUN-vN.safetensors. hf: model.safetensors, or shards of 5 GB with "
            "their index, as Hugging Face's libraries load them beside the model's own config.json.",
        ),
    ] = Form.SAFETENSORS,
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the path.")
    ] = False,
) -> None:
    """Write one version of the model as safetensors, and print where.

    Every byte is checked against the run's log. With a store's address nothing else is needed.
    """
    import msgspec

    from ddl.coordinator.export import export_for_hub, export_model

    place = resolve(run, redis=redis, store=store)
    opened = place.find_store()
    try:
        if form is Form.HF:
            shards = export_for_hub(opened, place.run, out, at=at)
            text, told = shards.folder, msgspec.json.encode(shards)
        else:
            whole = export_model(opened, place.run, out, at=at)
            text, told = whole.path, msgspec.json.encode(whole)
    finally:
        opened.close()
    typer.echo(told.decode() if as_json else text)
