"""`ddl events`: what happened in a run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ddl.core.facts import by_time
from ddl.errors import ConfigError, RegistryError, UnknownRunError
from ddl_cli.reading import EVENTS_KEPT
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve

if TYPE_CHECKING:
    from ddl.protocol.records import Fact
    from ddl.registry.reader import RedisReader

LOOK_S: Final = 0.5
"""Between two looks for what is new."""

AT_ONCE: Final = 1024
"""Events that one look brings."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def events(
    run: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="No older ones: 90s, 10m, 2h or 1d.", show_default=False),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The newest N alone.", show_default=False),
    ] = None,
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line (Event).")
    ] = False,
) -> None:
    """Show what happened in a run, oldest first, in the order in which it came about.

    Redis remembers the last few thousand events. If none is named, or it does not answer, or does
    not know the run, and a store is named, the log there tells all that it has: versions,
    receipts and decisions.
    """
    place = resolve(run, redis=redis, store=store)
    age_s = None if since is None else _seconds(since)

    def show(facts: Sequence[Fact], now: float | None = None) -> None:
        facts = _younger(facts, age_s, now=now)
        _show(facts[-last:] if last else facts, as_json=as_json)

    if place.redis_url is None and place.store_url is not None:
        if follow:
            raise ConfigError("--follow needs Redis, and none is named", hint="Give --redis URL")
        show(_from_log(place))
        return
    registry = place.reader()
    try:
        try:
            placed = _remembered(registry, place)
        except (RegistryError, UnknownRunError) as error:
            if follow or place.store_url is None:
                raise
            typer.echo(f"told from the log alone: {error}", err=True)
            show(_from_log(place))
            return
        show(by_time(fact for _, fact in placed), registry.now())
        if follow:
            _follow(registry, placed[-1][0] if placed else "0-0", as_json=as_json)
    finally:
        registry.close()


def _remembered(registry: RedisReader, place: Place) -> list[tuple[str, Fact]]:
    """All events that Redis still has. Raises: UnknownRunError, RegistryError."""
    placed = registry.facts(limit=EVENTS_KEPT)
    if not placed and registry.read_entry() is None:
        raise UnknownRunError(
            f"Redis does not know the run {place.run!r}",
            hint="`ddl runs --redis URL` lists those it knows; --store names the log to read",
        )
    return placed


def _follow(registry: RedisReader, place: str, *, as_json: bool) -> None:
    """Show what comes after `place`, over times in which Redis does not answer."""
    away = ""
    while True:
        try:
            placed = registry.facts(after=place, limit=AT_ONCE)
        except RegistryError as error:
            if str(error) != away:
                typer.echo(f"{error}; trying again", err=True)
            away, placed = str(error), []
        else:
            if away:
                typer.echo("Redis is back", err=True)
            away = ""
        _show(by_time(fact for _, fact in placed), as_json=as_json)
        if placed:
            place = placed[-1][0]
        if len(placed) < AT_ONCE:
            time.sleep(LOOK_S)


def _from_log(place: Place) -> list[Fact]:
    from ddl.coordinator.history import History
    from ddl.core.facts import told_by
    from ddl_cli.records import read_log

    opened = place.find_store()
    try:
        history = History(opened, place.run)
        history.existing_run()
        return list(told_by(read_log(history), "running"))
    finally:
        opened.close()


def _younger(
    facts: Sequence[Fact], age_s: float | None, *, now: float | None = None
) -> Sequence[Fact]:
    """Those of at most this age, by the clock of Redis; without one, before the newest of them."""
    if age_s is None or not facts:
        return facts
    least = (facts[-1].at if now is None else now) - age_s
    return [fact for fact in facts if fact.at >= least]


def _show(facts: Iterable[Fact], *, as_json: bool) -> None:
    for line in _lines(facts, as_json=as_json):
        typer.echo(line)


def _lines(facts: Iterable[Fact], *, as_json: bool) -> Iterator[str | bytes]:
    from ddl.protocol.wire import SCHEMA, canonical

    for fact in facts:
        if as_json:
            row = {"at": fact.at, "name": fact.name, "text": fact.text, "fields": fact.fields}
            yield canonical({"schema": SCHEMA, **row})
        else:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(fact.at))
            yield f"{stamp}  {fact.name:<24} {fact.text}"


def _seconds(age: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", age.strip())
    if found is None:
        raise ConfigError(f"--since {age!r} is no age", hint="Use 90s, 10m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]
