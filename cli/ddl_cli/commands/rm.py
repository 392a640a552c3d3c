"""`ddl rm`: delete a run, its objects and its keys in Redis."""

from __future__ import annotations

import getpass
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ddl.errors import DdlError, RefusedError
from ddl_cli.resolve import RedisOption, RunArgument, StoreOption, resolve
from ddl_cli.units import short_number

if TYPE_CHECKING:
    from ddl.coordinator.remove import Remains
    from ddl.registry.base import View
    from ddl.store.base import Store


def rm(
    run: RunArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if processes of the run are alive, or nobody can tell whether."
        ),
    ] = False,
    redis: RedisOption = None,
    store: StoreOption = None,
) -> None:
    """Delete a run for good: every object in its store and every key in its Redis.

    If this is interrupted, what is left is no run any more; the same command finishes it.
    """
    from ddl.coordinator.remove import find_remains, remove_objects
    from ddl_cli.progress import bars

    place = resolve(run, redis=redis, store=store)
    opened = place.find_store()
    registry = place.reader() if place.redis_url is not None else None
    try:
        remains = find_remains(opened, place.run)
        view = registry.view(num_facts=0) if registry is not None else None
        if view is not None and not _is_of(view, remains, opened):
            view = None  # Redis knows another run by this name: it stays as it is
        if not remains.keys and (view is None or view.entry is None):
            raise DdlError(f"there is nothing of a run {place.run!r} in {opened.url}")
        if not force:
            _check_at_rest(place.run, view)
        if not yes:
            typer.confirm(
                f"Delete {place.run} for good: {len(remains.keys)} objects "
                f"({short_number(remains.bytes)}B) in {opened.url}"
                + (" and its keys in Redis" if view is not None else "")
                + "?",
                abort=True,
                err=True,
            )
        with bars() as tick:
            who = getpass.getuser()
            remove_objects(opened, place.run, remains, who=who, now=time.time(), tick=tick)
        # last of all: until here, Redis still tells where the objects are
        if registry is not None and view is not None:
            registry.remove_run()
    finally:
        opened.close()
        if registry is not None:
            registry.close()
    typer.echo(f"{place.run} is deleted: {len(remains.keys)} objects in {opened.url}")


def _is_of(view: View, remains: Remains, store: Store) -> bool:
    """Whether what Redis shows is the run that lies in the store."""
    if view.entry is None:
        return True
    if remains.lineage:
        return view.entry.run.lineage == remains.lineage
    return view.entry.store_url == store.url


def _check_at_rest(run: str, view: View | None) -> None:
    """Raises: RefusedError that names who is alive, or that nobody can tell."""
    from ddl.core.snapshot import PRESENT, snapshot

    if view is None:
        raise RefusedError(
            f"no Redis that knows {run!r} is named, so nobody can tell whether it is in use",
            hint="Give --redis URL, or --force if you are sure",
        )
    alive = [f"the coordinator {view.lease.holder}"] if view.lease is not None else []
    shown = snapshot(view)
    alive += (
        [f"learner {row.id}" for row in shown.learners if row.state in PRESENT] if shown else []
    )
    if alive:
        raise RefusedError(
            f"{run!r} is in use, by {', '.join(alive)}",
            hint=f"End it first with `ddl stop {run}`; --force deletes it all the same",
        )
