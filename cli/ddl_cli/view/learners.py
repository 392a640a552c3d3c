"""The table of learners, and all that is known of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from ddl.core.membership import PRESENT
from ddl.core.snapshot import tokens_per_s
from ddl.protocol.records import HandinId, LearnerView, RunSnapshot
from ddl_cli.units import short_number, short_time
from ddl_cli.view.curve import bar
from ddl_cli.view.text import (
    UNKNOWN,
    Canvas,
    Column,
    Table,
    cropped,
    optional,
    sentence,
    short_loss,
)

_STATE_STYLES: Final = {"training": "green", "joining": "cyan", "gone": "red", "left": "dim"}
_FATE_STYLES: Final = {"merged": "", "refused": "red", "expired": "yellow", "lost": "yellow"}


def _state(one: LearnerView, now: float) -> str:
    text = f"{one.state} {short_time(now - one.since_at)}"
    if one.state == "training":
        text = "training, no store" if one.store_down_s else "training"
    return f"{text}, life {one.incarnation}" if one.incarnation > 1 else text


def _state_style(one: LearnerView) -> str:
    if one.state == "left" and one.error:
        return "red"
    if one.store_down_s:
        return "yellow"
    return _STATE_STYLES.get(one.state, "yellow")


def _last(one: LearnerView, now: float) -> str:
    if one.last is None:
        return UNKNOWN
    late = f" {one.last.staleness} late" if one.last.staleness else ""
    life = HandinId.parse(one.last.id).incarnation
    former = f" in life {life}" if life < one.incarnation else ""
    age = "" if one.last.at is None else f" {short_time(now - one.last.at)} ago"
    return one.last.fate + late + former + age


def _last_style(one: LearnerView) -> str:
    return "" if one.last is None else _FATE_STYLES.get(one.last.fate, "")


def _rate(one: LearnerView, _now: float) -> str:
    rate = tokens_per_s(one)
    return UNKNOWN if rate is None else short_number(rate)


def _steps_per_s(one: LearnerView, _now: float) -> str:
    return UNKNOWN if not one.step_s or one.state != "training" else f"{1 / one.step_s:.3g}"


def _stall_ratio(one: LearnerView) -> float:
    whole_s = one.stall_s + one.busy_s
    return one.stall_s / whole_s if whole_s > 0 else 0.0


def _stall(one: LearnerView, _now: float) -> str:
    return UNKNOWN if one.stall_s + one.busy_s <= 0 else f"{_stall_ratio(one):.1%}"


def _upload(one: LearnerView, _now: float) -> str:
    if one.upload is None or one.state not in PRESENT:
        return UNKNOWN
    done = one.upload.done_bytes / max(1, one.upload.bytes)
    return f"{done:.0%} {short_number(one.upload.bytes_per_s)}B/s"


def _held(one: LearnerView, _now: float) -> str:
    """Lowest and highest version of the fragments that it has adopted."""
    if not one.held:
        return UNKNOWN
    low, high = min(one.held), max(one.held)
    return f"v{low}" if low == high else f"v{low}-{high}"


TABLE: Final = Table(
    "learner",
    lambda one: one.id,
    (
        Column("state", 0, _state, right=False, style=_state_style, order=lambda o: -o.since_at),
        Column("step", 2, lambda o, _: short_number(o.step), order=lambda o: o.step),
        Column("steps/s", 12, _steps_per_s, order=lambda o: 1 / o.step_s if o.step_s else 0.0),
        Column("tok/s", 1, _rate, order=lambda o: tokens_per_s(o) or 0.0),
        Column("tokens", 11, lambda o, _: short_number(o.tokens), order=lambda o: o.tokens),
        Column("loss", 4, lambda o, _: short_loss(o.loss), order=lambda o: o.loss or 0.0),
        Column("share", 5, lambda o, _: f"{o.share_ratio:.0%}", order=lambda o: o.share_ratio),
        Column(
            "last hand-in",
            3,
            _last,
            right=False,
            style=_last_style,
            order=lambda o: o.last.at or 0.0 if o.last else 0.0,
        ),
        Column("behind", 7, lambda o, _: str(o.behind or UNKNOWN), order=lambda o: o.behind),
        Column("upload", 6, _upload, order=lambda o: o.upload.bytes_per_s if o.upload else 0.0),
        Column("stall", 8, _stall, order=_stall_ratio),
        Column("beat", 9, lambda o, _: short_time(o.beat_age_s), order=lambda o: o.beat_age_s),
        Column(
            "memory", 10, lambda o, _: f"{short_number(o.rss_bytes)}B", order=lambda o: o.rss_bytes
        ),
        Column("holds", 14, _held),
        Column("lr", 13, lambda o, _: optional(o.lr, ".2g"), order=lambda o: o.lr or 0.0),
        Column("device", 15, lambda o, _: o.device or UNKNOWN, right=False),
        Column("host", 16, lambda o, _: o.host or UNKNOWN, right=False),
    ),
)


def chosen(
    shown: RunSnapshot, *, pattern: str = "", sort: str = "", descending: bool = False
) -> list[LearnerView]:
    """The learners to show, in order: by a column of the table; by none, those present first.

    Args:
        pattern: part of an id, a host, a device or a state; others are left out.
    """
    found = [one for one in shown.learners if _matches(one, pattern)]
    rows = TABLE.sorted(found, sort, descending=descending)
    return rows if sort else sorted(rows, key=lambda one: one.state not in PRESENT)


def _matches(one: LearnerView, pattern: str) -> bool:
    return any(pattern in text for text in (one.id, one.host, one.device, one.state))


def table(
    rows: Sequence[LearnerView],
    shown: RunSnapshot,
    canvas: Canvas,
    *,
    room: int | None = None,
    selected: str = "",
) -> list[Text]:
    """The table of `rows` in at most `room` lines, around the selected one; counts the others."""
    if room is None or len(rows) + 1 <= room:
        return TABLE.lines(rows, canvas, shown.taken_at, selected=selected)
    size = max(1, room - 2)
    at = next((index for index, one in enumerate(rows) if one.id == selected), 0)
    start = min(max(0, at - size // 2), len(rows) - size)
    seen, hidden = rows[start : start + size], [*rows[:start], *rows[start + size :]]
    present = sum(one.state in PRESENT for one in hidden)
    return [
        *TABLE.lines(seen, canvas, shown.taken_at, selected=selected),
        cropped(Text(f"and {len(hidden)} more, {present} of them present", "dim"), canvas),
    ]


def detail(one: LearnerView, shown: RunSnapshot, canvas: Canvas) -> list[Text]:
    """All that is known of one learner, but for its events."""
    now = shown.taken_at
    facts = [
        ("state", f"{one.state}, for {short_time(now - one.since_at)}"),
        ("machine", f"{one.host or UNKNOWN}, {one.device or UNKNOWN}"),
        ("life", f"incarnation {one.incarnation}, started {short_time(now - one.started_at)} ago"),
        ("last beat", f"{short_time(one.beat_age_s)} ago"),
        ("trained", f"{one.step} steps, {short_number(one.tokens)} tokens{_since(one)}"),
        ("speed", f"{_steps_per_s(one, now)} steps/s, {_rate(one, now)} tokens/s"),
        ("loss, lr", f"{optional(one.loss, '.4f')}, {optional(one.lr, '.3g')}"),
        ("in ddl", f"{_stall(one, now)} of its time; last step {short_time(one.idle_s)} ago"),
        ("share", f"{one.share_ratio:.1%} of what was merged lately"),
        ("discarded", f"{short_number(one.discarded_tokens)} tokens"),
        ("last hand-in", _last_in_full(one, now)),
        ("upload", _upload_in_full(one)),
        ("moved", f"up {short_number(one.up_bytes)}B, down {short_number(one.down_bytes)}B"),
        ("memory", f"{short_number(one.rss_bytes)}B"),
        ("holds", _versions(one, shown)),
        ("error", one.error),
        ("aside", one.aside),
    ]
    lines = []
    for name, text in facts:
        if text:
            style = "red" if name in ("error", "aside") else ""
            lines += sentence(text, canvas, mark=f"  {name:<14}", style=style)
    return lines


def _since(one: LearnerView) -> str:
    """Steps and tokens are those of its process alone; the run keeps what came of earlier ones."""
    return f" since it came back as life {one.incarnation}" if one.incarnation > 1 else ""


def _last_in_full(one: LearnerView, now: float) -> str:
    if one.last is None:
        return UNKNOWN
    reason = f": {one.last.reason}" if one.last.reason else ""
    return f"{one.last.id} {_last(one, now)}{reason}"


def _upload_in_full(one: LearnerView) -> str:
    upload = one.upload
    if upload is None:
        return UNKNOWN
    done = f"{short_number(upload.done_bytes)}B of {short_number(upload.bytes)}B"
    share = bar(upload.done_bytes / max(1, upload.bytes), 22)
    return f"{share} {done} at {short_number(upload.bytes_per_s)}B/s"


def _versions(one: LearnerView, shown: RunSnapshot) -> str:
    """The version held of each fragment, and how far behind the newest it is."""
    newest = shown.run.versions
    parts = []
    for fragment, held in enumerate(one.held):
        behind = newest[fragment] - held if fragment < len(newest) else 0
        parts.append(f"f{fragment} v{held}" + (f" (-{behind})" if behind else ""))
    return ", ".join(parts) or UNKNOWN
