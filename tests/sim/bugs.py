"""Mistakes that are planted to see whether the swarm finds them. Each breaks one rule, in one place.

Most stand in for what has gone wrong in systems of this kind; the last ones were ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from ddl.coordinator.mirror import Mirror
from ddl.core import events as e
from ddl.core import selection
from ddl.core.inbox import Inbox
from ddl.core.learner import UNASKED, Adoption, LearnerMachine, Track
from ddl.core.log import LogState
from ddl.core.selection import Verdict
from ddl.core.tenure import Tenure
from ddl.errors import RegistryError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Handin, HandinId, Lease, LogRecord, ObjectRef
from ddl.protocol.wire import canonical, digest, parse
from ddl.registry.base import LeaseReply
from ddl.sim import coordinator as coordinator_module
from ddl.sim.clockwork import Thread
from ddl.sim.coordinator import Coordinator
from ddl.sim.learner import Learner
from ddl.sim.payloads import PRIME, Movement
from ddl.sim.redis import CoordinatorSide


class Bug(NamedTuple):
    """`plant` puts it in; `sign` is part of the sentence by which it must be found, a pattern.

    `seed` is one that found it: histories change with the rules.
    """

    name: str
    seed: int
    sign: str
    plant: Callable[[pytest.MonkeyPatch], None]


def dedup_skipped(patch: pytest.MonkeyPatch) -> None:
    """What has its receipt already is let in once more when it is announced again."""
    admission = selection.admission

    def careless(handin: Handin, *, log: LogState, keys: ObjectKeys) -> Any:
        verdict = admission(handin, log=log, keys=keys)
        return None if verdict == "ignore" else verdict

    patch.setattr(selection, "admission", careless)


def lease_ignored(patch: pytest.MonkeyPatch) -> None:
    """A holder that was suspended writes its record without looking at the clock."""
    patch.setattr(Tenure, "is_sure", lambda self, now: True)


def receipts_lost(patch: pytest.MonkeyPatch) -> None:
    """What could not be shown because Redis was away is not kept for later."""
    flush = Mirror.flush

    def forgetful(self: Mirror) -> RegistryError | None:
        error = flush(self)
        if error is not None:
            self._receipts.clear()
        return error

    patch.setattr(Mirror, "flush", forgetful)


def anchor_not_moved(patch: pytest.MonkeyPatch) -> None:
    """What was handed in stays in u, and is handed in again."""

    def handed_in(self: Movement, id_: HandinId, decoded: int) -> None:
        self.in_hand = (self.in_hand + decoded) % PRIME

    patch.setattr(Movement, "handed_in", handed_in)


def own_race_lost(patch: pytest.MonkeyPatch) -> None:
    """The answer to a record's put is lost; the second try finds it taken, and takes itself for
    another."""

    def write_once(self: Coordinator, record: LogRecord) -> Thread[e.RecordWritten | e.RecordTaken]:
        key, data = self.world.keys.commit(record.seq), canonical(record)
        store = self.world.store
        put = self.to_store.call(lambda: store.put(key, data, mode="create"), writes=True)
        if (yield from put):
            return e.RecordWritten(record, digest(data))
        there = store.objects[key]
        return e.RecordTaken(parse(there, LogRecord, what=key), digest(there))

    patch.setattr(Coordinator, "_write_once", write_once)


def epoch_restarts(patch: pytest.MonkeyPatch) -> None:
    """After a flush epochs are counted from the beginning again, and nobody minds that the log
    knows higher ones."""
    take = CoordinatorSide.take_lease

    def take_lease(
        self: CoordinatorSide, lease: Lease, *, ttl_s: float, min_epoch: int
    ) -> LeaseReply:
        return take(self, lease, ttl_s=ttl_s, min_epoch=0)

    patch.setattr(CoordinatorSide, "take_lease", take_lease)
    patch.setattr(Coordinator, "_give_way", lambda self, log, lease: None)


def carried_dropped(patch: pytest.MonkeyPatch) -> None:
    """What missed its round is dropped when the fragment moves on, without a receipt."""

    def expire(self: Inbox, fragment: int, now: float) -> Iterator[e.Command]:
        for pending in list(self.of(fragment)):
            yield from self._drop(pending.handin.id)

    patch.setattr(Inbox, "expire", expire)


def old_line_accepted(patch: pytest.MonkeyPatch) -> None:
    """What waited through a rollback is merged into the model after it."""
    patch.setattr(selection, "_out_of_place", lambda handin, log: None)


def staleness_unlimited(patch: pytest.MonkeyPatch) -> None:
    """Work is merged however old it is."""
    verdict_of = selection.expiry

    def expiry(handin: Handin, *, log: LogState) -> Verdict | None:
        verdict = verdict_of(handin, log=log)
        return None if verdict is not None and verdict.fate == "expired" else verdict

    patch.setattr(selection, "expiry", expiry)


def damage_merged(patch: pytest.MonkeyPatch) -> None:
    """A payload is taken as it arrives, whatever its digest."""

    def decode(ref: ObjectRef, data: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct | None:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    patch.setattr(coordinator_module, "decode", decode)


def adopted_while_encoding(patch: pytest.MonkeyPatch) -> None:
    """A version is adopted between a snapshot and its delta, which then is of another anchor."""
    adoptions = LearnerMachine._adoptions

    def hasty(self: LearnerMachine, snapshotted: set[int]) -> Sequence[Adoption]:
        encoding = [track for track in self.tracks if track.encoding]
        for track in encoding:
            track.encoding = False
        found = adoptions(self, snapshotted)
        for track in encoding:
            track.encoding = True
        return found

    patch.setattr(LearnerMachine, "_adoptions", hasty)


def flight_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What is handed in is gone from a learner's weights until a version has it."""
    patch.setattr(Track, "lacks", lambda self, staged: False)


def flight_doubled(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for word on whether a version has what is outstanding."""
    patch.setattr(Track, "may_adopt", lambda self, staged: not self.encoding)


def incarnation_reused(patch: pytest.MonkeyPatch) -> None:
    """A learner that comes back goes on under the number of its former life."""
    take = Learner._take_incarnation

    def reuse(self: Learner) -> Thread[int]:
        number = yield from take(self)
        return max(1, number - 1)

    patch.setattr(Learner, "_take_incarnation", reuse)


def laggard_hidden(patch: pytest.MonkeyPatch) -> None:
    """After a fail-over to a copy that lagged behind, the next record hides what is missing."""
    commit = CoordinatorSide.commit

    def careless(self: CoordinatorSide, *args: Any, after: int = 0) -> bool:
        return commit(self, *args)

    patch.setattr(CoordinatorSide, "commit", careless)


def old_lease_respected(patch: pytest.MonkeyPatch) -> None:
    """After such a fail-over, a holder gives way to its own predecessor's lease."""
    renew = CoordinatorSide.renew_lease

    def meek(self: CoordinatorSide, lease: Lease, *, ttl_s: float) -> LeaseReply:
        held, left_s = self._redis.lease()
        if held is not None and held.holder != lease.holder:
            return LeaseReply(held=False, lease=held, left_s=left_s, now=self.now())
        return renew(self, lease, ttl_s=ttl_s)

    patch.setattr(CoordinatorSide, "renew_lease", meek)


def lower_launches_ignored(patch: pytest.MonkeyPatch) -> None:
    """A round whose launch number is below the last one answered is taken for an old one."""
    pull_of = LearnerMachine._pull

    def stubborn(self: LearnerMachine, fragment: int) -> int:
        launch = pull_of(self, fragment)
        answered = self.tracks[fragment].answered
        return launch if answered is None or launch > answered[0] else UNASKED

    patch.setattr(LearnerMachine, "_pull", stubborn)


def inheritance_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A predecessor's contribution that has left the spool meanwhile is waited for, and never asked
    after."""

    def repeat(self: Learner, handin: Handin) -> Thread[None]:
        spooled = self.spool.get(handin.id)
        if spooled is not None:
            yield from self._send(*spooled)
        self._again.discard(handin.id)

    patch.setattr(Learner, "_repeat", repeat)


BUGS = (
    Bug("dedup skipped", 4, "waits for a receipt where", dedup_skipped),
    Bug("lease ignored", 0, "on a lease that it took", lease_ignored),
    Bug("receipts lost", 61, "taken in once more", receipts_lost),
    Bug("anchor not moved", 0, "is not what was trained", anchor_not_moved),
    Bug("own race lost", 68, "nobody else was ever given as high a one", own_race_lost),
    Bug("epoch restarts", 0, "the log is at epoch", epoch_restarts),
    Bug("carried dropped", 0, "has no receipt", carried_dropped),
    Bug("old line accepted", 5, "is merged on", old_line_accepted),
    Bug("staleness unlimited", 0, "is merged with staleness", staleness_unlimited),
    Bug("damage merged", 1, "is not what its receipts make of", damage_merged),
    Bug("adopted while encoding", 48, "is not what was trained", adopted_while_encoding),
    Bug("flight forgotten", 0, "forgotten with it", flight_forgotten),
    Bug("flight doubled", 0, "taken in once more", flight_doubled),
    Bug(
        "incarnation reused",
        1,
        "was handed in before|is outstanding, 0 the last",
        incarnation_reused,
    ),
    Bug("laggard hidden", 166, "nothing of", laggard_hidden),
    Bug("old lease respected", 4, "nobody else was ever given as high a one", old_lease_respected),
    Bug("lower launches ignored", 57, "nothing of", lower_launches_ignored),
    Bug("inheritance forgotten", 250, "nothing of", inheritance_forgotten),
)
