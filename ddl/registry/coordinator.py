"""The coordinator's side of the control plane, in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ddl.protocol.keys import RUNS, handin_field
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
    Round,
    RunEntry,
)
from ddl.protocol.wire import canonical
from ddl.registry.base import IndexEntry, LeaseReply, Poll, settings_digest, shared_settings
from ddl.registry.run import OpenRounds, RedisRun, fields, instants, optional, readable, rows, table
from ddl.registry.units import units_done


class RedisCoordinator(RedisRun):
    """See `ddl.registry.base.CoordinatorRegistry`, which holds the contract of every method."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self._run = run
        self._arrivals = self._server.waiter(self._keys.arrivals)

    # ---- the lease

    def take_lease(self, lease: Lease, *, ttl_s: float, min_epoch: int) -> LeaseReply:
        keys = [self._keys.lease, self._keys.epoch]
        args = (canonical(lease), _milliseconds(ttl_s), min_epoch)
        return self._lease_reply(self._server.run("take_lease", keys, *args))

    def renew_lease(self, lease: Lease, *, ttl_s: float) -> LeaseReply:
        keys = [self._keys.lease, self._keys.epoch]
        args = (canonical(lease), _milliseconds(ttl_s))
        return self._lease_reply(self._server.run("renew_lease", keys, *args))

    def release_lease(self, lease: Lease) -> None:
        self._server.run("release_lease", [self._keys.lease], canonical(lease))

    def stand_by(self, holder: str, *, ttl_s: float) -> None:
        self._server.run("stand_by", [self._keys.standbys], holder, ttl_s)

    def _lease_reply(self, reply: Sequence[Any]) -> LeaseReply:
        held, lease, left_ms, now, was_foreign = reply
        return LeaseReply(
            held=held == 1,
            lease=optional(lease, Lease, what=f"Redis key {self._keys.lease}"),
            left_s=left_ms / 1000,
            now=float(now),
            was_foreign=was_foreign == 1,
        )

    # ---- what the log says

    def rebuild(
        self,
        epoch: int,
        entry: RunEntry,
        head: Head,
        fragments: Sequence[FragmentState],
        receipts: Sequence[Receipt],
    ) -> bool:
        k = self._keys
        keys = [k.run, k.epoch, k.head, k.fragments, k.receipts, k.handins, k.answers, k.news]
        keys += [k.rounds, k.orders, k.learners, k.beats, k.requests, k.units, k.events]
        args = (
            epoch,
            entry.run.lineage,
            canonical(head),
            _fragment_fields(fragments),
            _receipt_rows(receipts),
            _run_fields(entry),
        )
        if self._server.run("rebuild", keys, *args) == 0:
            return False
        # the index is not in the run's Cluster slot, so it cannot be in the script
        index = IndexEntry(store=entry.store_url, lineage=entry.run.lineage)
        self._server.call("HSET", RUNS, self._run, canonical(index))
        return True

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
        k = self._keys
        keys = [k.run, k.epoch, k.head, k.fragments, k.receipts, k.handins, k.answers, k.news]
        args = (
            epoch,
            head.seq,
            canonical(head),
            _fragment_fields(fragments),
            _receipt_rows(receipts),
            _run_fields(entry) if entry else b"[]",
            after,
        )
        return bool(self._server.run("commit", keys, *args) == 1)

    # ---- what the coordinator says beside the log

    def set_rounds(self, epoch: int, rounds: Sequence[Round], *, wake: bool) -> bool:
        k = self._keys
        keys = [k.run, k.epoch, k.rounds, k.news]
        shown = canonical(OpenRounds(tuple(rounds)))
        return bool(self._server.run("set_rounds", keys, epoch, shown, int(wake)) == 1)

    def ask_again(self, epoch: int, handin: Handin) -> bool:
        field = handin_field(handin.learner, handin.incarnation, handin.fragment)
        return self._set_field(epoch, self._keys.answers, field, b"%d" % handin.seq)

    def set_order(self, epoch: int, learner: str, order: Order | None) -> bool:
        value = canonical(order) if order else b""
        return self._set_field(epoch, self._keys.orders, learner, value)

    def remove_request(self, epoch: int, request_id: str) -> bool:
        return self._set_field(epoch, self._keys.requests, request_id, b"")

    def _set_field(self, epoch: int, key: str, field: str, value: bytes) -> bool:
        k = self._keys
        keys = [k.run, k.epoch, key, k.news]
        return bool(self._server.run("set_field", keys, epoch, field, value) == 1)

    def forget_learner(self, epoch: int, learner: str, incarnation: int) -> bool:
        k = self._keys
        keys = [k.epoch, k.learners, k.beats, k.orders]
        return bool(self._server.run("forget_learner", keys, epoch, learner, incarnation) == 1)

    # ---- what others say

    def poll(self) -> Poll:
        k = self._keys
        keys = [k.run, k.head, k.learners, k.beats, k.handins, k.requests, k.answers, k.units]
        now, boot, is_changed, head, *hashes = self._server.run("poll", keys)
        learners, beats, handins, requests, answers, units = hashes
        broken: list[str] = []
        shown = readable(head, Head, k.head, broken)  # as if it were lost
        if boot and is_changed:
            broken.append(f"Redis key {k.run} was changed by something else than ddl")
        return Poll(
            now=float(now),
            learners=table(learners, LearnerRecord, k.learners, broken),
            beats=instants(beats, k.beats, broken),
            handins=table(handins, Handin, k.handins, broken),
            requests=tuple(table(requests, Request, k.requests, broken).values()),
            boot="" if is_changed else boot.decode(),
            head_seq=shown.seq if shown else -1,
            asked={field: int(seq) for field, seq in fields(answers) if seq.isdigit()},
            units=units_done(units, k.units, broken),
            broken=tuple(broken),
        )

    def told(self) -> list[Fact]:
        key = self._keys.events
        found = self._server.call("XRANGE", key, "-", "+")
        return rows([row.get(b"fact", b"") for _, row in found], Fact, key, [])

    def wait_arrivals(self, timeout_s: float) -> bool:
        return self._arrivals.wait(timeout_s)

    def close(self) -> None:
        self._arrivals.close()
        super().close()


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _run_fields(entry: RunEntry) -> bytes:
    """Fields of the hash `run`, as a JSON list of names and values."""
    entry = msgspec.structs.replace(
        entry,
        run=msgspec.structs.replace(entry.run, settings=shared_settings(entry.run.settings)),
        settings=shared_settings(entry.settings),
    )
    named = {
        "entry": canonical(entry).decode(),
        "boot": entry.boot,
        "lineage": entry.run.lineage,
        "settings": canonical(entry.settings).decode(),
        "settings_digest": settings_digest(entry.settings),
    }
    # by this `poll.lua` sees that all of it still stands there
    lengths = (len(named["entry"].encode()), len(named["settings"].encode()))
    words = (named["boot"], named["lineage"], named["settings_digest"], *lengths)
    named["check"] = " ".join(map(str, words))
    return canonical([part for field in named.items() for part in field])


def _fragment_fields(fragments: Sequence[FragmentState]) -> bytes:
    """Fields of the hash `fragments`, as a JSON list of names and values."""
    return canonical([p for f in fragments for p in (str(f.fragment), canonical(f).decode())])


def _receipt_rows(receipts: Sequence[Receipt]) -> bytes:
    return canonical(
        [
            (handin_field(r.learner, r.incarnation, r.fragment), r.seq, canonical(r).decode())
            for r in receipts
        ]
    )
