"""The story of a learner or a contribution, in sentences; `ddl_cli.made` has those of versions and
rounds. Pure: from the records of the log, and from what Redis shows and remembers, where it is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ddl.names import counted
from ddl.protocol.records import (
    Fact,
    Handin,
    LearnerState,
    LearnerView,
    LogRecord,
    Receipt,
    Record,
    RunRecord,
    RunSnapshot,
)
from ddl.protocol.wire import SCHEMA
from ddl_cli.units import short_number, short_time

_STATES: Final[dict[LearnerState, str]] = {
    "gone": "gone (its process is not heard of any more)",
    "suspect": "suspect (not heard of lately)",
    "aside": "aside (nothing of it is merged)",
    "left": "not there (it left in good order)",
}
"""What people are told in place of a state's name."""

TOLD_LAST: Final = 100
"""Events, and hand-ins that were not merged, that are told of a learner: the newest of each."""


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
        typed: the run as a person would type it into another command.
        records: the log after `run`, oldest first.
        facts: what Redis remembers, oldest first; empty if it was not asked.
        shown: the run as Redis shows it now; None if it was not asked.
        handins: contributions that are announced and have no receipt.
    """

    run: RunRecord
    typed: str
    records: Sequence[LogRecord]
    facts: Sequence[Fact] = ()
    shown: RunSnapshot | None = None
    handins: Sequence[Handin] = ()

    @property
    def newest_version(self) -> int:
        """The newest global version."""
        return self.records[-1].global_version if self.records else 0

    @property
    def learners(self) -> list[str]:
        """All that have a receipt or are registered, sorted."""
        registered = [one.id for one in self.shown.learners] if self.shown is not None else []
        heard = {receipt.learner for record in self.records for receipt in record.receipts}
        return sorted(heard.union(registered))


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
    text = f"{fate_of(receipt)}; {work_of(receipt)}"
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
    yield from _left_out("hand-ins that were not merged", [r.written_at for r, _ in bad])
    for record, receipt in bad[-TOLD_LAST:]:
        yield Line(at=record.written_at, text=fate_of(receipt))
    for record in sources.records:
        if id_ in record.barred:
            reason = record.barred[id_]
            allowed = f"{id_} was allowed in again (by {record.who})"
            text = f"{id_} was kicked: {reason}" if reason else allowed
            yield Line(at=record.written_at, text=text)
    facts = _about(id_, sources.facts)
    yield from _left_out("events", [fact.at for fact in facts])
    for fact in facts[-TOLD_LAST:]:
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
    first, last = told[0][0].written_at, told[-1][0].written_at
    listed = ", ".join(f"{count} {fate}" for fate, count in fates.items())
    over = f" over {short_time(last - first)}" if last > first else ""
    yield Line(
        at=first,
        text=f"life {life}: of its hand-ins {listed}{over}, which is "
        f"{steps:,.{0 if steps >= 10 else 1}f} steps of the whole model, {short_number(tokens)} tokens",
    )


def _about(id_: str, facts: Iterable[Fact]) -> list[Fact]:
    """The events of a learner; its receipts stand in the log already."""
    return [
        fact
        for fact in facts
        if fact.fields.get("learner") == id_ and not fact.name.startswith("contribution.")
    ]


def _left_out(what: str, instants: Sequence[float]) -> Iterator[Line]:
    """That older ones than TOLD_LAST are not told, in their place."""
    if (num := len(instants) - TOLD_LAST) > 0:
        text = f"{num} earlier {what} are left out here: `ddl events` and `ddl report` have them"
        yield Line(at=instants[num - 1], text=text)


def _present(one: LearnerView, shown: RunSnapshot) -> Iterator[Line]:
    yield Line(
        text=f"it is {_STATES.get(one.state, one.state)}, for "
        f"{short_time(shown.taken_at - one.since_at)} now; on "
        f"{one.host or 'a machine without a name'} ({one.device}), step {one.step}, "
        f"{one.share_ratio:.0%} of what was merged lately",
    )
    for trouble in shown.troubles:
        if one.id in trouble.learners:
            cure = f". {trouble.cure[0].upper()}{trouble.cure[1:]}" if trouble.cure else ""
            yield Line(text=trouble.what + cure)


# ---- words --------------------------------------------------------------------------------------


def fate_of(receipt: Receipt) -> str:
    """What became of a contribution, and why."""
    reason = f": {receipt.reason}" if receipt.reason else ""
    return f"{receipt.id} was {receipt.fate.replace('_', ' ')}{reason}"


def work_of(receipt: Receipt) -> str:
    """How much training a contribution stands for."""
    return f"{counted(receipt.steps, 'step')}, {counted(receipt.tokens, 'token')}"
