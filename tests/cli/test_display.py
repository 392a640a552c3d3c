"""What a run looks like in a log: plain lines, one after the other."""

from __future__ import annotations

import msgspec

from ddl.core.snapshot import snapshot
from ddl_cli.display import Lines
from tests.views import NOW, fact, view


def test_times_go_forward_also_where_events_are_told_late() -> None:
    """Whoever joined some seconds ago may be heard of only now: the line says both. What is a moment
    late is not worth a word."""
    first = snapshot(view(facts=(fact(9, "learner.joined", "anna joined"),)))
    assert first is not None
    late = (
        fact(5, "learner.joined", "bert joined"),
        fact(1, "learner.joined", "cleo joined"),
        fact(-1, "learner.joined", "dora joined"),
    )
    lines: list[str] = []
    shown = Lines(lines.append)
    shown.show(first)
    shown.show(msgspec.structs.replace(first, events=(*first.events, *late), taken_at=NOW + 1))
    times = [line.split()[0] for line in lines]
    assert lines[1].startswith(f"{_plus(times[0], 9)} version 15"), "where the run stands at NOW"
    assert lines[2] == f"{times[1]} bert joined (at {_plus(times[0], 4)})"
    assert lines[3:] == [f"{times[1]} cleo joined", f"{_plus(times[1], 1)} dora joined"]


def test_events_that_are_too_many_are_left_out() -> None:
    """Only those; where the run stands is told all the same."""
    facts = (
        fact(9, "version.published", "version 15: ..."),
        fact(8, "learner.joined", "anna joined"),
    )
    first = snapshot(view(facts=facts))
    assert first is not None
    lines: list[str] = []
    Lines(lines.append, left_out=["version.published"]).show(first)
    assert [line.split(" ", 1)[1].split(",")[0] for line in lines] == [
        "anna joined",
        "version 15 (40%)",
    ]


def _plus(clock: str, seconds: int) -> str:
    hours, minutes, rest = map(int, clock.split(":"))
    total = hours * 3600 + minutes * 60 + rest + seconds
    return f"{total // 3600 % 24:02}:{total // 60 % 60:02}:{total % 60:02}"
