"""A `RunSnapshot` as text for people. Pure: the same snapshot and size give the same picture.

It is right at any width from 30 columns on: what does not fit in a table is left out, the least
telling column first; sentences wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddl.core.snapshot import PRESENT, tokens_per_s
from ddl.protocol.records import Fact, LearnerView, Round, RunSnapshot
from ddl_cli.units import short_names, short_number, short_time

GAP: Final = 2
"""Blanks between two columns."""

EVENTS: Final = 8
"""Events shown where the height allows."""

_STATE_STYLES: Final = {"training": "green", "joining": "cyan", "gone": "red", "left": "dim"}
_UNKNOWN: Final = "-"


def status(
    snapshot: RunSnapshot, *, width: int, height: int | None = None, notice: str = ""
) -> RenderableType:
    """The whole picture.

    Args:
        width: columns to fit into.
        height: lines to fit into, if possible; None for no limit.
        notice: a sentence that stands above everything, such as that Redis does not answer.
    """
    heading = [Text(notice, "bold yellow")] if notice else []
    heading += _heading(snapshot)
    rounds = [_round(round_, snapshot.taken_at) for round_ in snapshot.rounds]
    room = height - num_lines([*heading, *rounds], width) - 4 if height else None
    blocks: list[RenderableType] = [*heading]
    if snapshot.learners:
        blocks += [Text(), _learners(snapshot, width, room)]
    if rounds:
        blocks += [Text(), *rounds]
    left = EVENTS if room is None else min(EVENTS, room - len(snapshot.learners))
    if snapshot.events and left > 0:
        crop_to = None if height is None else width
        blocks.append(Text())
        blocks += [_event(fact, snapshot.taken_at, crop_to) for fact in snapshot.events[-left:]]
    return Group(*blocks)


def num_lines(texts: Sequence[Text], width: int) -> int:
    """Lines that sentences take when they are wrapped at `width`, at most."""
    return sum(-(-len(text) // max(1, width - 8)) for text in texts)


def summary(snapshot: RunSnapshot) -> str:
    """Where the run stands, in one line."""
    run = snapshot.run
    training = [learner for learner in snapshot.learners if learner.state == "training"]
    parts = [f"version {run.global_version}"]
    done = done_ratio(snapshot)
    if done is not None:
        parts[0] += f" ({done:.0%})"
    if snapshot.loss is not None:
        parts.append(f"loss {snapshot.loss:.3f}")
    parts.append(f"{len(training)} of {len(snapshot.learners)} learners training")
    rate = sum(tokens_per_s(learner) or 0.0 for learner in training)
    if rate:
        parts.append(f"{short_number(rate)} tokens/s")
    if run.eta_s is not None:
        parts.append(f"{short_time(run.eta_s)} left")
    return ", ".join(parts)


def done_ratio(snapshot: RunSnapshot) -> float | None:
    """Share of the run's stop budget that is used up, None without one."""
    run = snapshot.run
    shares = []
    if run.stop_tokens:
        shares.append(run.progress / run.stop_tokens)
    if run.stop_commits:
        shares.append(run.global_version / run.stop_commits)
    return min(1.0, max(shares)) if shares else None


# ---- heading ----------------------------------------------------------------------------------


def _heading(snapshot: RunSnapshot) -> list[Text]:
    run, coordinator = snapshot.run, snapshot.coordinator
    first = Text.assemble(
        (run.name, "bold"), "  ", (run.state, "green" if run.state == "running" else "yellow")
    )
    first.append(f"  version {run.global_version}")
    if run.line:
        first.append(f" on line {run.line}")
    done = done_ratio(snapshot)
    if done is not None:
        budget = f"{run.stop_commits} commits" if run.stop_commits else ""
        if run.stop_tokens:
            budget = f"{short_number(run.stop_tokens)} tokens" + (f" or {budget}" if budget else "")
        first.append(f"  {done:.0%} of {budget}")
    if run.eta_s is not None:
        first.append(f"  {short_time(run.eta_s)} left")
    second = Text(f"loss {_optional(snapshot.loss, '.3f')}")
    second.append(f"  {short_number(run.progress)} tokens merged")
    if coordinator.lease_left_s is not None:
        second.append(f"  coordinator {coordinator.holder} (epoch {coordinator.epoch})")
    elif run.state != "stopped":
        second.append("  no coordinator", "red")
    return [first, second, *_services(snapshot)]


def _services(snapshot: RunSnapshot) -> list[Text]:
    """A line for each service with something to say; a healthy one says nothing."""
    lines = []
    for name, title in (("redis", "Redis"), ("store", "store")):
        service = snapshot.services[name]
        if service.error:
            lines.append(Text(f"{title}: {service.error}", "yellow" if service.ok else "red"))
    return lines


# ---- learners ---------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the table of learners; the one with the lowest rank is the last to go."""

    title: str
    rank: int
    cell: Callable[[LearnerView, float], str]
    right: bool = True


def _state(learner: LearnerView, now: float) -> str:
    if learner.state == "training":
        return learner.state
    return f"{learner.state} {short_time(now - learner.since_at)}"


def _last(learner: LearnerView, now: float) -> str:
    if learner.last is None:
        return _UNKNOWN
    age = "" if learner.last.at is None else f" {short_time(now - learner.last.at)} ago"
    return learner.last.fate + age


def _rate(learner: LearnerView, _now: float) -> str:
    rate = tokens_per_s(learner)
    return _UNKNOWN if rate is None else short_number(rate)


def _stall(learner: LearnerView, _now: float) -> str:
    whole_s = learner.stall_s + learner.busy_s
    return _UNKNOWN if whole_s <= 0 else f"{learner.stall_s / whole_s:.1%}"


def _upload(learner: LearnerView, _now: float) -> str:
    if learner.upload is None:
        return _UNKNOWN
    return f"{learner.upload.done_bytes / max(1, learner.upload.bytes):.0%}"


COLUMNS: Final = (
    Column("state", 0, _state, right=False),
    Column("step", 2, lambda learner, _: short_number(learner.step)),
    Column("tok/s", 1, _rate),
    Column("loss", 4, lambda learner, _: _optional(learner.loss, ".3f")),
    Column("share", 5, lambda learner, _: f"{learner.share_ratio:.0%}"),
    Column("last hand-in", 3, _last, right=False),
    Column("stall", 6, _stall),
    Column("upload", 8, _upload),
    Column("beat", 7, lambda learner, _: short_time(learner.beat_age_s)),
    Column("memory", 9, lambda learner, _: f"{short_number(learner.rss_bytes)}B"),
    Column("lr", 10, lambda learner, _: _optional(learner.lr, ".2g")),
    Column("device", 11, lambda learner, _: learner.device or _UNKNOWN, right=False),
    Column("host", 12, lambda learner, _: learner.host or _UNKNOWN, right=False),
)


def _learners(snapshot: RunSnapshot, width: int, room: int | None) -> RenderableType:
    now = snapshot.taken_at
    rows = sorted(snapshot.learners, key=lambda learner: (learner.state not in PRESENT, learner.id))
    limit = len(rows) if room is None or len(rows) <= room else max(3, room - 1)
    rows, hidden = rows[:limit], rows[limit:]
    names = short_names([learner.id for learner in rows], max(8, width // 3))
    cells = {c.title: [c.cell(learner, now) for learner in rows] for c in COLUMNS}
    widths = {t: max(map(len, [t, *column])) for t, column in cells.items()}
    shown = fit(COLUMNS, widths, width - max(map(len, ["learner", *names])))
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("learner", no_wrap=True)
    for column in shown:
        table.add_column(
            column.title,
            no_wrap=True,
            justify="right" if column.right else "left",
            min_width=widths[column.title],
        )
    for index, learner in enumerate(rows):
        state_style = _STATE_STYLES.get(learner.state, "yellow")
        table.add_row(
            names[index],
            *(
                Text(cells[c.title][index], state_style if c.title == "state" else "")
                for c in shown
            ),
        )
    if not hidden:
        return table
    present = sum(learner.state in PRESENT for learner in hidden)
    return Group(table, Text(f"and {len(hidden)} more, {present} of them present", "dim"))


def fit(columns: Sequence[Column], widths: dict[str, int], room: int) -> list[Column]:
    """The columns that fit into `room` blanks included, chosen by rank, in the given order.

    The first in rank always stays; one that does not fit makes way for later, narrower ones.
    """
    chosen: set[str] = set()
    for column in sorted(columns, key=lambda c: c.rank):
        needed = GAP + widths[column.title]
        if needed <= room or not chosen:
            chosen.add(column.title)
            room -= needed
    return [column for column in columns if column.title in chosen]


# ---- rounds and events --------------------------------------------------------------------------


def _round(round_: Round, now: float) -> Text:
    left_s = round_.deadline_at - now
    deadline = f"{short_time(left_s)} to deadline" if left_s > 0 else "deadline is over"
    late = f", late from before: {', '.join(round_.late)}" if round_.late else ""
    return Text.assemble(
        (f"round of fragment {round_.fragment} -> v{round_.version_before + 1}: ", "dim"),
        f"{len(round_.arrived)} in, quorum {round_.quorum}",
        (f", open {short_time(now - round_.opened_at)}, {deadline}{late}", "dim"),
        f"; {round_.reason}" if round_.reason else "",
    )


def _event(fact: Fact, now: float, crop_to: int | None) -> Text:
    line = Text.assemble((f"{short_time(now - fact.at):>6} ago  ", "dim"), fact.text)
    if crop_to is not None:
        line.truncate(crop_to)
    return line


def _optional(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)
