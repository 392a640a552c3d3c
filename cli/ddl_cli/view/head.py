"""The first lines of every page: how the run as a whole is doing, and what is wrong with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.text import Text

from ddl.core.snapshot import outcomes, tokens_per_s
from ddl.protocol.records import FATES, RunSnapshot, Trouble
from ddl_cli.units import short_number, short_time, times
from ddl_cli.view.curve import chart, curve
from ddl_cli.view.text import Canvas, cropped, flow, sentence, short_loss
from ddl_cli.view.trail import Rates

CURVE_WIDTH: Final = 24
"""Columns of the loss curve."""

CHART_HEIGHT: Final = (4, 10)
"""Lines of the loss chart, at least and at most."""

CHART_WIDTH: Final = 120
CHART_LABEL: Final = 8
CHART_LEAST: Final = 12
"""Fewer losses make no chart."""

ALIKE: Final = 3
"""So many troubles of one kind are told one by one; more of them together."""

_STATE_STYLES: Final = {"running": "bold green", "stopped": "bold"}


def head(shown: RunSnapshot, canvas: Canvas, rates: Rates) -> list[Text]:
    """How the run as a whole is doing."""
    return flow(_phrases(shown, canvas, rates), canvas)


def present(shown: RunSnapshot) -> float | None:
    """The present, where the snapshot is of it: a log alone is as old as its newest record."""
    return shown.taken_at if shown.coordinator.known else None


def date(at: float) -> str:
    """An instant, where nobody knows how long ago it was."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def done_ratio(shown: RunSnapshot) -> float | None:
    """Share of the run's stop budget that is used up, None without one."""
    run = shown.run
    shares = []
    if run.stop_tokens:
        shares.append(run.progress / run.stop_tokens)
    if run.stop_commits:
        shares.append(run.global_version / run.stop_commits)
    return min(1.0, max(shares)) if shares else None


def token_rate(shown: RunSnapshot) -> float:
    """Tokens per second of all learners that train."""
    return sum(tokens_per_s(one) or 0.0 for one in shown.learners)


def summary(shown: RunSnapshot) -> str:
    """Where the run stands, in one line, for logs."""
    run = shown.run
    training = [one for one in shown.learners if one.state == "training"]
    parts = [f"version {run.global_version}"]
    done = done_ratio(shown)
    if done is not None:
        parts[0] += f" ({done:.0%})"
    if shown.loss is not None:
        parts.append(f"loss {short_loss(shown.loss)}")
    parts.append(f"{len(training)} of {len(shown.learners)} learners training")
    rate = token_rate(shown)
    if rate:
        parts.append(f"{short_number(rate)} tokens/s")
    if run.eta_s is not None:
        parts.append(f"{short_time(run.eta_s)} left")
    return ", ".join(parts)


# ---- phrases ------------------------------------------------------------------------------------


def _phrases(shown: RunSnapshot, canvas: Canvas, rates: Rates) -> Iterator[Text]:
    yield _standing(shown)
    yield _loss(shown, canvas)
    yield _tokens(shown)
    yield from _members(shown)
    yield from _services(shown)
    yield from _traffic(shown, rates)
    yield from _ledger(shown)
    yield from _outer(shown)


def _standing(shown: RunSnapshot) -> Text:
    run = shown.run
    text = Text.assemble(
        (run.name, "bold"), "  ", (run.state, _STATE_STYLES.get(run.state, "bold red"))
    )
    now = present(shown)
    if now is not None and run.state == "running" and any(one.alarm for one in shown.troubles):
        idle_s = now - run.committed_at
        text.append(f", nothing merged for {short_time(idle_s)}", "bold red")
    text.append(f"  version {run.global_version}")
    if run.line:
        text.append(f", rolled back {times(run.line)}")
    done = done_ratio(shown)
    if done is not None:
        budget = f"{run.stop_commits} commits" if run.stop_commits else ""
        if run.stop_tokens:
            budget = f"{short_number(run.stop_tokens)} tokens" + (f" or {budget}" if budget else "")
        text.append(f"  {done:.0%} of {budget}")
    if run.eta_s is not None:
        text.append(f"  {short_time(run.eta_s)} left")
    return text


def _loss(shown: RunSnapshot, canvas: Canvas) -> Text:
    text = Text(f"loss {short_loss(shown.loss)}", "bold")
    if len(shown.losses) > 1:
        values = [loss for _, loss in shown.losses]
        first = shown.losses[0][0]
        text.append(f" {curve(values, CURVE_WIDTH, ascii_only=canvas.ascii)}", "cyan")
        text.append(f" since v{first}: {values[0]:.3f}", "dim")
    return text


def _tokens(shown: RunSnapshot) -> Text:
    text = Text(f"{short_number(shown.run.progress)} tokens merged")
    undone = shown.ledger.merged - shown.run.progress
    if shown.run.line and undone >= 1:
        text.append(f" (rollbacks undid {short_number(undone)} more)")
    rate = token_rate(shown)
    if rate:
        text.append(f", {short_number(rate)}/s")
    if shown.run.goodput_ratio is not None:
        text.append(f", goodput {shown.run.goodput_ratio:.0%}")
    return text


def _members(shown: RunSnapshot) -> Iterator[Text]:
    """How many learners there are, by state, the most first."""
    states = Counter(one.state for one in shown.learners)
    if states:
        listed = ", ".join(f"{count} {state}" for state, count in states.most_common())
        yield Text(f"learners: {listed}")


def _services(shown: RunSnapshot) -> Iterator[Text]:
    coordinator = shown.coordinator
    if not coordinator.known:
        yield Text(
            f"from the log in the store alone, whose newest record is of {date(shown.taken_at)}",
            "cyan",
        )
        if not shown.services["redis"].asked:
            yield Text("no Redis is named (--redis), so who is there now is not known", "dim")
        return
    if coordinator.lease_left_s is not None:
        text = Text(f"coordinator {coordinator.holder} (epoch {coordinator.epoch})")
        if coordinator.standbys:
            text.append(f", standby {', '.join(coordinator.standbys)}", "dim")
        yield text
    elif shown.run.state != "stopped":
        yield Text("no coordinator", "bold red")
    redis, store = shown.services["redis"], shown.services["store"]
    text = Text("Redis ")
    if not redis.ok:
        text.append("ails", "red")
    elif redis.latency_s is not None:
        text.append(_milliseconds(redis.latency_s))
    text.append(", store ")
    if not store.ok:
        text.append("ails", "red")
    elif store.latency_s is not None:
        text.append(_milliseconds(store.latency_s))
    else:
        text.append("ok", "green")
    yield text


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.{1 if seconds < 0.01 else 0}f} ms"


def _traffic(shown: RunSnapshot, rates: Rates) -> Iterator[Text]:
    up = sum(one.up_bytes for one in shown.learners)
    down = sum(one.down_bytes for one in shown.learners)
    if up or down:
        yield Text(
            f"up {short_number(up)}B{_speed(rates.up)}, down {short_number(down)}B{_speed(rates.down)} "
            "(present lives)"
        )


def _speed(rate: float | None) -> str:
    return "" if rate is None else f" at {short_number(rate)}B/s"


def _ledger(shown: RunSnapshot) -> Iterator[Text]:
    """Of the tokens handed in: what has become of them. What did not happen is left out."""
    ledger = shown.ledger
    if not ledger.handed_in:
        return
    text = Text("handed in: ")
    others = outcomes({fate: getattr(ledger, fate) for fate in FATES}, shown.run.progress)
    good = {"merged": others.pop("merged"), "outstanding": ledger.outstanding}
    parts = [(word, num) for word, num in {**good, **others}.items() if round(num)]
    for index, (word, num) in enumerate(parts):
        text.append(", " if index else "")
        text.append(f"{word} {_percent(num / ledger.handed_in)}", "" if word in good else "yellow")
        if word == "outstanding" and shown.run.state == "stopped":
            text.append(" (too late for the last version; taken up if the run goes on)")
    if ledger.discarded:
        text.append(f"; discarded {short_number(ledger.discarded)} before hand-in", "yellow")
        text.append(" (present lives)", "dim")
    yield text


def _percent(ratio: float) -> str:
    return f"{ratio:.1%}" if 0.0005 <= ratio < 0.9995 else f"{ratio:.0%}"


def _outer(shown: RunSnapshot) -> Iterator[Text]:
    health = shown.health
    parts = []
    if health.step_norm is not None:
        parts.append(f"step {health.step_norm:.3g}")
    if health.cos_peers is not None:
        parts.append(f"agreement {health.cos_peers:.2f}")
    if health.cos_prev is not None:
        parts.append(f"with momentum {health.cos_prev:+.2f}")
    if parts:
        yield Text(f"outer {', '.join(parts)}")


def loss_chart(shown: RunSnapshot, canvas: Canvas, *, room: int) -> list[Text]:
    """The loss over the versions that are known, as high as there is room for; nothing if that, or
    what is known, is too little."""
    height = min(CHART_HEIGHT[1], room - 1)
    if height < CHART_HEIGHT[0] or len(shown.losses) < CHART_LEAST or canvas.width is None:
        return []
    width = min(canvas.width, CHART_WIDTH) - CHART_LABEL
    values = [loss for _, loss in shown.losses]
    title = f"loss, v{shown.losses[0][0]} to v{shown.losses[-1][0]}"
    lines = chart(values, width, height, ascii_only=canvas.ascii)
    return [Text(title, "dim"), *(cropped(Text(line, "cyan"), canvas) for line in lines)]


# ---- troubles -----------------------------------------------------------------------------------


def troubles(
    shown: RunSnapshot, canvas: Canvas, *, notice: str = "", room: int | None = None
) -> list[Text]:
    """Everything that is wrong now, a sentence each, within `room` lines.

    `notice`: something about this view itself, such as that Redis does not answer; it comes first.
    """
    lines = sentence(notice, canvas, mark="!! ", style="bold yellow") if notice else []
    told = list(_together(shown.troubles))
    now = present(shown)
    for index, trouble in enumerate(told):
        mark, style = ("!! ", "bold red") if trouble.alarm else ("!  ", "yellow")
        more = sentence(_words(trouble, now), canvas, mark=mark, style=style)
        is_last = index == len(told) - 1
        if room is not None and lines and len(lines) + len(more) > room - (not is_last):
            rest = f"!  and {len(told) - index} more (4 shows all)"
            return [*lines, cropped(Text(rest, "yellow"), canvas)]
        lines += more
    return lines


def _words(trouble: Trouble, now: float | None) -> str:
    lasts = ""
    if trouble.since_at is not None and now is not None:
        lasts = f" ({short_time(now - trouble.since_at)})"
    elif trouble.since_at is not None:
        lasts = f" (since {date(trouble.since_at)})"
    cure = f". {trouble.cure[0].upper()}{trouble.cure[1:]}" if trouble.cure else ""
    return f"{trouble.what}{lasts}{cure}"


def _together(found: Iterable[Trouble]) -> Iterator[Trouble]:
    """Many of one kind as one, called by the first of them."""
    kinds: dict[str, list[Trouble]] = {}
    for trouble in found:
        kinds.setdefault(trouble.name, []).append(trouble)
    for alike in kinds.values():
        yield from alike if len(alike) <= ALIKE else [_as_one(alike)]


def _as_one(alike: Sequence[Trouble]) -> Trouble:
    first = alike[0]
    names = [name for trouble in alike[1:] for name in trouble.learners]
    others = ", ".join(names[:ALIKE]) + (
        f" and {len(names) - ALIKE} more" if len(names) > ALIKE else ""
    )
    return Trouble(
        name=first.name,
        alarm=any(trouble.alarm for trouble in alike),
        what=f"{first.what}; the same with {others}",
        cure=first.cure,
        since_at=min((t.since_at for t in alike if t.since_at is not None), default=None),
    )
