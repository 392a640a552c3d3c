"""What `ddl` asks of the control plane (design 4.2).

Everything here may be lost and is rebuilt from the log and from what learners hold. Calls that
change more than one key are one Lua script. Every call of a coordinator is fenced by its epoch,
every call of a learner by the run's lineage and its own incarnation. An adapter maps all errors of
its client library to `ddl.errors.RegistryError` and passes `tests/contract/test_registry.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from ddl.config import RedisSettings, Settings
from ddl.protocol.records import (
    BeatReply,
    Fact,
    FragmentState,
    Handin,
    Head,
    LearnerRecord,
    Lease,
    Order,
    Receipt,
    Request,
    Round,
    RunEntry,
)
from ddl.protocol.units import UnitCall, UnitReply, UnitsDone
from ddl.protocol.wire import canonical, digest


def shared_settings(settings: Settings) -> Settings:
    """`settings` without what belongs to one machine: the address of Redis may hold a password."""
    return msgspec.structs.replace(settings, redis=RedisSettings())


def settings_digest(settings: Settings) -> str:
    """Names the settings in force; the same on every machine whatever its own Redis address."""
    return digest(canonical(shared_settings(settings)))


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the index `ddl:runs` of a Redis."""

    store: str
    lineage: str


class LeaseReply(NamedTuple):
    """`held`: the caller holds it now. Otherwise `lease` is the present holder's, if any."""

    held: bool
    lease: Lease | None
    left_s: float
    now: float
    was_foreign: bool = False
    """Something that is no lease stood in its place, and was overwritten."""


class Poll(NamedTuple):
    """All that learners and people have said, read in one go."""

    now: float
    learners: dict[str, LearnerRecord]
    beats: dict[str, float]
    """Learner -> Redis time of its last beat."""
    handins: dict[str, Handin]
    """By `keys.handin_field`."""
    requests: tuple[Request, ...]
    boot: str
    """Empty when the run's entry is gone or not as it was written: Redis was flushed or replaced, or
    somebody else wrote there."""
    head_seq: int
    """Of the head that stands there, -1 if there is none: older than what was shown, and Redis has
    failed over to a copy that lagged behind."""
    asked: dict[str, int]
    """By `keys.handin_field`: seq whose payload we asked for again, until the learner has put it."""
    broken: tuple[str, ...]
    """A sentence for every field left out because it cannot be read (another version wrote it)."""
    units: dict[str, UnitsDone] = {}  # noqa: RUF012 - never changed
    """By data set, what learners have finished, most of it in the log by now, and all repeats."""


class View(NamedTuple):
    """All that a display needs, read in one go."""

    now: float
    latency_s: float
    entry: RunEntry | None
    lease: Lease | None
    lease_left_s: float | None
    standbys: tuple[str, ...]
    """Coordinators that wait for the lease."""
    head: Head | None
    fragments: tuple[FragmentState, ...]
    rounds: tuple[Round, ...]
    learners: dict[str, LearnerRecord]
    beats: dict[str, float]
    handins: dict[str, Handin]
    receipts: dict[str, Receipt]
    facts: tuple[Fact, ...]
    """The newest ones, oldest first."""
    broken: tuple[str, ...]
    """A sentence for every field left out because it cannot be read (another version wrote it)."""
    orders: dict[str, Order] = {}  # noqa: RUF012 - never changed
    """The order that stands for a learner."""
    used_bytes: int = 0
    """Memory of the server, 0 if it does not tell."""
    max_bytes: int = 0
    """What it may use; it refuses writes beyond that. 0 is no limit."""


class CoordinatorRegistry(Protocol):
    """The coordinator's side.

    **Fencing.** Every call that takes an `epoch` returns False and changes nothing once a higher
    epoch was given out. **Loss.** While the run's entry is missing (flushed, replaced), such calls
    change nothing and return True: `poll` shows `boot == ""`, and `rebuild` writes everything.
    """

    def now(self) -> float:
        """Redis server time in seconds."""
        ...

    def read_entry(self) -> RunEntry | None:
        """The run's entry, or None if Redis does not know the run."""
        ...

    def take_lease(self, lease: Lease, *, ttl_s: float, min_epoch: int) -> LeaseReply:
        """Take the lease if nobody holds it. The reply's epoch is max(Redis, min_epoch) + 1.

        Contract: `holder`, `host` and `pid` together MUST name one life of one process: who asks
        again after a lost reply is known by them, and is told of the lease it has.
        `taken_at` is filled with Redis time.
        """
        ...

    def renew_lease(self, lease: Lease, *, ttl_s: float) -> LeaseReply:
        """Extend the lease if `lease.epoch` and holder still hold it, or if it vanished and no
        higher epoch was given out since: the same goes for one of a lower epoch that stands there
        after a fail-over. Works on a Redis that is out of memory."""
        ...

    def release_lease(self, lease: Lease) -> None:
        """Let go of the lease if it is this one: ours, or that of a holder known to be dead."""
        ...

    def stand_by(self, holder: str, *, ttl_s: float) -> None:
        """Say that `holder` waits for the lease; shown for `ttl_s`, 0 takes it off the list."""
        ...

    def rebuild(
        self,
        epoch: int,
        entry: RunEntry,
        head: Head,
        fragments: Sequence[FragmentState],
        receipts: Sequence[Receipt],
    ) -> bool:
        """Write all coordinator-owned keys anew, with the entry's new boot; no round is open after.

        What learners and people wrote stays, except receipted hand-ins, and except everything of
        another lineage that had the run's name before. False: fenced.
        """
        ...

    def commit(
        self,
        epoch: int,
        head: Head,
        fragments: Sequence[FragmentState],
        receipts: Sequence[Receipt],
        entry: RunEntry | None = None,
        *,
        after: int = 0,
    ) -> bool:
        """Show a log record: set head, fragments and receipts, remove the receipted hand-ins, wake
        learners; all or nothing. `entry` replaces the run entry when settings changed.

        A head whose seq is not larger is shown already: nothing changes, True. False: fenced.
        `after` is the seq that was shown last. A Redis whose head is older has failed over to a
        copy that lagged behind, and would lack what came between: nothing changes, True, and `poll`
        shows it.
        """
        ...

    def set_rounds(self, epoch: int, rounds: Sequence[Round], *, wake: bool) -> bool:
        """Show the open rounds; `wake` when one was opened. False: fenced."""
        ...

    def ask_again(self, epoch: int, handin: Handin) -> bool:
        """Tell the learner to put this payload again; stands in `Poll.asked` until it has.
        False: fenced."""
        ...

    def set_order(self, epoch: int, learner: str, order: Order | None) -> bool:
        """Give an order to one learner, or withdraw it. False: fenced."""
        ...

    def remove_request(self, epoch: int, request_id: str) -> bool:
        """Remove a request that is in the log (or was refused). False: fenced."""
        ...

    def forget_learner(self, epoch: int, learner: str, incarnation: int) -> bool:
        """Remove the record and beat of a learner that is gone, unless a newer incarnation came.

        Its hand-ins stay: they are merged, carried or expire like any other. False: fenced.
        """
        ...

    def poll(self) -> Poll:
        """Read everything that may have changed, as of one instant."""
        ...

    def wait_arrivals(self, timeout_s: float) -> bool:
        """Block until something arrived since the last call, or the time is over; True if it did.

        Used by one thread only. A hint: `poll` is what tells.
        """
        ...

    def tell(self, facts: Sequence[Fact]) -> None:
        """Append to the events stream."""
        ...

    def told(self) -> list[Fact]:
        """All that the events stream holds and that can be read, oldest first."""
        ...

    def close(self) -> None:
        """End a wait in another thread and free connections; calls under way end as they would."""
        ...


class Joined(NamedTuple):
    """Outcome of a registration. `refused` is empty on success, else a sentence."""

    refused: str
    now: float
    holder: LearnerRecord | None = None
    """The living incarnation that is in the way, if that is why."""
    beat_age_s: float | None = None


class LearnerRegistry(Protocol):
    """A learner's side."""

    def read_entry(self) -> RunEntry | None:
        """The run's entry, or None if Redis does not know the run."""
        ...

    def read_head(self) -> Head | None:
        """Where the run stands; None between a loss of Redis and its rebuild."""
        ...

    def register(
        self, record: LearnerRecord, *, gone_s: float, takeover: bool, enter: bool = True
    ) -> Joined:
        """Enter a new incarnation, or the same one again after a rebuild.

        Refused, with the present holder, when an older incarnation of this id has beaten within
        `gone_s` and not left (`takeover` overrides); refused when a newer incarnation exists, when
        the lineage differs, or when Redis does not know the run. Without `enter` nothing is
        written: the reply only tells what would come of it.
        Raises: RefusedError while the order stands that kicked an older incarnation; RegistryError.
        """
        ...

    def beat(
        self, record: LearnerRecord, handins: Sequence[Handin], *, settings_digest: str
    ) -> BeatReply:
        """Say what we are and repeat our unreceipted announcements; hear everything back.

        The reply's receipts and `again` are those of `handins`; its settings are None if
        `settings_digest` (see above) is that of the settings in force. A beat of an incarnation
        that is fenced or not registered changes nothing and says so in the reply.
        Raises: RefusedError if the run's name now belongs to another lineage; RegistryError.
        """
        ...

    def announce(self, handin: Handin, *, incarnation: int) -> str:
        """Enter one announcement and wake the coordinator. `incarnation` is the caller's own;
        the hand-in's may be a predecessor's, whose spooled work the caller announces.

        Returns "accepted", "known" (it was there already, or has its receipt; answers an `again`),
        or "refused: ..." (not the next seq, stale incarnation, other lineage, run not known).
        """
        ...

    def exchange_units(
        self, record: LearnerRecord, call: UnitCall, *, gone_s: float
    ) -> UnitReply | None:
        """Tell which units of data we hold and have finished; get what is to be read next.

        What a learner holds whose last beat is older than `gone_s` goes to whoever asks. A call that
        got no answer is to be made again unchanged: that counts nothing twice.
        None if Redis does not know the run or this incarnation now: it is about to be rebuilt.
        Raises: RefusedError if the run's data is cut in another way; RegistryError.
        """
        ...

    def read_fragments(self) -> tuple[FragmentState, ...]:
        """Where the newest version of every fragment lies, by fragment number."""
        ...

    def wait_news(self, timeout_s: float) -> bool:
        """Block until the coordinator has news, or the time is over; True if it has.

        Used by one thread only. A hint: the next beat is what tells.
        """
        ...

    def interrupt(self) -> None:
        """Make a blocked `wait_news`, and all later ones, return soon; for leaving."""
        ...

    def leave(self, record: LearnerRecord) -> None:
        """Say that this incarnation has ended, so that no round waits for it."""
        ...

    def tell(self, facts: Sequence[Fact]) -> None:
        """Append to the events stream."""
        ...

    def close(self) -> None:
        """End a wait in another thread and free connections; calls under way end as they would."""
        ...


class ReaderRegistry(Protocol):
    """For displays and people."""

    def view(self, *, num_facts: int = 20) -> View:
        """Read everything a display needs, as of one instant, in one round trip."""
        ...

    def facts(self, *, after: str = "", limit: int) -> list[tuple[str, Fact]]:
        """At most `limit` facts and the place of each, oldest first: those that follow the place
        `after`, without one the newest. Places do not change, and later facts have larger ones."""
        ...

    def request(self, request: Request) -> None:
        """Hand a person's wish to the coordinator. Raises: UnknownRunError."""
        ...

    def remove_run(self) -> None:
        """Delete every key of the run and its index entry."""
        ...

    def close(self) -> None:
        """End a wait in another thread and free connections; calls under way end as they would."""
        ...
