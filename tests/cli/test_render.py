"""The picture of a run, at the widths that people have."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ddl.core.snapshot import snapshot
from ddl.protocol.records import RunSnapshot
from ddl_cli import render
from tests.views import learner, view

GOLDEN = Path(__file__).parent / "golden"


def sample() -> RunSnapshot:
    shown = snapshot(view())
    assert shown is not None
    return shown


def picture(
    shown: RunSnapshot, width: int, *, height: int | None = None, notice: str = ""
) -> list[str]:
    console = Console(width=width, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(render.status(shown, width=width, height=height, notice=notice))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_picture_is_the_one_on_file(width: int) -> None:
    """Byte for byte; REWRITE_GOLDEN=1 in front of pytest writes it anew, to be looked at."""
    file = GOLDEN / f"status-{width}.txt"
    drawn = "\n".join(picture(sample(), width)) + "\n"
    if os.environ.get("REWRITE_GOLDEN"):
        file.write_text(drawn, "utf-8")
    assert drawn == file.read_text("utf-8")


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Nothing is cut in the middle of a cell: columns go, sentences wrap."""
    lines = picture(sample(), width)
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("anna") and "training" in line for line in lines)


def test_long_ids_are_told_apart_in_a_narrow_window() -> None:
    """Hosts of one cluster differ in a few characters, and these are kept."""
    ids = [f"gpu-cluster-frankfurt-node-{n}-a3f2" for n in (17, 18, 19)]
    shown = snapshot(view(learners={id_: learner(id_) for id_ in ids}))
    assert shown is not None
    lines = picture(shown, 40)
    start = next(i for i, line in enumerate(lines) if line.startswith("learner"))
    names = {line.split()[0] for line in lines[start + 1 : start + 4]}
    assert len(names) == 3


def test_a_low_window_shows_fewer_learners_and_says_so() -> None:
    """The present ones come first; the rest is counted."""
    learners = {f"l{n:02d}": learner(f"l{n:02d}") for n in range(30)}
    shown = snapshot(view(learners=learners, beats={"l29": view().now}))
    assert shown is not None
    lines = picture(shown, 80, height=20)
    assert len(lines) <= 20
    assert next(line for line in lines if line.startswith("l")) is not None
    table = [line for line in lines if line[:1] == "l" and line[1:3].isdigit()]
    assert table[0].startswith("l29")
    assert f"and {30 - len(table)} more, 0 of them present" in lines


def test_what_is_wrong_stands_above_everything() -> None:
    """A notice is the first line; an ailing store and a missing coordinator are named."""
    ill = view(learners={"anna": learner("anna", store_down_s=31.0)}, lease=None, lease_left_s=None)
    shown = snapshot(ill)
    assert shown is not None
    lines = picture(shown, 80, notice="Redis is away")
    assert lines[0] == "Redis is away"
    assert any("no coordinator" in line for line in lines)
    assert "store: not reached by anna for 31 s" in lines


def test_a_round_says_what_it_waits_for() -> None:
    """Quorum, who is in, how long it is open, the time to its deadline, and the reason."""
    text = " ".join(picture(sample(), 80))
    assert (
        "round of fragment 1 -> v8: 1 in, quorum 2, open 1.5 s, 3.5 s to deadline; "
        "needs 2 contributions, 1 in" in text
    )


def test_the_summary_is_one_line() -> None:
    """For logs: version, share done, loss, learners, pace, time left."""
    assert render.summary(sample()) == (
        "version 15 (40%), loss 2.543, 2 of 4 learners training, 15k tokens/s, 40 s left"
    )


def test_without_a_budget_no_share_is_shown() -> None:
    """A run without an end has no percentage."""
    run = msgspec.structs.replace(sample().run, stop_tokens=0, stop_commits=0)
    assert render.done_ratio(msgspec.structs.replace(sample(), run=run)) is None
