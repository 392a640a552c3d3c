"""The story of a learner, a round, a version or a contribution, in sentences. Pure: from the records
of the log, and from what Redis shows and remembers, where it is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ddl.core.chain import because
from ddl.names import counted
from ddl.protocol.records import (
    Fact,
    Handin,
    LearnerView,
    LogRecord,
    Receipt,
    Record,
    RunRecord,
    RunSnapshot,
)
from ddl.protocol.wire import SCHEMA
from ddl_cli.units import fine_time, short_number, short_time

TOLD_LAST: Final = 12
"""Events, and hand-ins that were not merged, that are told of a learner: the newest."""


class Line(Record, frozen=True, kw_only=True):
    """A sentence, and when that was on the clock of Redis; None for what is so now."""

    at: float | None = None
    text: str


class Story(Record, frozen=True, kw_only=True):
    """What `ddl explain --json` prints; `lines` is empty for what the run never had."""

    schema: int = SCHEMA
    run: str
    subject: str
    lines: tuple[Line, ...]


class Sources(NamedTuple):
    """All there is to tell from.

    Attributes:
        records: the log after `run`, oldest first.
        facts: what Redis remembers, oldest first; empty if it was not asked.
        shown: the run as Redis shows it now; None if it was not asked.
        handins: contributions that are announced and have no receipt.
    """

    run: RunRecord
    records: Sequence[LogRecord]
    facts: Sequence[Fact] = ()
    shown: RunSnapshot | None = None
    handins: Sequence[Handin] = ()

    @property
    def newest_version(self) -> int:
        """The newest global version."""
        return self.records[-1].global_version if self.records else 0


# ---- a version ----------------------------------------------------------------------------------


def of_version(number: int, sources: Sources) -> Iterator[Line]:
    """How a global version came about, and what became of it."""
    if number == 0:
        run = sources.run
        yield Line(
            at=run.created_at,
            text=f"version 0 is what {run.name} was created with: "
            f"{run.layout.num_parameters:,} parameters in {counted(len(run.fragments), 'fragment')}",
        )
    made = next((r for r in sources.records if _made(r) and r.global_version == number), None)
    if made is not None:
        yield from _making(made)
    for record in sources.records:
        if record.kind == "rollback" and record.back_to == number:
            text = f"it was taken up again as version {record.global_version}{_because(record)}"
            yield Line(at=record.written_at, text=text)
        elif record.kind == "rollback" and (record.back_to or 0) < number < record.global_version:
            text = f"it was given up: the run went back to version {record.back_to}"
            yield Line(at=record.written_at, text=text + _because(record))


def _made(record: LogRecord) -> bool:
    return record.kind in ("step", "rollback")


def _making(record: LogRecord) -> Iterator[Line]:
    at = record.written_at
    by = f"coordinator {record.holder} (epoch {record.epoch}), record {record.seq}"
    if record.kind == "rollback":
        text = (
            f"version {record.global_version} is version {record.back_to} again{_because(record)}"
        )
        yield Line(at=at, text=f"{text}; by {by}")
        return
    moves = ", ".join(
        f"fragment {step.fragment} from v{step.version_before} to v{step.version_after} "
        f"({short_number(step.published.bytes)}B)"
        for step in record.fragments
    )
    yield Line(at=at, text=f"version {record.global_version} moved {moves}; by {by}")
    merged = [receipt for receipt in record.receipts if receipt.fate == "merged"]
    total = sum(receipt.weight for receipt in merged)
    for receipt in sorted(merged, key=lambda r: -r.weight):
        share = f"{receipt.weight / total:.0%} of the weight" if total else "without weight"
        late = f", {_late(receipt)}" if receipt.staleness else ""
        yield Line(at=at, text=f"merged {receipt.id}: {_work(receipt)}, {share}{late}")
    health = record.health
    told = [
        f"{name} {value:.3g}"
        for name, value in (
            ("the learners' loss", health.loss_mean),
            ("length of the outer step", health.step_norm),
            ("agreement of contributions", health.cos_peers),
            ("with the momentum", health.cos_prev),
        )
        if value is not None
    ]
    if told:
        yield Line(at=at, text=", ".join(told))
    yield Line(
        at=at,
        text="what its round waited for, and what was not merged: `ddl explain RUN round "
        f"{record.global_version}`",
    )


# ---- a round ------------------------------------------------------------------------------------


def of_round(number: int, sources: Sources) -> Iterator[Line]:
    """What a round waited for, and what came of it. `number` is its launch number, or, below the first
    of these, the global version that it made."""
    record = next(
        (r for r in sources.records if r.kind == "step" and number in (r.launch, r.global_version)),
        None,
    )
    launch = record.launch if record is not None else number
    for fact in sources.facts:
        if fact.fields.get("launch") == launch:
            yield Line(at=fact.at, text=f"{fact.name.partition('.')[2]}: {fact.text}")
    if record is not None:
        yield from _closing(record)
    for round_ in sources.shown.rounds if sources.shown else ():
        if round_.launch == launch:
            yield Line(
                at=round_.opened_at,
                text=f"opened, to make v{round_.version_before + 1} of fragment {round_.fragment}",
            )
            yield Line(
                text=f"open now: {counted(len(round_.arrived), 'contribution')} of "
                f"{round_.quorum} in ({_some(round_.arrived)}); awaits {_some(round_.awaited)}; "
                f"{round_.reason or 'no reason to wait'}",
            )


def _closing(record: LogRecord) -> Iterator[Line]:
    """The end of a round: who was in, where its time went, and what it had not waited for."""
    at = record.written_at
    merged = [receipt for receipt in record.receipts if receipt.fate == "merged"]
    names = _some([f"{r.id} ({_late(r)})" if r.staleness else str(r.id) for r in merged])
    yield Line(at=at, text=f"closed with {counted(len(merged), 'contribution')}: {names}")
    waits = record.waits
    yield Line(
        at=at,
        text=f"it took {fine_time(waits.quorum_s)} to the quorum and "
        f"{fine_time(waits.grace_s)} of grace; fetching {fine_time(waits.fetch_s)}, merging "
        f"{fine_time(waits.merge_s)}, publishing {fine_time(waits.publish_s)}",
    )
    if record.carried:
        names = ", ".join(record.carried)
        text = f"came too late for it, and was carried into the next round: {names}"
        yield Line(at=at, text=text)
    for receipt in record.receipts:
        if receipt.fate != "merged":
            yield Line(at=at, text=f"in the same record: {_fate(receipt)}")
    version = record.global_version
    yield Line(
        at=at,
        text=f"it made version {version}; its weights and health: `ddl explain RUN version {version}`",
    )


# ---- a contribution -----------------------------------------------------------------------------


def of_contribution(id_: str, sources: Sources) -> Iterator[Line]:
    """From its announcement to its receipt."""
    for record in sources.records:
        if id_ in record.carried:
            text = f"it missed the round that made version {record.global_version}, and was carried"
            yield Line(at=record.written_at, text=text)
    for fact in sources.facts:
        if fact.fields.get("contribution") == id_ and fact.name == "contribution.asked_again":
            yield Line(at=fact.at, text=fact.text)
    for handin in sources.handins:
        if str(handin.id) == id_:
            yield Line(
                text=f"{id_} is announced and has no receipt yet: {handin.steps} steps, "
                f"{handin.tokens:,} tokens, {short_number(handin.payload.bytes)}B as {handin.codec}, "
                f"on v{handin.oldest_base} of fragment {handin.fragment}",
            )
    for record in sources.records:
        for receipt in record.receipts:
            if str(receipt.id) == id_:
                yield Line(at=record.written_at, text=_receipted(receipt, record))


def _receipted(receipt: Receipt, record: LogRecord) -> str:
    text = f"{_fate(receipt)}; {_work(receipt)}"
    if receipt.norm is not None:
        text += f", length {receipt.norm:.3g}"
    if receipt.fate == "merged":
        total = sum(r.weight for r in record.receipts if r.fate == "merged")
        share = receipt.weight / total if total else 0.0
        text += f"; it is {share:.0%} of version {record.global_version}"
    return f"{text} (record {record.seq})"


# ---- a learner ----------------------------------------------------------------------------------


def of_learner(id_: str, sources: Sources) -> Iterator[Line]:
    """What it handed in and what became of that, what it met lately, and how it is now."""
    told = [(record, r) for record in sources.records for r in record.receipts if r.learner == id_]
    lives = sorted({receipt.incarnation for _, receipt in told})
    for life in lives:
        yield from _life(life, [row for row in told if row[1].incarnation == life], sources.run)
    bad = [(record, receipt) for record, receipt in told if receipt.fate != "merged"]
    for record, receipt in bad[-TOLD_LAST:]:
        yield Line(at=record.written_at, text=_fate(receipt))
    for record in sources.records:
        if id_ in record.barred:
            reason = record.barred[id_]
            word = f"{id_} was kicked: {reason}" if reason else f"{id_} was allowed in again"
            yield Line(at=record.written_at, text=f"{word} (by {record.who})")
    for fact in _about(id_, sources.facts):
        yield Line(at=fact.at, text=fact.text)
    now = sources.shown
    one = next((one for one in now.learners if one.id == id_), None) if now else None
    if now is not None and one is not None:
        yield from _present(one, now)


def _life(life: int, told: Sequence[tuple[LogRecord, Receipt]], run: RunRecord) -> Iterator[Line]:
    """One incarnation, from its receipts."""
    shares = run.layout.shares
    fates = Counter(receipt.fate for _, receipt in told)
    steps = sum(shares[r.fragment] * r.steps for _, r in told)
    tokens = sum(shares[r.fragment] * r.tokens for _, r in told)
    last = told[-1][0].written_at
    listed = ", ".join(f"{count} {fate}" for fate, count in fates.items())
    yield Line(
        at=told[0][0].written_at,
        text=f"the first receipt of its life {life}; in all {listed} until "
        f"{short_time(last - told[0][0].written_at)} later: {steps:,.0f} steps, "
        f"{short_number(tokens)} tokens",
    )


def _about(id_: str, facts: Iterable[Fact]) -> list[Fact]:
    """The newest events of a learner; its receipts stand in the log already."""
    return [
        fact
        for fact in facts
        if fact.fields.get("learner") == id_ and not fact.name.startswith("contribution.")
    ][-TOLD_LAST:]


def _present(one: LearnerView, shown: RunSnapshot) -> Iterator[Line]:
    yield Line(
        text=f"its state is {one.state}, for {short_time(shown.taken_at - one.since_at)}, on "
        f"{one.host or 'a machine without a name'} ({one.device}); step {one.step}, "
        f"{one.share_ratio:.0%} of what was merged lately",
    )
    for trouble in shown.troubles:
        if one.id in trouble.learners:
            cure = f". {trouble.cure[0].upper()}{trouble.cure[1:]}" if trouble.cure else ""
            yield Line(text=trouble.what + cure)


# ---- words --------------------------------------------------------------------------------------


def _fate(receipt: Receipt) -> str:
    reason = f": {receipt.reason}" if receipt.reason else ""
    return f"{receipt.id} was {receipt.fate.replace('_', ' ')}{reason}"


def _work(receipt: Receipt) -> str:
    return f"{counted(receipt.steps, 'step')}, {counted(receipt.tokens, 'token')}"


def _late(receipt: Receipt) -> str:
    return f"{counted(receipt.staleness, 'version')} late"


def _because(record: LogRecord) -> str:
    words = because(record)
    return f"{':' if record.why else ''} {words}" if words else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) or "nobody"
