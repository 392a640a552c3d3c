"""The pages: what of a run is shown where, for a window of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.text import Text

from ddl.protocol.records import LearnerView, RunSnapshot
from ddl_cli.view import events, learners, rounds
from ddl_cli.view.head import head, loss_chart, troubles
from ddl_cli.view.look import KEYS, Look
from ddl_cli.view.text import GAP, Canvas, cropped, flow, sentence
from ddl_cli.view.trail import Rates

EVENTS_PRINTED: Final = 12
"""Events shown where the height sets no limit."""

_FOOT: Final = (
    "1 all",
    "2 learners",
    "3 rounds",
    "4 events",
    "/ find",
    "s sort",
    "p pause",
    "? help",
    "q quit",
)


def printed(shown: RunSnapshot, canvas: Canvas, *, notice: str = "") -> list[Text]:
    """The whole overview, for a pipe, a file, or the end of the live view."""
    blocks = [
        head(shown, canvas, Rates()),
        troubles(shown, canvas, notice=notice),
        learners.table(learners.chosen(shown), shown, canvas) if shown.learners else [],
        rounds.lines(shown, canvas),
        events.lines(shown.events, canvas, shown.taken_at, room=EVENTS_PRINTED),
    ]
    return _stacked(blocks)


def screenful(
    shown: RunSnapshot,
    look: Look,
    canvas: Canvas,
    height: int,
    *,
    rates: Rates | None = None,
    notice: str = "",
) -> list[Text]:
    """The page that `look` names, exactly `height` lines (4 or more)."""
    top = head(shown, canvas, rates or Rates())
    room = height - 1
    if look.page == "overview":
        lines = _overview(shown, look, canvas, room, top, notice)
    elif look.page == "learners":
        told = troubles(shown, canvas, notice=notice, room=1)
        rows = rows_of(shown, look)
        body = learners.table(
            rows, shown, canvas, room=room - len(top) - len(told) - 1, selected=look.selected
        )
        lines = _stacked([[*top, *told], body])
    elif look.page == "rounds":
        lines = _rounds(
            shown, canvas, room, [*top, *troubles(shown, canvas, notice=notice, room=3)]
        )
    elif look.page == "events":
        lines = _events(shown, look, canvas, room, notice)
    elif look.page == "learner":
        lines = _learner(shown, look, canvas, room, top[:1], notice)
    else:
        lines = _help(canvas)
    lines = lines[:room]
    return [*lines, *(Text() for _ in range(room - len(lines))), _foot(look, canvas)]


def rows_of(shown: RunSnapshot, look: Look) -> list[LearnerView]:
    """The learners on the page, in their order."""
    return learners.chosen(shown, pattern=look.filter, sort=look.sort, descending=look.descending)


# ---- pages --------------------------------------------------------------------------------------


def _overview(
    shown: RunSnapshot, look: Look, canvas: Canvas, room: int, top: list[Text], notice: str
) -> list[Text]:
    """Heading and troubles first, then learners and rounds; events take what is left."""
    top = top[: max(2, room // 2)]
    left = room - len(top)
    told = troubles(shown, canvas, notice=notice, room=max(2, left * 2 // 5))
    left -= len(told) + 1
    open_rounds = rounds.lines(shown, canvas, room=max(1, left // 4))
    left -= len(open_rounds) + bool(open_rounds)
    rows = rows_of(shown, look)
    least_events = min(4, len(shown.events), max(0, left // 3))
    size = min(len(rows) + 1, max(2, left - least_events - bool(least_events)))
    table = learners.table(rows, shown, canvas, room=size, selected=look.selected) if rows else []
    left -= len(table) + bool(table)
    happened = events.lines(shown.events, canvas, shown.taken_at, room=max(0, left))
    left -= len(happened) + bool(happened)
    chart = loss_chart(shown, canvas, room=left - 1)
    left -= len(chart) + bool(chart)
    closed = rounds.closed(shown.events, canvas, shown.taken_at, room=left - 1)
    return _stacked([[*top, *told], chart, table, open_rounds, closed, happened])


def _rounds(shown: RunSnapshot, canvas: Canvas, room: int, top: list[Text]) -> list[Text]:
    left = room - len(top) - 1
    open_rounds = rounds.lines(shown, canvas, room=max(2, left // 2)) or [
        Text("no round is open", "dim")
    ]
    left -= len(open_rounds) + 1
    closed = rounds.closed(shown.events, canvas, shown.taken_at, room=left)
    return _stacked([top, open_rounds, closed])


def _events(shown: RunSnapshot, look: Look, canvas: Canvas, room: int, notice: str) -> list[Text]:
    told = troubles(shown, canvas, notice=notice, room=max(2, room * 3 // 5))
    facts = events.matching(shown.events, look.filter)
    left = room - len(told) - bool(told)
    happened = events.lines(facts, canvas, shown.taken_at, room=left, top=look.top)
    return _stacked([told or [Text("no trouble", "green")], happened])[-room:]


def _learner(
    shown: RunSnapshot, look: Look, canvas: Canvas, room: int, top: list[Text], notice: str
) -> list[Text]:
    one = next((one for one in shown.learners if one.id == look.selected), None)
    if one is None:
        gone = sentence(f"{look.selected} is not in the run any more. Esc goes back.", canvas)
        return [*top, Text(), *gone]
    title = Text(one.id, "bold")
    its = [trouble for trouble in shown.troubles if one.id in trouble.learners]
    about = msgspec.structs.replace(shown, troubles=tuple(its))
    told = troubles(about, canvas, notice=notice, room=4)
    detail = learners.detail(one, shown, canvas)
    left = room - len(top) - len(told) - len(detail) - 3
    facts = [fact for fact in shown.events if fact.fields.get("learner") == one.id]
    happened = events.lines(facts, canvas, shown.taken_at, room=max(0, left), top=look.top)
    return _stacked([top, [title, *told, *detail], happened])


def _help(canvas: Canvas) -> list[Text]:
    lines = [Text("Keys", "bold")]
    for keys, meaning in KEYS:
        lines += sentence(meaning, canvas, mark=f"  {keys:<16}")
    lines += [Text(), Text("Columns", "bold")]
    for title, meaning in COLUMNS:
        lines += sentence(meaning, canvas, mark=f"  {title:<16}")
    return lines


COLUMNS: Final = (
    ("share", "of the tokens merged lately"),
    ("last hand-in", "its fate, and how many versions it came late"),
    ("behind", "versions it has not adopted, of its most outdated fragment"),
    ("stall", "share of its time that training spends inside ddl"),
    ("goodput", "share of learners' time whose work is not thrown away"),
    ("agreement", "of contributions with their mean: 1 is the same direction"),
    ("with momentum", "+1: outer steps go on as before; -1: they take it back"),
)


def _stacked(blocks: Sequence[Sequence[Text]]) -> list[Text]:
    """Blocks below each other, a blank line between two; empty ones leave nothing."""
    lines: list[Text] = []
    for block in blocks:
        if block:
            lines += [Text(), *block] if lines else block
    return lines


def _foot(look: Look, canvas: Canvas) -> Text:
    if look.typing:
        return cropped(
            Text(f"filter: {look.filter}_   Enter keeps it, Esc drops it", "reverse"), canvas
        )
    state = []
    if look.paused:
        state.append(Text("STANDS STILL, p goes on", "reverse"))
    if look.filter:
        state.append(Text(f"filter {look.filter!r}", "reverse"))
    if look.sort:
        state.append(Text(f"by {look.sort} {'down' if look.descending else 'up'}", "dim"))
    if look.page in ("learner", "help"):
        state.append(Text("Esc back", "dim"))
    keys = [Text(key, "dim") for key in _FOOT]
    return flow([*state, *keys], canvas, gap=GAP)[0]
