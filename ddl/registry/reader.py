"""The control plane in Redis as people and displays see it."""

from __future__ import annotations

import re
import time

from ddl.errors import UnknownRunError
from ddl.protocol.keys import RUNS
from ddl.protocol.records import (
    Fact,
    FragmentState,
    Handin,
    Head,
    LearnerRecord,
    Lease,
    Order,
    Receipt,
    Request,
    RunEntry,
)
from ddl.protocol.wire import canonical, parse
from ddl.registry.base import IndexEntry, View
from ddl.registry.redis import RedisServer
from ddl.registry.run import RedisRun, instants, open_rounds, optional, readable, rows, table, text


class RedisReader(RedisRun):
    """See `ddl.registry.base.ReaderRegistry`, which holds the contract of every method."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self._run = run

    def view(self, *, num_facts: int = 20) -> View:
        k = self._keys
        keys = [k.run, k.lease, k.head, k.rounds, k.events]
        keys += [k.standbys, k.fragments, k.learners, k.beats, k.handins, k.receipts, k.orders]
        started = time.monotonic()
        reply = self._server.run("view", keys, num_facts)
        latency_s = time.monotonic() - started
        now, entry, lease, left_ms, head, rounds, told, standbys, *texts, memory = reply
        facts, *hashes = [words.split(b"\0") if words else [] for words in (told, *texts)]
        fragments, learners, beats, handins, receipts, orders = hashes
        broken: list[str] = []
        states = table(fragments, FragmentState, k.fragments, broken).values()
        return View(
            now=float(now),
            latency_s=latency_s,
            entry=optional(entry, RunEntry, what=f"Redis key {k.run}"),
            lease=readable(lease, Lease, k.lease, broken),
            lease_left_s=left_ms / 1000 if lease else None,
            standbys=tuple(sorted(map(text, standbys))),
            head=readable(head, Head, k.head, broken),
            fragments=tuple(sorted(states, key=lambda state: state.fragment)),
            rounds=open_rounds(rounds, k.rounds),
            learners=table(learners, LearnerRecord, k.learners, broken),
            beats=instants(beats, k.beats, broken),
            handins=table(handins, Handin, k.handins, broken),
            receipts=table(receipts, Receipt, k.receipts, broken),
            facts=tuple(rows(facts[::-1], Fact, k.events, broken)),
            orders=table(orders, Order, k.orders, broken),
            broken=tuple(broken),
            used_bytes=_number(memory, b"used_memory"),
            max_bytes=_number(memory, b"maxmemory"),
        )

    def facts(self, *, after: str = "", limit: int) -> list[tuple[str, Fact]]:
        key, what = self._keys.events, f"Redis key {self._keys.events}"
        if after:
            rows = self._server.call("XRANGE", key, f"({after}", "+", "COUNT", limit)
        else:
            rows = reversed(self._server.call("XREVRANGE", key, "+", "-", "COUNT", limit))
        return [(id_.decode(), parse(row[b"fact"], Fact, what=what)) for id_, row in rows]

    def request(self, request: Request) -> None:
        k = self._keys
        keys = [k.run, k.requests, k.arrivals]
        if self._server.run("request", keys, request.id, canonical(request)) == 0:
            raise UnknownRunError(
                f"Redis at {self._server.where} does not know the run {self._run!r}",
                hint="Check the address, and that a coordinator of the run has been started",
            )

    def count_keys(self) -> int:
        """How many keys of the run there are, also if they are only left-overs of one."""
        found: int = self._server.call("EXISTS", *self._keys.all())
        return found

    def remove_run(self) -> None:
        self._server.call("UNLINK", *self._keys.all())
        self._server.call("HDEL", RUNS, self._run)


def read_runs(url: str) -> dict[str, IndexEntry]:
    """The runs that the Redis at `url` knows, by name. Raises: AddressError, RegistryError."""
    server = RedisServer(url)
    try:
        raw: dict[bytes, bytes] = server.call("HGETALL", RUNS)
    finally:
        server.close()
    what = f"Redis key {RUNS}"
    return {text(name): parse(raw[name], IndexEntry, what=what) for name in sorted(raw)}


def _number(info: bytes, name: bytes) -> int:
    """A number of Redis' INFO; 0 where it does not stand."""
    found = re.search(rb"^%s:(\d+)" % name, info, re.MULTILINE)
    return int(found[1]) if found else 0
