"""What the coordinator's core can be told, and what it can order.

Every order's result comes back as an event; an order without a result event is repeated by the
shell until it succeeds or the lease is lost. Both are plain frozen values, so that the coordinator
process, the simulator and the tests drive the very same core.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ddl.core.log import FragmentHead
from ddl.core.retire import Horizon
from ddl.protocol.records import (
    FragmentState,
    FragmentStep,
    Handin,
    HandinId,
    Head,
    Health,
    LearnerRecord,
    LogRecord,
    Order,
    Receipt,
    Request,
    Round,
    Waits,
)
from ddl.protocol.units import UnitsDone


class Event(msgspec.Struct, frozen=True):
    """Told to the core."""


class Beat(Event, frozen=True):
    """A learner's record, last written at `at`."""

    record: LearnerRecord
    at: float


class Announced(Event, frozen=True):
    """A hand-in stands in Redis (or was found by listing the store)."""

    handin: Handin


FetchOutcome = Literal["ok", "damaged", "missing", "refused", "unavailable"]


class Fetched(Event, frozen=True):
    """What became of `Fetch`. `norm` is the L2 norm of the decoded movement when ok.

    "damaged" and "missing" may be mended by the learner; "refused" is final; "unavailable" says
    nothing of the payload: the store did not answer.
    """

    id: HandinId
    outcome: FetchOutcome
    reason: str = ""
    norm: float | None = None
    seconds: float = 0.0


class Merged(Event, frozen=True):
    """`Merge` is done and its payloads lie in the store."""

    launch: int
    step: FragmentStep
    health: Health
    kernel: str
    waits: Waits


class MergeFailed(Event, frozen=True):
    """`Merge` could not be done. `bad`: contributions that are the cause, with the reason each."""

    launch: int
    reason: str
    bad: tuple[tuple[HandinId, str], ...] = ()


class RecordWritten(Event, frozen=True):
    """The record of `WriteRecord` is in the log."""

    record: LogRecord
    digest: str


class RecordTaken(Event, frozen=True):
    """Another coordinator's record stands at that seq."""

    record: LogRecord
    digest: str


class Requested(Event, frozen=True):
    """A person wants something."""

    request: Request


class UnitsTold(Event, frozen=True):
    """All units of data that Redis names as finished, by data set, whether in the log or not."""

    told: dict[str, UnitsDone]


class VersionFound(Event, frozen=True):
    """What became of `FindVersion`: the fragments and the progress of that version, or why there is
    no way back to it."""

    version: int
    fragments: tuple[FragmentHead, ...] = ()
    progress: float = 0.0
    problem: str = ""


class ClockJumped(Event, frozen=True):
    """The server's clock moved by `seconds` against a monotonic clock; open instants move along."""

    seconds: float


class Tick(Event, frozen=True):
    """Time passed."""


class Command(msgspec.Struct, frozen=True):
    """Ordered by the core."""


class Fetch(Command, frozen=True):
    """Get this payload, check it against the announcement, answer with `Fetched`."""

    handin: Handin


class AskAgain(Command, frozen=True):
    """Tell the learner to put this payload again."""

    handin: Handin


class Drop(Command, frozen=True):
    """Forget a fetched payload: it has its receipt."""

    id: HandinId


class MergeInput(msgspec.Struct, frozen=True):
    """One contribution of a merge, and its weight."""

    handin: Handin
    weight: float


class Merge(Command, frozen=True):
    """Merge these (sorted by id) onto `base`, put the results, answer `Merged` or `MergeFailed`."""

    launch: int
    fragment: int
    base: FragmentHead
    inputs: tuple[MergeInput, ...]
    lr: float
    momentum: float


class WriteRecord(Command, frozen=True):
    """Put this record create-once; answer `RecordWritten` or `RecordTaken`."""

    record: LogRecord


class WriteCheckpoint(Command, frozen=True):
    """Put the folded log as of now."""

    seq: int


class FindVersion(Command, frozen=True):
    """Look up this global version in the log, see that its objects are there, answer `VersionFound`."""

    version: int


class Sweep(Command, frozen=True):
    """Remove objects that nobody needs, as things stand now; has no result."""

    horizon: Horizon


class Show(Command, frozen=True):
    """Bring Redis up to date after a record."""

    head: Head
    fragments: tuple[FragmentState, ...]
    receipts: tuple[Receipt, ...]
    settings_changed: bool = False


class ShowRounds(Command, frozen=True):
    """The open rounds, as they are now; `opened` when learners should look at once."""

    rounds: tuple[Round, ...]
    opened: bool


class GiveOrder(Command, frozen=True):
    """Give one learner an order, or withdraw it."""

    learner: str
    order: Order | None


class Forget(Command, frozen=True):
    """Remove what Redis knows of a learner that has been away for long; it may join again."""

    learner: str
    incarnation: int


class Answer(Command, frozen=True):
    """This request has been dealt with: `text` says how, `wish` what it was and whose."""

    request_id: str
    text: str
    wish: str = ""


class Say(Command, frozen=True):
    """A fact for people. `at`: when it came about, if not just now."""

    name: str
    text: str
    fields: dict[str, Any] = {}
    at: float | None = None


class Quit(Command, frozen=True):
    """This coordinator must end: the run is over, or another one holds it."""

    reason: str
    outcome: Literal["stopped", "lease_lost"]
