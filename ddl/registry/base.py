"""What `ddl` asks of the control plane (design 4.2).

Everything here may be lost and is rebuilt from the log and from what learners hold. Calls that
change more than one key are one Lua script. Every call of a coordinator is fenced by its epoch,
every call of a learner by the run's lineage and its own incarnation. An adapter maps all errors of
its client library to `ddl.errors.RegistryError` and passes `tests/contract/test_registry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

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


class LeaseReply(NamedTuple):
    """`held`: the caller holds it now. Otherwise `lease` is the present holder's, if any."""

    held: bool
    lease: Lease | None
    left_s: float
    now: float


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
    """Empty when the run's entry is gone: Redis was flushed or replaced."""


class View(NamedTuple):
    """All that a display needs, read in one go."""

    now: float
    latency_s: float
    entry: RunEntry | None
    lease: Lease | None
    lease_left_s: float | None
    head: Head | None
    fragments: tuple[FragmentState, ...]
    rounds: tuple[Round, ...]
    learners: dict[str, LearnerRecord]
    beats: dict[str, float]
    handins: dict[str, Handin]
    receipts: dict[str, Receipt]
    facts: tuple[Fact, ...]
    """The newest ones, oldest first."""


class CoordinatorRegistry(Protocol):
    """The coordinator's side."""

    def now(self) -> float:
        """Redis server time in seconds."""
        ...

    def take_lease(self, lease: Lease, *, ttl_s: float, min_epoch: int) -> LeaseReply:
        """Take the lease if nobody holds it. The reply's epoch is max(Redis, min_epoch) + 1."""
        ...

    def renew_lease(self, lease: Lease, *, ttl_s: float) -> LeaseReply:
        """Extend the lease if `lease.epoch` and holder still hold it, or if it vanished and no
        higher epoch was given out since."""
        ...

    def release_lease(self, lease: Lease) -> None:
        """Let go of the lease if it is ours."""
        ...

    def rebuild(
        self,
        epoch: int,
        entry: RunEntry,
        head: Head,
        fragments: Sequence[FragmentState],
        receipts: Sequence[Receipt],
    ) -> bool:
        """Write all coordinator-owned keys anew, with the entry's new boot. False: fenced."""
        ...

    def commit(
        self,
        epoch: int,
        head: Head,
        fragments: Sequence[FragmentState],
        receipts: Sequence[Receipt],
        entry: RunEntry | None = None,
    ) -> bool:
        """Show a log record: set head (only to a larger seq), fragments and receipts, remove the
        receipted hand-ins, wake learners. `entry` replaces the run entry when settings changed.
        False: a higher epoch exists; nothing was changed."""
        ...

    def set_rounds(self, epoch: int, rounds: Sequence[Round], *, wake: bool) -> bool:
        """Show the open rounds; `wake` when one was opened. False: fenced."""
        ...

    def ask_again(self, epoch: int, handin: Handin) -> bool:
        """Tell the learner to put this payload again. False: fenced."""
        ...

    def set_order(self, epoch: int, learner: str, order: Order | None) -> bool:
        """Give an order to one learner, or withdraw it. False: fenced."""
        ...

    def remove_request(self, epoch: int, request_id: str) -> bool:
        """Remove a request that is in the log (or was refused). False: fenced."""
        ...

    def forget_learner(self, epoch: int, learner: str, incarnation: int) -> bool:
        """Remove the record and beat of a learner that is gone, unless a newer incarnation came."""
        ...

    def poll(self) -> Poll:
        """Read everything that may have changed."""
        ...

    def wait_arrivals(self, timeout_s: float) -> bool:
        """Block until something arrived since the last call, or the time is over; True if it did.

        Used by one thread only. A hint: `poll` is what tells.
        """
        ...

    def tell(self, facts: Sequence[Fact]) -> None:
        """Append to the events stream."""
        ...


class Joined(NamedTuple):
    """Outcome of a registration. `refused` is empty on success, else a sentence."""

    refused: str
    now: float
    holder: LearnerRecord | None = None
    beat_age_s: float | None = None


class LearnerRegistry(Protocol):
    """A learner's side."""

    def read_entry(self) -> RunEntry | None:
        """The run's entry, or None if Redis does not know the run."""
        ...

    def register(
        self, record: LearnerRecord, *, gone_s: float, takeover: bool
    ) -> Joined:
        """Enter a new incarnation. Refused, with the present holder, when an older incarnation of
        this id has beaten within `gone_s` and not left (`takeover` overrides), when a newer
        incarnation exists, or when the lineage differs."""
        ...

    def beat(self, record: LearnerRecord, handins: Sequence[Handin], *, settings_digest: str) -> BeatReply:
        """Say what we are and repeat our unreceipted announcements; hear everything back.

        A beat of a fenced incarnation changes nothing and says so in the reply."""
        ...

    def announce(self, handin: Handin) -> str:
        """Enter one announcement and wake the coordinator. Returns "accepted", "known" (it was
        there already, or has its receipt), or "refused: ..." (not the next seq, stale
        incarnation, other lineage)."""
        ...

    def read_fragments(self) -> tuple[FragmentState, ...]:
        """Where the newest version of every fragment lies."""
        ...

    def wait_news(self, timeout_s: float) -> bool:
        """Block until the coordinator has news, or the time is over; True if it has.

        Used by one thread only. A hint: the next beat is what tells.
        """
        ...

    def interrupt(self) -> None:
        """Make a blocked `wait_news` return soon; for leaving."""
        ...

    def leave(self, record: LearnerRecord) -> None:
        """Say that this incarnation has ended, so that no round waits for it."""
        ...

    def tell(self, facts: Sequence[Fact]) -> None:
        """Append to the events stream."""
        ...


class ReaderRegistry(Protocol):
    """For displays and people."""

    def view(self, *, num_facts: int = 20) -> View:
        """Read everything a display needs, in a bounded number of round trips."""
        ...

    def runs(self) -> Mapping[str, str]:
        """Run name -> JSON of the index entry."""
        ...

    def request(self, request: Request) -> None:
        """Hand a person's wish to the coordinator."""
        ...

    def remove_run(self) -> None:
        """Delete every key of the run and its index entry."""
        ...
