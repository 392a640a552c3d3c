"""Which units of data are finished: as ranges of tickets, which stay few since tickets go up.

A finished unit counts only when a record of the log lists it. Until then it stands in Redis, and its
learner repeats it; the coordinator's next record, of whatever kind, takes it along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddl.protocol.units import UnitsDone

Ranges = tuple[tuple[int, int], ...]
"""Half-open, ascending, apart: (0, 3), (5, 6) holds 0, 1, 2 and 5."""


def ranges_of(tickets: Iterable[int]) -> Ranges:
    """The fewest ranges that hold exactly these tickets."""
    return _joined((ticket, ticket + 1) for ticket in sorted(set(tickets)))


def union(some: Ranges, others: Ranges) -> Ranges:
    """Ranges that hold the tickets of both, which may overlap."""
    return _joined(sorted([*some, *others]))


def holds(ranges: Ranges, ticket: int) -> bool:
    """Whether the ticket is in one of the ranges."""
    return any(first <= ticket < end for first, end in ranges)


def size(ranges: Ranges) -> int:
    """How many tickets the ranges hold."""
    return sum(end - first for first, end in ranges)


def _joined(ascending: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, end in ascending:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return tuple(joined)


def fold(before: Mapping[str, UnitsDone], added: Mapping[str, UnitsDone]) -> dict[str, UnitsDone]:
    """What is finished after a record that adds `added`."""
    after = dict(before)
    for name, more in added.items():
        known = before.get(name, UnitsDone(plan=more.plan))
        after[name] = UnitsDone(
            plan=more.plan,
            finished=union(known.finished, more.finished),
            repeated=more.repeated,
        )
    return after


def misfit(before: Mapping[str, UnitsDone], added: Mapping[str, UnitsDone]) -> str:
    """Why a record cannot add `added`, a sentence; empty if it can. Nothing is finished twice."""
    for name, more in added.items():
        known = before.get(name, UnitsDone(plan=more.plan))
        if more.plan != known.plan:
            return f"data {name!r} is cut as {more.plan}, not as {known.plan}"
        if more.finished != _joined(more.finished) or any(
            first >= end for first, end in more.finished
        ):
            return f"data {name!r} names tickets {more.finished}, which are no ascending ranges"
        both = union(known.finished, more.finished)
        if size(both) != size(known.finished) + size(more.finished):
            return f"data {name!r} names tickets that were finished before, in {more.finished}"
    return ""


class UnitsInbox:
    """Finished units that no record lists yet.

    Attributes:
        told: all that Redis names as finished now, by data set; much of it is in the log already.
    """

    def __init__(self) -> None:
        self.told: Mapping[str, UnitsDone] = {}

    def unlogged(self, logged: Mapping[str, UnitsDone]) -> dict[str, UnitsDone]:
        """What the next record has to add to `logged`."""
        added = {}
        for name, told in sorted(self.told.items()):
            known = logged.get(name, UnitsDone(plan=told.plan))
            if told.plan != known.plan:
                continue  # Redis was lost, and is about to be rebuilt from the log
            tickets = (t for first, end in told.finished for t in range(first, end))
            new = ranges_of(t for t in tickets if not holds(known.finished, t))
            # after a loss of Redis its totals may be behind: they never fall
            repeated = {
                reason: max(told.repeated.get(reason, 0), known.repeated.get(reason, 0))
                for reason in sorted({*told.repeated, *known.repeated})
            }
            if new or repeated != known.repeated:
                added[name] = UnitsDone(plan=told.plan, finished=new, repeated=repeated)
        return added
