"""Units of data: what learners, Redis and the log say of them.

A data set is cut into units, and each epoch goes through all of them in an order of its own. One
number, the **ticket**, names one reading of one unit: epoch * units + place in that epoch's order.
So the first tickets are the first epoch, and "each unit once an epoch" is "each ticket once": Redis
and the coordinator hand out and count numbers, and need to know nothing of the data.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

import msgspec

from ddl.errors import ConfigError

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def check_data_name(name: str) -> str:
    """Return `name` if it can name a data set of a run. Raises: ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"data name {name!r} is not usable",
            hint="Use 1 to 32 of a-z, 0-9, '_' and '-', starting with a letter or digit",
        )
    return name


class UnitsDone(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one data set that are finished.

    In a record of the log: those that it adds. In the folded log and in Redis: all of them.

    Attributes:
        plan: names the way in which the data is cut; learners with another one are refused.
        finished: tickets, as half-open ranges [first, end) that ascend and do not touch.
        repeated: by reason, how often a unit was read again beside its finished reading: a total,
            in a record as well. Reasons are those of `Repeat`.
    """

    plan: str
    finished: tuple[tuple[int, int], ...] = ()
    repeated: dict[str, int] = {}


Reason = Literal["returned", "late", "unclaimed"]
"""Why a unit is read more than once.

"returned": whoever had begun it was gone, so it was begun anew. "late": a learner was away for so
long, or Redis had lost its claim, that another one read the unit too. "unclaimed": read without a
claim while Redis was away, and by another learner as well.
"""


class Repeat(NamedTuple):
    """A unit that is read more than once, and why."""

    ticket: int
    reason: Reason


class Grant(NamedTuple):
    """A ticket to read from now on. `rows`: how many rows of it have been read already."""

    ticket: int
    rows: int


How = Literal["claimed", "unclaimed", "kept"]


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket that a learner holds.

    Attributes:
        begun: whether rows of it were read.
        rows: where another learner may go on should this one go: where it went on itself until it
            begins, then 0, since what it learns may be lost with it; its place once it has left and
            handed in what it learned.
        how: "claimed"; "unclaimed", taken without asking while Redis was away; or "kept" from a
            former life, of which Redis knew that it had begun it, and which may have finished it.
    """

    ticket: int
    begun: bool
    rows: int = 0
    how: How = "claimed"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket that a learner has finished. `claimed` is False if it was taken without asking."""

    ticket: int
    claimed: bool


class UnitCall(msgspec.Struct, frozen=True, kw_only=True):
    """A learner's word on one data set: all that it holds and has finished, and what it wants.

    A call that got no answer is made again unchanged; `number` shows that it is the same one.
    `finished` names a reading until a reply has settled it.
    """

    name: str
    plan: str
    number: int
    held: tuple[Holding, ...]
    finished: tuple[Reading, ...]
    want: int


class UnitReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `UnitCall`.

    Attributes:
        granted: tickets to read, lowest first; fewer than wanted never.
        lost: held ones that are another learner's now, or finished: stop reading them.
        settled: finished ones that need not be told any more: in the log, or counted as repeated.
        repeated: what this call showed to be read twice.
    """

    granted: tuple[Grant, ...] = ()
    lost: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()
    repeated: tuple[Repeat, ...] = ()
