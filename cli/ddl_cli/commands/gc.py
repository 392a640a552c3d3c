"""`ddl gc`: remove objects of a run that nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddl.errors import RegistryError
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve
from ddl_cli.units import short_number

if TYPE_CHECKING:
    from ddl.coordinator.sweep import Swept


def gc(
    run: RunArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be removed.")
    ] = False,
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (Swept).")] = False,
) -> None:
    """Remove what a run's keep settings let go; its coordinator does so by itself, too.

    This judges everything anew, also what earlier settings kept for good. The log, and what
    learners hold, is never removed. The run may be going on meanwhile.
    """
    place = resolve(run, redis=redis, store=store)
    held = _held(place)
    from ddl.coordinator.sweep import collect
    from ddl.protocol.wire import canonical

    opened = place.find_store()
    try:
        swept = collect(opened, place.run, held=held, dry_run=dry_run)
    finally:
        opened.close()
    typer.echo(canonical(swept) if as_json else text(swept))


def text(swept: Swept) -> str:
    """What was, or would be, removed."""
    verb = "would remove" if swept.dry_run else "removed"
    return (
        f"{swept.run} at version {swept.global_version}: {verb} "
        f"{swept.num_published + swept.num_leftovers} objects of versions, "
        f"{swept.num_contributions} contributions ({short_number(swept.bytes)}B)"
        + (f", {swept.num_uploads} unfinished uploads" if swept.num_uploads else "")
    )


def _held(place: Place) -> frozenset[tuple[int, int]]:
    """What living learners hold, as Redis shows it; nothing if no Redis is named, or none answers
    that is not needed to find the store."""
    from ddl.core.membership import PRESENT
    from ddl.core.snapshot import snapshot

    if place.redis_url is None:
        return frozenset()
    registry = place.reader()
    try:
        shown = snapshot(registry.view(num_facts=0))
    except RegistryError as error:
        if place.store_url is None:
            raise
        typer.echo(f"not known what learners hold: {error}", err=True)
        return frozenset()
    finally:
        registry.close()
    return frozenset(
        (fragment, version)
        for learner in (shown.learners if shown else ())
        if learner.state in PRESENT
        for fragment, version in enumerate(learner.held)
    )
