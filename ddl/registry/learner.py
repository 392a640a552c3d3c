"""A learner's side of the control plane, in Redis."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddl.config import Settings
from ddl.errors import RefusedError
from ddl.protocol.address import typed_address
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    BeatReply,
    FragmentState,
    Handin,
    Head,
    LearnerRecord,
    Order,
    Receipt,
)
from ddl.protocol.units import UnitCall, UnitReply
from ddl.protocol.wire import canonical, parse
from ddl.registry.base import Joined
from ddl.registry.run import RedisRun, open_rounds, optional
from ddl.registry.units import unit_reply


class RedisLearner(RedisRun):
    """See `ddl.registry.base.LearnerRegistry`, which holds the contract of every method."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self._run = run
        self._news = self._server.waiter(self._keys.news)

    def read_head(self) -> Head | None:
        raw = self._server.call("GET", self._keys.head)
        return optional(raw, Head, what=f"Redis key {self._keys.head}")

    def register(
        self, record: LearnerRecord, *, gone_s: float, takeover: bool, enter: bool = True
    ) -> Joined:
        k = self._keys
        keys = [k.run, k.learners, k.beats, k.arrivals, k.orders]
        args = (*_named(record), gone_s, int(takeover), int(enter))
        outcome, now, holder, age = self._server.run("register", keys, *args)
        if outcome == b"kicked":
            address = typed_address(self._server.where, self._run)
            reason = parse(holder, Order, what=f"Redis key {k.orders}").reason
            raise RefusedError(
                f"learner {record.id!r} was kicked: {reason or 'no reason given'}",
                hint=f"`ddl learner allow {address} {record.id}` lets it in again",
            )
        joined = Joined(
            refused="",
            now=float(now),
            holder=optional(holder, LearnerRecord, what=f"Redis key {k.learners}"),
            beat_age_s=float(age) if age else None,
        )
        return joined._replace(refused=self._refusal(outcome.decode(), record, joined))

    def _refusal(self, outcome: str, record: LearnerRecord, joined: Joined) -> str:
        match outcome, joined.holder:
            case "entered", _:
                return ""
            case "newer", LearnerRecord() as holder:
                return (
                    f"learner {record.id!r} has joined again as incarnation {holder.incarnation}, "
                    f"on {holder.host or 'an unnamed host'} (pid {holder.pid}); "
                    f"this one is {record.incarnation}"
                )
            case "alive", LearnerRecord() as holder:
                return (
                    f"learner {record.id!r} is alive on {holder.host or 'an unnamed host'} "
                    f"(pid {holder.pid}): its last beat was {joined.beat_age_s:.1f} s ago"
                )
            case "lineage", _:
                return f"the name {self._run!r} belongs to another run now (another lineage)"
            case "unknown", _:
                return f"Redis at {self._server.where} does not know the run {self._run!r}"
        raise AssertionError(f"register.lua: {outcome}")

    def beat(
        self, record: LearnerRecord, handins: Sequence[Handin], *, settings_digest: str
    ) -> BeatReply:
        k = self._keys
        keys = [k.run, k.learners, k.beats, k.handins, k.receipts, k.answers]
        keys += [k.head, k.rounds, k.orders, k.arrivals, k.lease]
        claims = canonical([_claim(handin) for handin in handins])
        reply = self._server.run("beat", keys, *_named(record), settings_digest, claims)
        now, boot, lineage, newest, held, head, rounds, order, settings, receipts, again = reply
        if lineage and lineage.decode() != record.lineage:
            raise RefusedError(
                f"the name {self._run!r} in Redis at {self._server.where} belongs to another run "
                f"now: lineage {lineage.decode()}, this learner trains {record.lineage}",
                hint="Join the new run with a new process, or put this run under another name",
            )
        return BeatReply(
            now=float(now),
            boot=boot.decode(),
            registered=newest == record.incarnation,
            incarnation=max(newest, record.incarnation),
            coordinated=bool(held),
            head=optional(head, Head, what=f"Redis key {k.head}"),
            rounds=open_rounds(rounds, k.rounds),
            receipts=tuple(parse(r, Receipt, what=f"Redis key {k.receipts}") for r in receipts),
            again=tuple(handins[index - 1].id for index in again),
            order=self._order(order, record),
            settings=optional(settings, Settings, what=f"Redis key {k.run}"),
        )

    def _order(self, raw: bytes, record: LearnerRecord) -> Order | None:
        """An order is for one incarnation; `register` turns away those that come after a kick."""
        order = optional(raw, Order, what=f"Redis key {self._keys.orders}")
        return order if order and order.incarnation == record.incarnation else None

    def announce(self, handin: Handin, *, incarnation: int) -> str:
        k = self._keys
        keys = [k.run, k.learners, k.handins, k.receipts, k.answers, k.arrivals]
        claim = canonical(_claim(handin))
        outcome: bytes = self._server.run("announce", keys, handin.learner, incarnation, claim)
        return outcome.decode()

    def exchange_units(
        self, record: LearnerRecord, call: UnitCall, *, gone_s: float
    ) -> UnitReply | None:
        k = self._keys
        keys = [k.run, k.learners, k.beats, k.head, k.units]
        args = (record.id, record.incarnation, record.lineage, gone_s, canonical(call))
        return unit_reply(self._server.run("units", keys, *args), call)

    def read_fragments(self) -> tuple[FragmentState, ...]:
        key = self._keys.fragments
        states = self._server.call("HGETALL", key).values()
        parsed = (parse(state, FragmentState, what=f"Redis key {key}") for state in states)
        return tuple(sorted(parsed, key=lambda state: state.fragment))

    def wait_news(self, timeout_s: float) -> bool:
        return self._news.wait(timeout_s)

    def interrupt(self) -> None:
        self._news.interrupt()

    def leave(self, record: LearnerRecord) -> None:
        k = self._keys
        last = msgspec.structs.replace(record, state="left")
        self._server.run("leave", [k.run, k.learners, k.beats, k.arrivals], *_named(last))

    def close(self) -> None:
        self._news.close()
        super().close()


def _named(record: LearnerRecord) -> tuple[str, int, str, bytes]:
    """A learner as the scripts take it: what they judge by, then the record."""
    return record.id, record.incarnation, record.lineage, canonical(record)


def _claim(handin: Handin) -> tuple[str, int, int, str, str]:
    """A hand-in as the scripts take it: what they judge by, then the record."""
    field = handin_field(handin.learner, handin.incarnation, handin.fragment)
    text = canonical(handin).decode()
    return field, handin.incarnation, handin.seq, handin.lineage, text
