"""The pages: what of a run is shown where, for a window of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from rich.text import Text

from ddl.protocol.records import Fact, LearnerView, RunSnapshot
from ddl_cli.view import events, learners, rounds
from ddl_cli.view.head import head, loss_chart, present, troubles
from ddl_cli.view.look import KEYS, Look, Page
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
        events.lines(shown.events, canvas, present(shown), room=EVENTS_PRINTED),
    ]
    return _stacked(blocks)


class Frame(NamedTuple):
    """What is drawn, for whom and where.

    Attributes:
        rates: what several looks at the run tell of its speed.
        notice: something about this view itself, such as that Redis does not answer.
    """

    shown: RunSnapshot
    look: Look
    canvas: Canvas
    rates: Rates = Rates()
    notice: str = ""

    def head(self) -> list[Text]:
        return head(self.shown, self.canvas, self.rates)

    def troubles(self, room: int) -> list[Text]:
        return troubles(self.shown, self.canvas, notice=self.notice, room=room)

    def events(self, facts: Sequence[Fact], room: int) -> list[Text]:
        now, top = present(self.shown), self.look.top
        return events.lines(facts, self.canvas, now, room=max(0, room), top=top)

    def closed_rounds(self, room: int) -> list[Text]:
        return rounds.closed(self.shown.events, self.canvas, self.shown.taken_at, room=room)


def screenful(frame: Frame, height: int) -> list[Text]:
    """The page that the frame's look names, exactly `height` lines (4 or more)."""
    room = height - 1
    lines = _PAGES[frame.look.page](frame, room)[:room]
    return [*lines, *(Text() for _ in range(room - len(lines))), _foot(frame.look, frame.canvas)]


def rows_of(shown: RunSnapshot, look: Look) -> list[LearnerView]:
    """The learners on the page, in their order."""
    return learners.chosen(shown, pattern=look.filter, sort=look.sort, descending=look.descending)


# ---- pages --------------------------------------------------------------------------------------


def _overview(frame: Frame, room: int) -> list[Text]:
    """Heading and troubles first, then learners and rounds, events in what is left of a low window;
    the loss and rounds that closed in what is left of a high one."""
    shown, canvas = frame.shown, frame.canvas
    top = frame.head()[: max(2, room // 2)]
    left = room - len(top)
    told = frame.troubles(max(2, left * 2 // 5))
    left -= len(told) + 1
    open_rounds = rounds.lines(shown, canvas, room=max(1, left // 4))
    left -= len(open_rounds) + bool(open_rounds)
    rows = rows_of(shown, frame.look)
    least_events = min(4, len(shown.events), max(0, left // 3))
    size = min(len(rows) + 1, max(2, left - least_events - bool(least_events)))
    selected = frame.look.selected
    table = learners.table(rows, shown, canvas, room=size, selected=selected) if rows else []
    left -= len(table) + bool(table)
    happened = frame.events(shown.events, left)
    left -= len(happened) + bool(happened)
    chart = loss_chart(shown, canvas, room=left - 1)
    left -= len(chart) + bool(chart)
    closed = frame.closed_rounds(left - 1)
    return _stacked([[*top, *told], chart, table, open_rounds, closed, happened])


def _learners(frame: Frame, room: int) -> list[Text]:
    top = [*frame.head(), *frame.troubles(1)]
    left = room - len(top) - 1
    rows, selected = rows_of(frame.shown, frame.look), frame.look.selected
    table = learners.table(rows, frame.shown, frame.canvas, room=left, selected=selected)
    return _stacked([top, table])


def _rounds(frame: Frame, room: int) -> list[Text]:
    top = [*frame.head(), *frame.troubles(3)]
    left = room - len(top) - 1
    open_rounds = rounds.lines(frame.shown, frame.canvas, room=max(2, left // 2))
    open_rounds = open_rounds or [Text("no round is open", "dim")]
    left -= len(open_rounds) + 1
    return _stacked([top, open_rounds, frame.closed_rounds(left)])


def _events(frame: Frame, room: int) -> list[Text]:
    told = frame.troubles(max(2, room * 3 // 5)) or [Text("no trouble", "green")]
    facts = events.matching(frame.shown.events, frame.look.filter)
    return _stacked([told, frame.events(facts, room - len(told) - 1)])


def _learner(frame: Frame, room: int) -> list[Text]:
    shown, selected = frame.shown, frame.look.selected
    top = frame.head()[:1]
    one = next((one for one in shown.learners if one.id == selected), None)
    if one is None:
        text = f"{selected} is not in the run any more. Esc goes back."
        return _stacked([top, sentence(text, frame.canvas)])
    its = tuple(trouble for trouble in shown.troubles if one.id in trouble.learners)
    told = frame._replace(shown=msgspec.structs.replace(shown, troubles=its)).troubles(4)
    detail = learners.detail(one, shown, frame.canvas)
    left = room - len(top) - len(told) - len(detail) - 3
    facts = [fact for fact in shown.events if fact.fields.get("learner") == one.id]
    title = Text(one.id, "bold")
    return _stacked([top, [title, *told, *detail], frame.events(facts, left)])


def _help(frame: Frame, _room: int) -> list[Text]:
    lines = [Text("Keys", "bold")]
    for keys, meaning in KEYS:
        lines += sentence(meaning, frame.canvas, mark=f"  {keys:<16}")
    lines += [Text(), Text("Columns", "bold")]
    for title, meaning in COLUMNS:
        lines += sentence(meaning, frame.canvas, mark=f"  {title:<16}")
    return lines


_PAGES: Final[dict[Page, Callable[[Frame, int], list[Text]]]] = {
    "overview": _overview,
    "learners": _learners,
    "rounds": _rounds,
    "events": _events,
    "learner": _learner,
    "help": _help,
}

COLUMNS: Final = (
    ("step, tokens", "of this life only; share and the ledger count all lives"),
    ("share", "of the tokens merged lately"),
    ("last hand-in", "its fate, and how many versions it came late"),
    ("holds, behind", "versions it trains on; how many its oldest fragment lacks"),
    ("stall", "share of its time that training spends inside ddl"),
    ("goodput", "share of learners' time, less pauses, whose work is kept"),
    ("outer step", "length (L2) of the newest one, which is one fragment's"),
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
