"""What must hold whatever goes wrong: looked at whenever a process comes to rest, over all at once.

The judge sees everything: what learners really handed in, what really stands in the store, who
holds the lease. It folds the log by itself, makes every merge again from the learners' own books,
and breaks the history off at the first thing that is not as it must be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from ddl.core.learner import Adoption
from ddl.core.log import LogState
from ddl.errors import DdlError, IntegrityError, LeaseLostError, RegistryError, StoreError
from ddl.protocol import wire
from ddl.protocol.records import (
    Amount,
    FragmentStep,
    Handin,
    HandinId,
    LogRecord,
    ObjectRef,
    Receipt,
)
from ddl.sim.payloads import PRIME, STEP_LEFT_OUT_BITS, Move, Outer, Weights, decode, outer_step

if TYPE_CHECKING:
    from ddl.sim.coordinator import Coordinator
    from ddl.sim.learner import Learner
    from ddl.sim.world import World

MOST_LEFT_OUT: Final = 1 << STEP_LEFT_OUT_BITS

T = TypeVar("T", bound=msgspec.Struct)

Life = tuple[str, int, int]
"""Learner, incarnation, fragment."""


class ViolationError(Exception):
    """Something that must always hold does not. No process may catch it."""


class Judge:
    """Watches one history.

    Attributes:
        log: the log as folded by the judge.
        receipts: every receipt in it.
        books: what learners handed in, by id: the announcement and what a reader decodes.
        seen: contributions that a coordinator knew of.
        announced: contributions that were announced before they had a receipt.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._lease_s = world.run.settings.liveness.lease_s
        self.log = LogState.genesis(world.run)
        self.receipts: dict[HandinId, Receipt] = {}
        self.received_at: dict[HandinId, float] = {}
        self.announced: set[HandinId] = set()
        self.books: dict[HandinId, tuple[Handin, int]] = {}
        self.committed_at: list[float] = [world.timeline.now] * world.num_fragments
        self._totals: dict[Life, Amount] = {}
        self._published: dict[tuple[int, int], tuple[str, int]] = {}
        self._state: list[tuple[int, int | None]] = []
        for fragment, ref in enumerate(world.run.fragments):
            weights = decode(ref, world.store.objects[ref.key], Weights)
            assert weights is not None
            self._published[fragment, 0] = ref.sha256, weights.value
            self._state.append((weights.value, None))

    def expect(self, holds: bool, sentence: str) -> None:
        """Break the history off unless something holds. Where it is asked often, the sentence is made
        only when it is needed, and raised there."""
        if not holds:
            raise ViolationError(sentence)

    # ---- the log ------------------------------------------------------------------------------

    def on_new_object(self, key: str) -> None:
        """An object came into the store."""
        if key.startswith(self._world.keys.commits):
            self._on_record(self._world.store.objects[key])

    def _on_record(self, data: bytes) -> None:
        record = wire.parse(data, LogRecord, what="record")
        self._world.say("log", record.kind, _describe(record))
        line_before = self.log.line
        try:
            self.log.apply(record, wire.digest(data))
        except IntegrityError as error:
            raise ViolationError(str(error)) from error
        for receipt in record.receipts:
            self._on_receipt(receipt, line_before)
        for step in record.fragments:
            self._on_version(record, step)

    def _on_receipt(self, receipt: Receipt, line: int) -> None:
        id_ = receipt.id
        if id_ in self.receipts:
            raise ViolationError(f"{id_} has two receipts")
        self.receipts[id_] = receipt
        self.received_at[id_] = self._world.timeline.now
        book = self.books.get(id_)
        if book is None:
            raise ViolationError(f"{id_} has a receipt, but was never handed in")
        handin, _ = book
        if (handin.steps, handin.tokens) != (receipt.steps, receipt.tokens):
            raise ViolationError(
                f"the receipt of {id_} is for other steps or tokens than were handed in"
            )
        if receipt.fate == "merged" and handin.line != line:
            raise ViolationError(f"{id_} of line {handin.line} is merged on {line}")

    def _on_version(self, record: LogRecord, step: FragmentStep) -> None:
        fragment = step.fragment
        self.committed_at[fragment] = self._world.timeline.now
        value = self._stored(step.published, Weights).value
        outer = self._stored(step.outer, Outer) if step.outer is not None else None
        state = (outer.master, outer.momentum) if outer else (value, None)
        if record.kind == "step":
            self._check_merge(record, step, state)
            self._check_publication(step, value, state[0])
        self._state[fragment] = state
        self._published[fragment, step.version_after] = step.published.sha256, value

    def _stored(self, ref: ObjectRef, kind: type[T]) -> T:
        """An object as it lies in the store."""
        found = decode(ref, self._world.store.objects[ref.key], kind)
        if found is None:
            raise ViolationError(f"{ref.key} is committed and damaged")
        return found

    def _check_publication(self, step: FragmentStep, value: int, master: int) -> None:
        """What learners get is the master, but for what the step object leaves out of it."""
        if step.step is None:
            self.expect(value == master, f"{step.published.key} is not its master")
            return
        _, before = self._published[step.fragment, step.version_before]
        move = self._stored(step.step, Move)
        self.expect(
            (before + move.value) % PRIME == value and (master - value) % PRIME < MOST_LEFT_OUT,
            f"{step.step.key} does not lead from v{step.version_before} to v{step.version_after}",
        )

    def _check_merge(
        self, record: LogRecord, step: FragmentStep, stored: tuple[int, int | None]
    ) -> None:
        """Make the merge again, of what the learners themselves say they handed in."""
        merged = [r for r in record.receipts if r.fate == "merged" and r.fragment == step.fragment]
        settings = self.log.settings
        quorum, limit = settings.round.quorum, settings.round.staleness_max
        self.expect(bool(merged), f"record {record.seq} merges nothing")
        for receipt in merged:
            stale = max(0, step.version_before - self.books[receipt.id][0].oldest_base - 1)
            if stale > limit:
                raise ViolationError(f"{receipt.id} is merged with staleness {stale}")
            self._check_alignment(self.books[receipt.id][0])
        self.expect(
            len(merged) >= quorum or settings.round != self._world.run.settings.round,
            f"record {record.seq} merges {len(merged)} contributions, the quorum is {quorum}",
        )
        master, momentum = self._state[step.fragment]
        expected = outer_step(
            [(r.weight, self.books[r.id][1]) for r in merged],
            master=master,
            momentum=momentum,
            lr=settings.outer.lr,
            mu=settings.outer.momentum,
        )
        self.expect(
            stored == expected,
            f"f{step.fragment} v{step.version_after} is not what its receipts make of "
            f"v{step.version_before}",
        )

    def _check_alignment(self, handin: Handin) -> None:
        for fragment, version in enumerate(handin.held):
            if (fragment, version) not in self._published:
                raise ViolationError(
                    f"{handin.id} is merged, but holds f{fragment} v{version}, which never was"
                )

    # ---- learners -----------------------------------------------------------------------------

    def on_handed_in(self, handin: Handin, decoded: int) -> None:
        """A learner has made a contribution; from now on it must not be lost by anyone else."""
        id_ = handin.id
        if id_ in self.books:
            raise ViolationError(f"{id_} was handed in before")
        self.books[id_] = handin, decoded
        life = id_[:3]
        total = self._totals.get(life, Amount()) + Amount(steps=handin.steps, tokens=handin.tokens)
        self._totals[life] = total
        if handin.total != total:
            raise ViolationError(f"{id_} says {handin.total} in all, not {total}")

    def on_announcing(self, id_: HandinId) -> None:
        """A learner is about to announce what lies in the store, where it may have been found already."""
        if id_ not in self.receipts:
            self.announced.add(id_)

    def on_adoption(self, learner: Learner, adoption: Adoption, value: int, sha256: str) -> None:
        """A learner takes a version up."""
        if self._published.get((adoption.fragment, adoption.version)) != (sha256, value):
            raise ViolationError(
                f"{learner.name} adopts f{adoption.fragment} v{adoption.version}, which is not what "
                "was published as that"
            )
        last = learner.movements[adoption.fragment].last
        if last is not None and not adoption.realign:
            self._check_flight(last, adoption)

    def _check_flight(self, last: HandinId, adoption: Adoption) -> None:
        """What a learner handed in last is in the version that it adopts, or on top of it, not both; and
        neither if it came to nothing. What a coordinator has found in the store before it was announced may
        be counted double until the next version."""
        receipt = self.receipts.get(last)
        version = receipt.version if receipt is not None and receipt.fate == "merged" else None
        is_in = version is not None and version <= adoption.version
        came_to_nothing = receipt is not None and version is None
        if adoption.in_flight and is_in and last in self.announced:
            raise ViolationError(
                f"{last} is in v{adoption.version}, and taken in once more with it"
            )
        if not (adoption.in_flight or is_in or came_to_nothing):
            raise ViolationError(f"{last} is not in v{adoption.version}, and forgotten with it")

    # ---- coordinators -------------------------------------------------------------------------

    def on_record_issued(self, coordinator: Coordinator, record: LogRecord) -> None:
        """A coordinator is about to put a record."""
        _, renewed_at = self._world.leases[coordinator.holder]
        age_s = self._world.timeline.now - renewed_at
        self.expect(
            age_s < self._lease_s,
            f"{coordinator.name} writes record {record.seq} on a lease that it took or renewed "
            f"{age_s:.1f} s ago; it lasts {self._lease_s:g} s",
        )

    def on_coordinator_end(self, coordinator: Coordinator, error: DdlError) -> None:
        """A coordinator ends by itself: only for a reason that lies outside of it."""
        self.expect(
            isinstance(error, LeaseLostError | RegistryError | StoreError),
            f"{coordinator.name} ends with {type(error).__name__}: {error}",
        )
        if isinstance(error, LeaseLostError):
            # its own request for the lease may arrive once more, after the lease that it got has run out
            epochs = [
                epoch
                for who, (epoch, _) in self._world.leases.items()
                if who != coordinator.holder or epoch > coordinator.epoch
            ]
            self.expect(
                max(epochs, default=0) >= coordinator.epoch,
                f"{coordinator.name} gives epoch {coordinator.epoch} up ({error}), and nobody else "
                "was ever given as high a one",
            )

    # ---- the end ------------------------------------------------------------------------------

    def unsettled(self, before: float) -> list[str]:
        """What still waits although it has been left in peace since the instant `before`."""
        return [
            *self._without_receipt(before),
            *self._idle_fragments(before),
            *self._idle_learners(before),
        ]

    def _without_receipt(self, before: float) -> list[str]:
        world = self._world
        return [
            f"{id_} has no receipt"
            for id_, announced_at in world.announced_at.items()
            if announced_at <= before and id_ not in self.receipts and world.is_known(id_)
        ]

    def _idle_fragments(self, before: float) -> list[str]:
        return [
            f"fragment {fragment} has no new version"
            for fragment, at in enumerate(self.committed_at)
            if at <= before
        ]

    def _idle_learners(self, before: float) -> list[str]:
        recent = {
            (id_.learner, id_.fragment)
            for id_, at in self.received_at.items()
            if at > before and self.receipts[id_].fate == "merged"
        }
        return [
            f"nothing of {learner.name} is merged into fragment {fragment}"
            for learner in self._world.living_learners()
            for fragment in range(self._world.num_fragments)
            if (learner.name, fragment) not in recent
        ]


def _describe(record: LogRecord) -> str:
    moves = " ".join(f"f{s.fragment} v{s.version_after}" for s in record.fragments)
    fates = " ".join(f"{r.id}={r.fate}" for r in record.receipts)
    return f"{record.seq:>4}  epoch {record.epoch}  {moves or '-'}  <- {fates or '-'}"
