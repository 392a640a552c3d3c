"""Lines of text: wrapped sentences, packed phrases, tables that leave out what does not fit."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from rich.text import Text

from ddl_cli.units import short_names

Row = TypeVar("Row")

GAP: Final = 2
"""Blanks between two columns."""

UNKNOWN: Final = "-"

LOSS_LARGE: Final = 10_000.0
"""A loss from here on has exploded: its decimals say nothing, and would break a table."""

NAME_LEAST: Final = 8
"""Columns that a name gets in the narrowest window."""


class Canvas(NamedTuple):
    """Where lines are drawn.

    Attributes:
        width: columns; None is without end.
        ascii: whether anything else than ASCII would not be understood there.
    """

    width: int | None = None
    ascii: bool = True


# ---- sentences and phrases ----------------------------------------------------------------------


def sentence(text: str, canvas: Canvas, *, mark: str = "", style: str = "") -> list[Text]:
    """`text` behind `mark`, wrapped between words; further lines stand below the first one's text."""
    if canvas.width is None:
        return [Text(mark + text, style)]
    if len(mark) > canvas.width // 2:
        mark, text = " ", f"{mark.strip()} {text}"
    lines = textwrap.wrap(
        text,
        canvas.width - len(mark),
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    blank = " " * len(mark)
    return [Text((blank if i else mark) + line, style) for i, line in enumerate(lines or [""])]


def flow(phrases: Iterable[Text], canvas: Canvas, *, gap: int = GAP + 1) -> list[Text]:
    """Phrases side by side, as many as fit into each line; one that is too long is wrapped.

    Without a width, each has a line of its own.
    """
    if canvas.width is None:
        return list(phrases)
    lines: list[Text] = []
    for phrase in phrases:
        if lines and len(lines[-1]) + gap + len(phrase) <= canvas.width:
            lines[-1].append(" " * gap).append_text(phrase)
        elif len(phrase) <= canvas.width:
            lines.append(phrase.copy())
        else:
            lines += sentence(phrase.plain, canvas)
    return lines


def cropped(line: Text, canvas: Canvas) -> Text:
    """The line as far as it fits."""
    if canvas.width is not None and len(line) > canvas.width:
        line = line.copy()
        line.right_crop(len(line) - canvas.width)
    return line


def short_loss(value: float | None) -> str:
    """With three decimals; of one that has exploded, how large it is."""
    return optional(value, ".3f" if value is None or abs(value) < LOSS_LARGE else ".2g")


def optional(value: float | None, form: str) -> str:
    """The number in this form, or a dash."""
    return UNKNOWN if value is None else format(value, form)


# ---- tables -------------------------------------------------------------------------------------


class Column(NamedTuple, Generic[Row]):
    """A column of a table.

    Attributes:
        rank: the one with the lowest is the last to go.
        cell: what stands in a row, given the instant of the snapshot.
        style: how it looks, by row.
        right: whether it is set to the right, as numbers are.
        order: what rows are sorted by; by the name of the row if None.
    """

    title: str
    rank: int
    cell: Callable[[Row, float], str]
    right: bool = True
    style: Callable[[Row], str] = lambda _: ""
    order: Callable[[Row], float] | None = None


class Table(NamedTuple, Generic[Row]):
    """Rows with a name each; `names` is the title of their column."""

    names: str
    name: Callable[[Row], str]
    columns: Sequence[Column[Row]]

    def lines(
        self, rows: Sequence[Row], canvas: Canvas, now: float, *, selected: str = ""
    ) -> list[Text]:
        """The head of the table and a line for each row."""
        ids = [self.name(row) for row in rows]
        room = None if canvas.width is None else max(NAME_LEAST, canvas.width // 3)
        shown_ids = ids if room is None else short_names(ids, room)
        name_width = max(map(len, [self.names, *shown_ids]))
        cells = {c.title: [c.cell(row, now) for row in rows] for c in self.columns}
        widths = {title: max(map(len, [title, *column])) for title, column in cells.items()}
        left = None if canvas.width is None else canvas.width - name_width
        columns = fit(self.columns, widths, left)
        head = f"{self.names:<{name_width}}" + "".join(
            " " * GAP + _set(c.title, widths[c.title], right=c.right) for c in columns
        )
        lines = [cropped(Text(head.rstrip(), "dim"), canvas)]
        for index, row in enumerate(rows):
            line = Text(f"{shown_ids[index]:<{name_width}}")
            for column in columns:
                cell = _set(cells[column.title][index], widths[column.title], right=column.right)
                line.append(" " * GAP).append(cell, column.style(row) or None)
            if selected and ids[index] == selected:
                line.stylize("reverse")
            else:
                line.rstrip()
            lines.append(cropped(line, canvas))
        return lines

    def sorted(self, rows: Iterable[Row], title: str, *, descending: bool) -> list[Row]:
        """Rows by a column; equal ones, and those by no column, by name."""
        by_name = sorted(rows, key=self.name)
        order = next((c.order for c in self.columns if c.title == title), None)
        if order is not None:
            return sorted(by_name, key=order, reverse=descending)
        return by_name[::-1] if descending else by_name

    @property
    def sortable(self) -> list[str]:
        """Titles that rows can be sorted by, the name's first."""
        return [self.names, *(column.title for column in self.columns if column.order)]


def fit(
    columns: Sequence[Column[Row]], widths: dict[str, int], room: int | None
) -> list[Column[Row]]:
    """The columns that fit into `room`, blanks included, chosen by rank, in the given order.

    The first in rank always stays; one that does not fit makes way for later, narrower ones.
    """
    if room is None:
        return list(columns)
    chosen: set[str] = set()
    for column in sorted(columns, key=lambda c: c.rank):
        needed = GAP + widths[column.title]
        if needed <= room or not chosen:
            chosen.add(column.title)
            room -= needed
    return [column for column in columns if column.title in chosen]


def _set(text: str, width: int, *, right: bool) -> str:
    return f"{text:>{width}}" if right else f"{text:<{width}}"
