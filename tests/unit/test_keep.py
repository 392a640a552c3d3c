"""What the settings `[keep]` promise, now and over their changes."""

from __future__ import annotations

import pytest

from ddl.config import KeepSettings
from ddl.core.keep import Promises, keeps


@pytest.mark.parametrize(
    ("first", "last", "kept"),
    [
        (98, 98, True),  # the newest three are 98, 99, 100
        (97, 97, False),
        (60, 98, True),  # begun long ago, needed until lately
        (50, 50, True),  # every 50th
        (41, 63, True),  # the 50th is among them
        (51, 97, False),
        (0, 0, True),
    ],
)
def test_versions_are_kept_by_number(first: int, last: int, kept: bool) -> None:
    """The newest few, and every so manieth; an object is kept for any version that needs it."""
    keep = KeepSettings(versions=3, every=50)
    assert keeps(keep, newest=100, first=first, last=last) is kept


def test_without_every_only_the_newest_are_kept() -> None:
    """0 means none of these, version 0 included."""
    keep = KeepSettings(versions=3, every=0)
    assert not keeps(keep, newest=100, first=0, last=0)
    assert keeps(keep, newest=2, first=0, last=0)


def test_what_was_let_go_once_is_no_promise_any_more() -> None:
    """Keeping more later brings nothing back; keeping less later lets more go."""
    promises = Promises.genesis(KeepSettings(versions=1, every=0))
    promises.note(KeepSettings(versions=1, every=0), 10)
    promises.note(KeepSettings(versions=100, every=0), 10)
    promises.note(KeepSettings(versions=100, every=0), 20)
    assert not promises.hold(8, 9)
    assert promises.hold(10, 10)
    assert promises.hold(5, 15)  # version 10 to 15 need it
    promises.note(KeepSettings(versions=2, every=0), 21)
    assert not promises.hold(10, 10)
    assert promises.hold(20, 20)


def test_contributions_are_promised_while_all_are_kept() -> None:
    """From the version they went into, to the end."""
    everything = KeepSettings(contributions="all")
    promises = Promises.genesis(KeepSettings())
    promises.note(KeepSettings(), 4)
    promises.note(everything, 9)
    assert not promises.hold_contributions(4)
    assert promises.hold_contributions(5)
