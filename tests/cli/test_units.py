"""Numbers, durations and names in tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_cli.units import short_names, short_number, short_time
from ddl_cli.view.text import short_loss


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1.0k"),
        (1_234, "1.2k"),
        (9_960, "10k"),
        (999_499, "999k"),
        (1_000_000, "1.0M"),
        (412_000_000, "412M"),
        (3e12, "3.0T"),
    ],
)
def test_counts(value: float, shown: str) -> None:
    """Two digits of a small count are told, and never more than five characters."""
    assert short_number(value) == shown


@given(st.floats(min_value=0, max_value=9e13))
def test_counts_are_short(value: float) -> None:
    """A column of them is narrow, whatever the count."""
    assert len(short_number(value)) <= 5


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1.0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1m00s"),
        (80, "1m20s"),
        (3_599.6, "1h00m"),
        (7_380, "2h03m"),
        (86_400 * 3 + 4 * 3_600, "3d04h"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    """The two largest units, rounded before they are split."""
    assert short_time(seconds) == shown


def test_long_names_lose_their_middle() -> None:
    """Both ends stay, where that tells names apart."""
    assert short_names(["gpu-node-17-a3f2", "anna"], 9) == ["gpu-~a3f2", "anna"]


def test_names_that_differ_in_the_middle_are_told_apart() -> None:
    """More of the start or the end is kept then."""
    short = short_names(["machine-a-room-1", "machine-b-room-1"], 9)
    assert len(set(short)) == 2
    assert all(len(name) <= 9 for name in short)


@given(
    st.lists(st.text("ab-1", min_size=1, max_size=30), min_size=1, max_size=20, unique=True),
    st.integers(min_value=6, max_value=20),
)
def test_short_names_fit_and_differ(names: list[str], width: int) -> None:
    """Whatever the names: none is longer than the column, and no two look the same."""
    short = short_names(names, width)
    assert all(len(name) <= width for name in short)
    assert len(set(short)) == len(names)


@pytest.mark.parametrize(
    ("loss", "shown"), [(None, "-"), (2.61, "2.610"), (9999.9, "9999.900"), (2.63e28, "2.6e+28")]
)
def test_a_loss_that_has_exploded_stays_short(loss: float | None, shown: str) -> None:
    """So that the table of learners keeps its columns."""
    assert short_loss(loss) == shown
