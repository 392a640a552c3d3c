"""`ddl runs`: the list, in windows of any width and in pipes."""

from __future__ import annotations

import pytest

from ddl_cli.listing import RunList, RunRow, lines
from ddl_cli.view.text import Canvas

STORE = "s3://a-bucket-with-a-long-name/and/a/prefix/of/some/length"
RUNS = RunList(
    where="redis://host:6379/0",
    runs=(
        RunRow(
            name="two-machines",
            store=STORE,
            state="running",
            global_version=1234,
            progress=1.2e9,
            loss=2.5,
            coordinator="vm-2367-1bdc7218",
            num_learners=12,
        ),
        RunRow(name="old", store="file:///srv/ddl", state="stopped", coordinator=""),
        RunRow(
            name="lost", store="file:///srv/ddl", problem="Redis has lost it; look in its store"
        ),
    ),
)


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_no_word_is_broken_at_any_width(width: int) -> None:
    """A column that does not fit is left out, the least telling one first."""
    shown = [line.plain for line in lines(RUNS, Canvas(width))]
    assert max(map(len, shown)) <= width
    head, first = shown[0], shown[1]
    assert head.split()[:2] == ["run", "state"]
    whole = {"running", "1234", "12", "2.500", "1.2G", "vm-2367-1bdc7218", STORE, "two-machines"}
    assert {word for word in first.split() if "~" not in word} <= whole
    assert "two-machines" in first or width < 60
    assert (STORE in first) == (width >= 120)


def test_a_pipe_gets_all_of_it() -> None:
    """One line a run, whatever its length; what is wrong with one stands below."""
    shown = [line.plain for line in lines(RUNS, Canvas())]
    assert len(shown) == 4
    assert shown[1].split() == [
        *("two-machines", "running", "1234", "1.2G", "2.500", "12", "vm-2367-1bdc7218", STORE)
    ]
    assert shown[2].split()[-2:] == ["none", "file:///srv/ddl"]
    assert shown[3] == "lost: Redis has lost it; look in its store"
