"""`ddl rm`: delete a run, its objects and its keys in Redis."""

from __future__ import annotations

import getpass
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddl.config import LivenessSettings
from ddl.errors import RefusedError, UnknownRunError
from ddl.names import counted
from ddl.places import spool_root
from ddl.protocol.address import safe_url
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve
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
    """Delete a run for good: every object in its store, every key in its Redis, and what its learners
    keep in the spool of this machine. Other machines keep theirs.

    If this is interrupted, what is left is no run any more; the same command finishes it.
    """
    from ddl.coordinator.remove import NOTHING, find_remains, remove_objects
    from ddl.learner.spool import run_folder
    from ddl_cli.progress import bars

    place = resolve(run, redis=redis, store=store)
    opened = _find_store(place)
    registry = place.reader() if place.redis_url is not None else None
    try:
        remains = find_remains(opened, place.run) if opened is not None else NOTHING
        view = registry.view(num_facts=0) if registry is not None else None
        if view is not None and not _is_of(view, remains, opened):
            view = None  # Redis knows another run by this name: it stays as it is
        num_keys = registry.count_keys() if registry is not None and view is not None else 0
        if not remains.keys and not num_keys:
            raise UnknownRunError(
                f"there is nothing of a run {place.run!r} in {_places(place, opened)}",
                hint="`ddl runs` lists the runs of a --redis or of a --store",
            )
        known = view.entry.run.lineage if view is not None and view.entry is not None else ""
        lineage = remains.lineage or known
        spools = run_folder(spool_root(), run=place.run, lineage=lineage) if lineage else None
        if spools is not None and not spools.is_dir():
            spools = None
        what = _what(place, opened, remains, num_keys, spools)
        if not force:
            _check_at_rest(place, view)
        if not yes and not _agreed(f"Delete {place.run} for good: {what}?"):
            raise RefusedError(f"{place.run} stays as it is", hint="`--yes` deletes it unasked")
        if opened is not None and remains.keys:
            with bars() as tick:
                who = getpass.getuser()
                remove_objects(opened, place.run, remains, who=who, now=time.time(), tick=tick)
        kept = _remove_spools(spools) if spools is not None else ""
        # last of all: until here, Redis still tells where the objects are
        if registry is not None and view is not None:
            registry.remove_run()
    finally:
        if opened is not None:
            opened.close()
        if registry is not None:
            registry.close()
    typer.echo(f"{place.run} is deleted: {what}")
    if kept:
        typer.echo(kept, err=True)


def _agreed(question: str) -> bool:
    """Ask for a yes; False where nobody is there to give it."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # no terminal, or Ctrl-C
        typer.echo(err=True)
        return False


def _find_store(place: Place) -> Store | None:
    """The run's store; None when nobody knows it, so that there can only be keys in Redis."""
    try:
        return place.find_store(must_exist=False)
    except UnknownRunError:
        return None


def _places(place: Place, store: Store | None) -> str:
    """Where was looked, for people."""
    looked = [store.url] if store is not None else []
    looked += [f"Redis at {safe_url(place.redis_url)}"] if place.redis_url is not None else []
    return " and in ".join(looked)


def _what(
    place: Place, store: Store | None, remains: Remains, num_keys: int, spools: Path | None
) -> str:
    """What is deleted, for people."""
    parts = []
    if store is not None:
        size = f" ({short_number(remains.bytes)}B)" if remains.keys else ""
        parts.append(f"{counted(len(remains.keys), 'object')}{size} in {store.url}")
    if num_keys:
        assert place.redis_url is not None
        parts.append(f"{counted(num_keys, 'key')} in Redis at {safe_url(place.redis_url)}")
    if spools is not None:
        parts.append(f"{short_number(_size_bytes(spools))}B in {spools} on this machine")
    return " and ".join(parts)


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _remove_spools(folder: Path) -> str:
    """Delete a folder of spools; what there is to say if it stays."""
    from ddl.learner.spool import users

    try:
        if in_use := users(folder):
            return f"But {folder} stays: a process of {', '.join(in_use)} is alive and uses it"
        shutil.rmtree(folder)
    except OSError as error:
        return f"But {folder} stays: {error.strerror}"
    return ""


def _is_of(view: View, remains: Remains, store: Store | None) -> bool:
    """Whether what Redis shows is the run that lies in the store."""
    if view.entry is None:
        return True
    if remains.lineage:
        return view.entry.run.lineage == remains.lineage
    return store is not None and view.entry.store_url == store.url


def _check_at_rest(place: Place, view: View | None) -> None:
    """Raises: RefusedError that names who is alive, or that nobody can tell."""
    from ddl.core.membership import PRESENT
    from ddl.core.snapshot import snapshot

    if view is None:
        raise RefusedError(
            f"no Redis that knows {place.run!r} is named, so nobody can tell whether it is in use",
            hint="Give --redis URL, or --force if you are sure",
        )
    alive = [f"the coordinator {view.lease.holder}"] if view.lease is not None else []
    shown = snapshot(view)
    if shown is not None:
        alive += [f"learner {row.id}" for row in shown.learners if row.state in PRESENT]
    else:  # no run any more, but somebody may believe in it
        gone_s = LivenessSettings().gone_s
        alive += [f"learner {id_}" for id_, at in view.beats.items() if view.now - at < gone_s]
    if alive:
        raise RefusedError(
            f"{place.run!r} is in use, by {', '.join(alive)}",
            hint=f"End it first with `ddl stop {place.typed}`; --force deletes it all the same",
        )
