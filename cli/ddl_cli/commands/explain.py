"""`ddl explain`: the story of one learner, round, version or contribution."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ddl.errors import ConfigError, RegistryError
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve

if TYPE_CHECKING:
    from ddl_cli.story import Line, Sources


class Kind(StrEnum):
    """What can be explained."""

    LEARNER = "learner"
    ROUND = "round"
    VERSION = "version"
    CONTRIBUTION = "contribution"


def explain(
    run: RunArgument,
    kind: Annotated[Kind, typer.Argument(metavar="WHAT", help=f"{', '.join(Kind)}.")],
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A learner's id; a round's launch number, or the version it made; a global version; "
            "a contribution as LEARNER/LIFE/fFRAGMENT/NUMBER.",
            show_default=False,
        ),
    ],
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (Story).")] = False,
) -> None:
    """Tell in sentences what became of a learner, a round, a version or a contribution.

    What the log says is always told; what Redis knows of the present is told where it answers.
    """
    place = resolve(run, redis=redis, store=store)
    from ddl.protocol.wire import canonical
    from ddl_cli.story import Story

    sources = _sources(place)
    lines = tuple(sorted(_tell(kind, name, sources), key=_order))
    if not lines:
        hint = "`ddl events` and `ddl status` name those that there are"
        if kind is Kind.LEARNER and (learners := sources.learners):
            hint = f"It has {', '.join(learners)}"
        elif kind is Kind.ROUND and name.isdecimal() and int(name) <= sources.newest_version:
            cure = f"`ddl explain {place.typed} version {name}`"
            hint = f"No round made version {name}: {cure} tells what"
        elif kind is Kind.VERSION:
            hint = f"Its versions are 0 to {sources.newest_version}"
        elif kind is Kind.CONTRIBUTION:
            hint = "One is called LEARNER/LIFE/fFRAGMENT/NUMBER, such as anna/1/f0/3"
        raise ConfigError(f"{place.run} has no {kind} {name!r}", hint=hint)
    if as_json:
        typer.echo(canonical(Story(run=place.run, subject=f"{kind} {name}", lines=lines)))
        return
    for line in lines:
        typer.echo(f"{_stamp(line.at):<20} {line.text}")


def _tell(kind: Kind, name: str, sources: Sources) -> Iterator[Line]:
    from ddl_cli import made, story

    if kind is Kind.LEARNER:
        return story.of_learner(name, sources)
    if kind is Kind.CONTRIBUTION:
        return story.of_contribution(name, sources)
    if not name.isdecimal():
        raise ConfigError(f"{kind} {name!r} is not a number", hint=f"Such as {kind} 40")
    tell = made.of_round if kind is Kind.ROUND else made.of_version
    return tell(int(name), sources)


def _order(line: Line) -> tuple[bool, float]:
    """What is so now comes last."""
    return (line.at is None, line.at or 0.0)


def _stamp(at: float | None) -> str:
    return "now" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _sources(place: Place) -> Sources:
    from ddl.coordinator.history import History
    from ddl_cli.records import read_log
    from ddl_cli.story import Sources

    opened = place.find_store()
    try:
        history = History(opened, place.run)
        sources = Sources(history.existing_run(), place.typed, list(read_log(history)))
    finally:
        opened.close()
    return _with_redis(place, sources)


def _with_redis(place: Place, sources: Sources) -> Sources:
    """The same with what Redis knows; without it, where it is not named or does not answer."""
    if place.redis_url is None:
        return sources
    from ddl.core.snapshot import snapshot
    from ddl_cli.reading import EVENTS_KEPT, typeable

    registry = place.reader()
    try:
        view = registry.view(num_facts=EVENTS_KEPT)
    except RegistryError as error:
        if place.store_url is None:
            raise
        typer.echo(f"told from the log alone: {error}", err=True)
        return sources
    finally:
        registry.close()
    shown = snapshot(view)
    return sources._replace(
        facts=view.facts,
        shown=shown and typeable(shown, place),
        handins=tuple(view.handins.values()),
    )
