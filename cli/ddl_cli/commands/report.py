"""`ddl report`: a run on one page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ddl.core.facts import by_time
from ddl.errors import ConfigError, RegistryError
from ddl_cli.report.canvas import figure_class
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve

if TYPE_CHECKING:
    from ddl.protocol.records import Fact, RunRecord

PAGE: Final = "index.html"
FACTS_READ: Final = 4096


def report(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the page; made if need be.")
    ],
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: schema, page, versions.")
    ] = False,
) -> None:
    """Write a run as one HTML page with plots, from its log; readable offline.

    Loss, who took part, what each contributed, what rounds waited for, bytes, and all that happened.
    Of deaths only Redis knows: without it, they are not marked. Needs the extra `plot`.
    """
    figure_class("a report")  # before anything is read
    place = resolve(run, redis=redis, store=store)
    facts = _facts(place)
    from ddl.coordinator.history import History
    from ddl.protocol.wire import SCHEMA, canonical
    from ddl_cli.records import read_log
    from ddl_cli.report.page import render
    from ddl_cli.report.plots import draw_all
    from ddl_cli.report.story import gather

    opened = place.find_store()
    try:
        history = History(opened, place.run)
        record = history.existing_run()
        story = gather(record, read_log(history), payload_bytes=payload_bytes(record), facts=facts)
    finally:
        opened.close()
    page = render(story, draw_all(story), written_at=time.time())
    file = out / PAGE
    try:
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {file} cannot be written: {error.strerror}") from error
    if as_json:
        told = {"schema": SCHEMA, "page": str(file), "versions": len(story.steps)}
        typer.echo(canonical(told))
    else:
        typer.echo(f"{file}: {len(story.steps)} versions of {place.run}")


def _facts(place: Place) -> tuple[Fact, ...]:
    """What Redis still knows of events; nothing where none is named, or it does not answer."""
    if place.redis_url is None:
        return ()
    registry = place.reader()
    try:
        return by_time(fact for _, fact in registry.facts(limit=FACTS_READ))
    except RegistryError as error:
        if place.store_url is None:
            raise
        typer.echo(f"deaths are not marked: {error}", err=True)
        return ()
    finally:
        registry.close()


def payload_bytes(run: RunRecord) -> list[int]:
    """Size of a contribution of each fragment; headers differ by some bytes."""
    from ddl.codec.codecs import CODECS
    from ddl.codec.contribution import contribution_bytes

    codec = CODECS[run.settings.codec.up]
    return [contribution_bytes(specs, codec, b"{}") for specs in run.layout.by_fragment]
