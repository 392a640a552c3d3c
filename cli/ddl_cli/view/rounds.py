"""Open rounds and what they wait for; rounds that closed, and where their time went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.text import Text

from ddl.protocol.records import Fact, Round, RunSnapshot
from ddl_cli.units import fine_time, short_time
from ddl_cli.view.events import PUBLISHED
from ddl_cli.view.text import (
    UNKNOWN,
    Canvas,
    Column,
    Table,
    cropped,
    sentence,
    short_loss,
)

NAMES_SHOWN: Final = 4

CLOSED_LEAST: Final = 3
"""Fewer lines say too little about rounds that closed."""

_WAITS: Final = ("quorum_s", "grace_s", "fetch_s", "merge_s", "publish_s")


def lines(shown: RunSnapshot, canvas: Canvas, *, room: int | None = None) -> list[Text]:
    """A sentence for each open round, within `room` lines."""
    told: list[Text] = []
    for index, round_ in enumerate(shown.rounds):
        mark = f"f{round_.fragment} -> v{round_.version_before + 1}  "
        more = sentence(_words(round_, shown.taken_at), canvas, mark=mark)
        for line in more:
            line.stylize("dim", 0, len(mark))
        if room is not None and told and len(told) + len(more) > room:
            left = len(shown.rounds) - index
            told[-1:] = [cropped(Text(f"and {left + 1} more open rounds", "dim"), canvas)]
            return told
        told += more
    return told


def _words(round_: Round, now: float) -> str:
    parts = [f"{len(round_.arrived)} in{_named(round_.arrived)}, quorum {round_.quorum}"]
    if round_.late:
        parts.append(f"carried from before{_named(round_.late)}")
    if round_.awaited:
        parts.append(f"awaits {_some(round_.awaited)}")
    extended = ", extended" if round_.extended else ""
    parts.append(f"open {short_time(now - round_.opened_at)}{extended}")
    if round_.grace_until is not None:
        parts.append(f"grace {_left(round_.grace_until - now)}")
    parts.append(f"deadline {_left(round_.deadline_at - now)}")
    return ", ".join(parts) + (f"; {round_.reason}" if round_.reason else "")


def _left(seconds: float) -> str:
    return f"in {short_time(seconds)}" if seconds > 0 else "over"


def _named(names: Sequence[str]) -> str:
    return f" ({_some(names)})" if names else ""


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


# ---- rounds that closed ---------------------------------------------------------------------------


def _field(fact: Fact, name: str) -> Any:
    return fact.fields.get(name)


def _seconds(name: str) -> Column[Fact]:
    def cell(fact: Fact, _now: float) -> str:
        waits = fact.fields.get("waits") or {}
        return fine_time(waits[name]) if name in waits else UNKNOWN

    return Column(name.removesuffix("_s"), _WAITS.index(name) + 3, cell)


CLOSED: Final = Table(
    "version",
    lambda fact: f"v{_field(fact, 'version')}",
    (
        Column("age", 2, lambda fact, now: short_time(now - fact.at)),
        Column("fragment", 1, lambda fact, _: f"f{_field(fact, 'fragment')}"),
        Column("learners", 0, lambda fact, _: str(len(_field(fact, "learners") or ()))),
        Column("loss", 1, lambda fact, _: short_loss(_field(fact, "loss"))),
        *(_seconds(name) for name in _WAITS),
        Column("carried", 9, lambda fact, _: str(_field(fact, "carried") or UNKNOWN)),
        Column("from", 10, lambda fact, _: _some(_field(fact, "learners") or ()), right=False),
    ),
)


def closed(facts: Iterable[Fact], canvas: Canvas, now: float, *, room: int) -> list[Text]:
    """The newest rounds that closed, newest first: who was in, and where the time went."""
    merges = [fact for fact in facts if fact.name == PUBLISHED and "version" in fact.fields]
    if not merges or room < CLOSED_LEAST:
        return []
    return CLOSED.lines(merges[:-room:-1], canvas, now)
