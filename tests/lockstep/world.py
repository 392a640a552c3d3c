"""Virtual time, and the two services as plain dicts: what the lockstep runner's processes share."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ddl.config import Settings
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    Amount,
    BeatReply,
    FragmentState,
    Handin,
    HandinId,
    Head,
    LearnerRecord,
    Order,
    Receipt,
    Round,
)
from ddl.store.base import Progress

START = 1_000.0


class Books(Protocol):
    """What a learner, of whatever kind, says that it has handed in."""

    name: str
    incarnation: int

    def books(self) -> Iterator[tuple[int, int, Amount, Amount]]:
        """Per fragment: last seq, everything handed in, and the last contribution alone."""
        ...


class Time:
    """A clock that leaps from one planned action to the next; ties go in the order of planning."""

    def __init__(self) -> None:
        self.now = START
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, instant: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._planned, (max(instant, self.now), next(self._count), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def leap(self, seconds: float) -> None:
        """The clock jumps; what is planned happens as long after now as it would have."""
        self.now += seconds
        self._planned = [(at + seconds, count, action) for at, count, action in self._planned]

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until `until()` holds; False if it does not within `seconds`."""
        end = self.now + seconds
        while not until():
            if not self._planned or self._planned[0][0] > end:
                self.now = end
                return until()
            self.now, _, action = heapq.heappop(self._planned)
            action()
        return True


class ObjectStore:
    """As much of a `Store` as `Payloads` needs, over a plain dict; no object is ever changed."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def put(self, key: str, body: bytes | memoryview) -> bool:
        data = bytes(body)
        assert self._objects.setdefault(key, data) == data, f"{key} was written twice"
        return True

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:  # noqa: ARG002 - a store's
        return bytearray(self._objects[key])


class Services:
    """What Redis and the store hold. `listeners` are told when a coordinator has news."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log: dict[int, bytes] = {}
        self.checkpoints: dict[int, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.head: Head | None = None
        self.fragments: dict[int, FragmentState] = {}
        self.rounds: tuple[Round, ...] = ()
        self.learners: dict[str, LearnerRecord] = {}
        self.beats: dict[str, float] = {}
        self.handins: dict[str, Handin] = {}
        self.receipts: dict[str, Receipt] = {}
        self.orders: dict[str, Order] = {}
        self.asked: set[HandinId] = set()
        self.listeners: list[Callable[[], None]] = []
        self.redis_up = True

    def beat(self, record: LearnerRecord, unreceipted: list[HandinId], now: float) -> BeatReply:
        """One beat: write the record, hear everything back."""
        known = self.learners.get(record.id)
        newest = max(record.incarnation, known.incarnation if known else 0)
        if newest == record.incarnation:
            self.learners[record.id] = record
            self.beats[record.id] = now
        fields = [handin_field(i.learner, i.incarnation, i.fragment) for i in unreceipted]
        return BeatReply(
            now=now,
            boot="boot",
            registered=True,
            incarnation=newest,
            head=self.head,
            rounds=self.rounds,
            receipts=tuple(self.receipts[f] for f in fields if f in self.receipts),
            again=tuple(i for i in unreceipted if i in self.asked),
            order=self.orders.get(record.id),
            settings=self.settings,
        )

    def announce(self, handin: Handin) -> bool:
        """Enter a hand-in if it is the next of its account; whether it is new to Redis."""
        self.asked.discard(handin.id)
        field = handin_field(handin.learner, handin.incarnation, handin.fragment)
        last = self.receipts[field].seq if field in self.receipts else 0
        if handin.seq != last + 1:
            return False
        self.handins[field] = handin
        return True

    def show(self, head: Head, fragments: Any, receipts: tuple[Receipt, ...]) -> None:
        """A record's effect on what learners see."""
        self.head = head
        for state in fragments:
            self.fragments[state.fragment] = state
        for receipt in receipts:
            field = handin_field(receipt.learner, receipt.incarnation, receipt.fragment)
            self.receipts[field] = receipt
            self.asked.discard(receipt.id)
            if field in self.handins and self.handins[field].seq <= receipt.seq:
                del self.handins[field]

    def wake(self) -> None:
        for listener in self.listeners:
            listener()
