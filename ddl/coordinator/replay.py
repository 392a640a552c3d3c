"""Merging kept contributions once more: the same inputs must give the same bytes (design 7, 6).

Every step is replayed from the outer state that the log names for the version before it, so one
that differs does not make all later ones differ. Where `[keep]` let that go, the replay of the step
that made it stands in for it, if it gave what the log says: so from the oldest kept version on, all
can be replayed whose contributions are kept. Only over a rollback to a version that is gone by now
there is no way.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ddl.codec.digest import sha256
from ddl.coordinator.audit import Merge
from ddl.coordinator.found import announcement
from ddl.coordinator.gate import Passed, check_payload
from ddl.coordinator.payloads import Base, Made, Payloads
from ddl.core.keep import Promises
from ddl.errors import (
    ConfigError,
    IntegrityError,
    MissingObjectError,
    ObjectNotFoundError,
    ProtocolError,
    TaskError,
)
from ddl.merge.choice import kernel_by_name
from ddl.merge.kernel import Kernel
from ddl.merge.step import Offer, merge_fragment
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import HandinId, ObjectRef, Receipt, RunRecord
from ddl.store.base import Store

NOT_ITS_NAME = "its bytes are not those that its name tells"


class Replayed(NamedTuple):
    """Outcome of one step: it gave the same bytes if both sentences are empty.

    Attributes:
        difference: what is not as the log says; `where` is the object it was seen in.
        skipped: why the step cannot be replayed at all.
        is_let_go: that is what `[keep]` allows.
    """

    difference: str = ""
    where: str = ""
    skipped: str = ""
    is_let_go: bool = False


class Replay:
    """Replays steps of one run, in the order of its log. May raise StoreError.

    Holds in memory what stands in for versions that are gone: of each fragment the newest at most; and by
    fragment the record at which that chain has broken.

    Args:
        store: where the run lies; its contributions are listed once, here and now.
        run: record 0.
    """

    def __init__(self, store: Store, run: RunRecord) -> None:
        self._store = store
        self._keys = ObjectKeys(run.name)
        self._payloads = Payloads.of(store, run)
        self._made: dict[int, tuple[ObjectRef, Base]] = {}
        self._broken: dict[int, int] = {}
        self._contributions: dict[HandinId, list[str]] = defaultdict(list)
        for info in store.list(self._keys.contributions):
            if (parsed := self._keys.parse_contribution(info.key)) is not None:
                self._contributions[HandinId(*parsed)].append(info.key)

    def step(self, merge: Merge, promises: Promises) -> Replayed:
        """Merge one step again and compare; what it was made from may be gone if `promises` allow."""
        outcome = self._step(merge, promises)
        if outcome.difference or (outcome.skipped and not outcome.is_let_go):
            self._broken.setdefault(merge.step.fragment, merge.seq)
        elif not outcome.skipped:
            self._broken.pop(merge.step.fragment, None)
        return outcome

    def _step(self, merge: Merge, promises: Promises) -> Replayed:
        try:
            kernel = kernel_by_name(merge.kernel)
        except ConfigError as error:
            return Replayed(skipped=error.args[0])
        try:
            base = self._base(merge)
        except IntegrityError as error:  # told by the check of objects, if it should be there
            before = merge.version - 1
            if not isinstance(error, MissingObjectError):
                return Replayed(skipped=error.args[0])
            broken = self._broken.get(merge.step.fragment)
            if broken is not None:
                return Replayed(
                    skipped=f"version {before} is not kept, and record {broken} could not be merged again"
                )
            is_let_go = not promises.hold(before, before)
            return Replayed(skipped=f"version {before} is not kept (any more)", is_let_go=is_let_go)
        passed = []
        for receipt in merge.receipts:
            found = self._contribution(receipt, kernel)
            if isinstance(found, Replayed):
                if found.is_let_go and promises.hold_contributions(merge.version):
                    where = self._keys.commit(merge.seq)
                    return Replayed(difference=f"{found.skipped}, but all are kept", where=where)
                return found
            passed.append(found)
        return self._compare(merge, base, passed, kernel)

    def _base(self, merge: Merge) -> Base:
        """What the step started from. Raises: IntegrityError."""
        fragment = merge.step.fragment
        published, base = self._made.pop(fragment, (None, None))
        if base is not None and published == merge.before.published:
            return base
        return self._payloads.base(fragment, merge.before)

    def _stand_in(self, made: Made) -> None:
        """Keep what a step made, if the next one will not find it in the store."""
        step = made.step
        named = [ref for ref in (step.published, step.outer) if ref is not None]
        if any(self._store.head(ref.key) is None for ref in named):
            self._made[step.fragment] = (step.published, made.base)

    def _contribution(self, receipt: Receipt, kernel: Kernel) -> Passed | Replayed:
        keys = self._contributions.get(receipt.id, [])
        if not keys:
            return Replayed(skipped=f"contribution {receipt.id} is not kept", is_let_go=True)
        if len(keys) > 1:
            return Replayed(difference=f"{len(keys)} payloads say that they are it", where=keys[0])
        (key,) = keys
        try:
            data = self._store.get(key)
            if self._keys.contribution(*receipt.id, sha256(data)) != key:
                return Replayed(difference=NOT_ITS_NAME, where=key)
            handin = announcement(key, data)
        except ObjectNotFoundError:
            return Replayed(skipped=f"contribution {receipt.id} is not kept", is_let_go=True)
        except (IntegrityError, ProtocolError) as error:
            return Replayed(difference=error.args[0], where=key)
        told = (handin.id, handin.steps, handin.tokens)
        if told != (receipt.id, receipt.steps, receipt.tokens):
            return Replayed(difference="its header is not what its receipt says", where=key)
        found = check_payload(handin, data, self._payloads.specs(receipt.fragment), kernel)
        return found if isinstance(found, Passed) else Replayed(difference=found.reason, where=key)

    def _compare(self, merge: Merge, base: Base, passed: list[Passed], kernel: Kernel) -> Replayed:
        step = merge.step
        merged = merge_fragment(
            self._payloads.specs(step.fragment),
            [
                Offer(
                    weight=receipt.weight,
                    deltas=found.contribution.deltas,
                    norms=found.seen.norms,
                    buffers=found.contribution.buffers,
                )
                for receipt, found in zip(merge.receipts, passed, strict=True)
            ],
            master=base.master,
            momentum=base.momentum,
            lr=merge.lr,
            mu=merge.momentum,
            kernel=kernel,
        )
        try:
            made = self._payloads.make(
                step.fragment, base, step.version_before, merged, lambda *_: None
            )
        except TaskError as error:
            return Replayed(
                difference=f"the replay gives {error.args[0]}", where=step.published.key
            )
        where, again = step.published.key, made.step
        pairs = (
            (step.published, again.published),
            (step.step, again.step),
            (step.outer, again.outer),
        )
        for said, found in pairs:
            if said != found:
                what = f"merging again gives {_digest(found)}, the log says {_digest(said)}"
                return Replayed(difference=what, where=said.key if said else where)
        self._stand_in(made)
        return Replayed()


def _digest(ref: ObjectRef | None) -> str:
    return "no such object" if ref is None else f"SHA-256 {ref.sha256[:16]}..."
