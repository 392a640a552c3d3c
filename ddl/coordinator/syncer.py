"""The data plane of the coordinator: payloads in, merged versions out.

A fetched payload stays in memory in its stored form until it is merged or gets another fate; it is
decoded tile by tile while it is merged. Results depend on the record's inputs alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ddl.clock import Clock
from ddl.codec.frame import Buffer
from ddl.coordinator.gate import Passed, Rejected, check_announced_size, check_payload
from ddl.coordinator.payloads import Base, Made, Payloads
from ddl.core import events as e
from ddl.core.log import FragmentHead
from ddl.errors import ObjectNotFoundError, StoreError, TaskError
from ddl.merge.step import Merged, Offer, merge_fragment
from ddl.protocol.records import Handin, HandinId, ObjectRef, RunRecord, Waits
from ddl.store.base import Store

BASES_BYTES_MAX: Final = 2 * 1024**3
"""Memory for what merges start from, kept from one merge of a fragment to its next."""

OBJECTS_MAX: Final = 3
"""Of one version: step, fragment and outer state."""


class Syncer:
    """`fetch` may run in several threads at once, `merge` in one.

    Args:
        store: where the run lies.
        run: record 0.
    """

    def __init__(self, store: Store, run: RunRecord, clock: Clock) -> None:
        self._store = store
        self._payloads = Payloads.of(store, run)
        self._clock = clock
        self._bases = _Bases()
        self._lock = threading.Lock()
        self._expected: set[HandinId] = set()
        self._fetched: dict[HandinId, Passed] = {}

    # ---- contributions ----------------------------------------------------------------------

    def expect(self, id_: HandinId) -> None:
        """This one will be fetched. What is not expected (any more) when it comes is dropped."""
        with self._lock:
            self._expected.add(id_)

    def drop(self, id_: HandinId) -> None:
        """Forget a contribution: it has its receipt."""
        with self._lock:
            self._expected.discard(id_)
            self._fetched.pop(id_, None)

    def fetch(self, handin: Handin) -> e.Fetched:
        """Get a payload and pass it through the gate."""
        started = self._clock.monotonic()
        verdict = self._try_fetch(handin)
        seconds = self._clock.monotonic() - started
        if isinstance(verdict, e.Fetched):
            return verdict
        with self._lock:
            if handin.id in self._expected:
                self._fetched[handin.id] = verdict
        return e.Fetched(handin.id, "ok", norm=verdict.seen.norm, seconds=seconds)

    def _try_fetch(self, handin: Handin) -> Passed | e.Fetched:
        specs = self._payloads.specs(handin.fragment)
        verdict: Passed | Rejected | None = check_announced_size(handin, specs)
        if verdict is None:
            try:
                data = self._store.get(handin.payload.key)
            except ObjectNotFoundError:
                return e.Fetched(handin.id, "missing", f"{handin.payload.key} is not in the store")
            except StoreError as error:
                return e.Fetched(handin.id, "unavailable", str(error))
            verdict = check_payload(handin, data, specs)
        if isinstance(verdict, Rejected):
            return e.Fetched(handin.id, verdict.outcome, verdict.reason)
        return verdict

    # ---- merges -----------------------------------------------------------------------------

    def merge(self, order: e.Merge) -> e.Merged | e.MergeFailed:
        """Make the next version of a fragment and put its objects.

        Fails when the result is not finite; the largest contribution is then to blame.
        May be called again after a StoreError, with the same result.
        Raises: IntegrityError: what the fragment stands on is missing or damaged; StoreError.
        """
        clock = self._clock
        fragment = order.fragment
        with self._lock:
            fetched = [self._fetched[item.handin.id] for item in order.inputs]
        started = clock.monotonic()
        base = self._bases.get(fragment, order.base) or self._payloads.base(fragment, order.base)
        merged = merge_fragment(
            self._payloads.specs(fragment),
            [
                Offer(
                    weight=item.weight,
                    deltas=passed.contribution.deltas,
                    norms=passed.seen.norms,
                    buffers=passed.contribution.buffers,
                )
                for item, passed in zip(order.inputs, fetched, strict=True)
            ],
            master=base.master,
            momentum=base.momentum,
            lr=order.lr,
            mu=order.momentum,
        )
        merged_at = clock.monotonic()
        try:
            made = self._make(fragment, base, order.base.version, merged)
        except TaskError as error:
            norms = [passed.seen.norm for passed in fetched]
            worst = order.inputs[norms.index(max(norms))].handin.id
            reason = f"the merge with it is not finite: {error.args[0]}"
            return e.MergeFailed(order.launch, reason, ((worst, reason),))
        assert made.step.outer is not None
        self._bases.keep(fragment, made.step.outer, made.base)
        waits = Waits(
            merge_s=merged_at - started,
            publish_s=clock.monotonic() - merged_at,
        )
        return e.Merged(order.launch, made.step, merged.health, merged.kernel, waits)

    def _make(self, fragment: int, base: Base, before: int, merged: Merged) -> Made:
        """Make a version; its first objects are put while the later ones are still written."""
        puts: list[Future[None]] = []

        def put(ref: ObjectRef, data: Buffer) -> None:
            puts.append(pool.submit(self._payloads.put, ref, data))

        with ThreadPoolExecutor(OBJECTS_MAX, thread_name_prefix="put") as pool:
            made = self._payloads.make(fragment, base, before, merged, put)
        for done in puts:
            done.result()
        return made


class _Bases:
    """What the next merges start from: by fragment, the version made last; the least used forgotten.

    What is found here equals what the store holds, and saves reading it.
    """

    def __init__(self) -> None:
        self._bases: OrderedDict[int, tuple[str, Base]] = OrderedDict()

    def get(self, fragment: int, head: FragmentHead) -> Base | None:
        digest, base = self._bases.get(fragment, ("", None))
        return base if head.outer is not None and head.outer.sha256 == digest else None

    def keep(self, fragment: int, outer: ObjectRef, base: Base) -> None:
        self._bases[fragment] = outer.sha256, base
        self._bases.move_to_end(fragment)
        while len(self._bases) > 1 and sum(map(_size, self._all())) > BASES_BYTES_MAX:
            self._bases.popitem(last=False)

    def _all(self) -> Iterator[Base]:
        return (base for _, base in self._bases.values())


def _size(base: Base) -> int:
    parts = (base.master, base.momentum, base.published)
    tensors = [tensor for part in parts if part is not None for tensor in part.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
