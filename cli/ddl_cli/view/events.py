"""What happened, newest last; versions that followed each other share a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.text import Text

from ddl.protocol.records import Fact
from ddl_cli.units import short_time
from ddl_cli.view.text import Canvas, cropped, sentence

PUBLISHED: Final = "version.published"

NAMED_FROM: Final = 16
"""Versions of a group, the newest, whose learners are named."""

_STYLES: Final = {
    "red": (
        "learner.gone",
        "contribution.refused",
        "contribution.lost",
        "run.held",
        "round.failed",
        "learner.aside",
    ),
    "yellow": (
        "learner.suspect",
        "learner.stalled",
        "contribution.expired",
        "round.extended",
        "run.paused",
        "run.rolled_back",
        "clock.jumped",
    ),
    "green": ("learner.joined", "run.resumed"),
    "dim": (PUBLISHED,),
}
_STYLE_OF: Final = {name: style for style, names in _STYLES.items() for name in names}


def lines(
    facts: Sequence[Fact],
    canvas: Canvas,
    now: float | None,
    *,
    room: int | None = None,
    top: int = 0,
) -> list[Text]:
    """The newest events in at most `room` lines, each of them whole if one is not too long.

    Args:
        now: the instant that their ages are told by; without one, their dates are told.
        top: how many of the newest are scrolled away.
    """
    groups: Iterable[list[Fact]] = grouped(facts)
    if top:
        groups = list(groups)
        groups = groups[min(top, len(groups) - 1) :] if groups else groups
    told: list[list[Text]] = []
    left = sys.maxsize if room is None else room
    for group in groups:
        words = _words(group, canvas, now)
        if left < (len(words) if told else 1):
            break
        told.append(words[:left])
        left -= len(words)
    return [line for words in reversed(told) for line in words]


def grouped(facts: Sequence[Fact]) -> Iterator[list[Fact]]:
    """From the newest on, each event for itself, but a published version with those just before it."""
    group: list[Fact] = []
    for fact in reversed(facts):
        if group and not (_is_version(fact) and _is_version(group[-1])):
            yield group[::-1]
            group = []
        group.append(fact)
    if group:
        yield group[::-1]


def _is_version(fact: Fact) -> bool:
    return fact.name == PUBLISHED and "version" in fact.fields


def matching(facts: Sequence[Fact], pattern: str) -> Sequence[Fact]:
    """Events whose name, text or learner `pattern` is a part of."""
    if not pattern:
        return facts
    return [
        fact
        for fact in facts
        if pattern in fact.name or pattern in fact.text or pattern == fact.fields.get("learner")
    ]


def _words(group: Sequence[Fact], canvas: Canvas, now: float | None) -> list[Text]:
    newest = group[-1]
    if now is None:
        mark = time.strftime("%m-%d %H:%M:%S  ", time.gmtime(newest.at))
    else:
        mark = f"{short_time(now - newest.at):>7} ago  "
    text = newest.text if len(group) == 1 else _versions(group)
    style = _STYLE_OF.get(newest.name, "")
    if newest.name == PUBLISHED:  # there are many of them, and nobody must read one
        return [cropped(Text(mark + text, style), canvas)]
    return sentence(text, canvas, mark=mark, style=style)


def _versions(group: Sequence[Fact]) -> str:
    first, last = group[0], group[-1]
    of_late = group[-NAMED_FROM:]
    learners = sorted({name for fact in of_late for name in fact.fields.get("learners", ())})
    names = ", ".join(learners[:4]) + (
        f" and {len(learners) - 4} more" if len(learners) > 4 else ""
    )
    loss = last.fields.get("loss")
    return f"versions {first.fields['version']} to {last.fields['version']} from {names}" + (
        f", loss {loss:.3f}" if loss is not None else ""
    )
