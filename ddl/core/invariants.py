"""What must hold between any two events, checked from outside the rules (design 7).

The rules are written to keep these; here they are stated once more, by other means, so that a
mistake in the rules shows at the event that makes it. Tests check after every event, and so may a
coordinator that is being debugged. Each broken one is a sentence; an empty list is a good run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ddl.core.job import Job
from ddl.core.learner import LearnerMachine
from ddl.core.log import HISTORY, LogState
from ddl.core.machine import Machine
from ddl.protocol.keys import handin_field
from ddl.protocol.records import Amount, HandinId, LedgerRow, LogRecord


def check(machine: Machine) -> list[str]:
    """What is wrong with a coordinator's core, as it stands between two events."""
    return [
        *_log(machine.log),
        *_accounts(machine, _waiting(machine)),
        *_present(machine),
        *_record(machine.job),
    ]


def check_learner(machine: LearnerMachine) -> list[str]:
    """What is wrong with a learner's core, as it stands between two events."""
    return list(_learner(machine))


class Watch:
    """Checks a machine between two events, and also against how it was at the check before.

    What costs more is looked at only when it has changed: the folded log, what waits for a receipt
    in it, and the record under way.
    """

    def __init__(self) -> None:
        self._before: _Durable | None = None
        self._waiting: tuple[HandinId, ...] = ()
        self._job: Job | None = None
        self._record: LogRecord | None = None

    def check(self, machine: Machine) -> list[str]:
        """What is wrong now, alone or as a change since the last call."""
        before, self._before = self._before, _Durable.of(machine.log)
        known, self._waiting = self._waiting, _waiting(machine)
        if self._before != before:
            return [*check(machine), *(_changes(before, self._before) if before else ())]
        found = list(_present(machine))
        if self._waiting != known:
            before_ids = set(known)
            found += _accounts(machine, [id_ for id_ in self._waiting if id_ not in before_ids])
        job = machine.job
        record = job.record if job is not None else None
        if job is not self._job or record is not self._record:
            self._job, self._record = job, record
            found += _record(job)
        return found


class _Durable(NamedTuple):
    """What of a run's state must move by records alone."""

    seq: int
    digest: str
    global_version: int
    line: int
    progress: float
    versions: tuple[int, ...]
    ledger: tuple[LedgerRow, ...]
    num_accounts: int

    @classmethod
    def of(cls, log: LogState) -> _Durable:
        return cls(
            log.seq,
            log.digest,
            log.global_version,
            log.line,
            log.progress,
            tuple([head.version for head in log.fragments]),
            tuple(log.ledger),
            len(log.accounts),
        )


def _present(machine: Machine) -> Iterator[str]:
    """What is wrong with what the folded log has no part in."""
    yield from _contributions(machine)
    yield from _rounds(machine)
    yield from _job(machine)
    yield from _members(machine)


def _changes(before: _Durable, now: _Durable) -> Iterator[str]:
    if now.seq == before.seq and now != before:
        yield f"durable state changed without a record: {before} became {now}"
    if now.seq < before.seq:
        yield f"seq fell from {before.seq} to {now.seq}"
    if now.global_version < before.global_version:
        yield f"global version fell from {before.global_version} to {now.global_version}"
    for fragment, (old, new) in enumerate(zip(before.versions, now.versions, strict=True)):
        if new < old:
            yield f"fragment {fragment} fell from version {old} to {new}"
    if now.line == before.line and now.progress < before.progress:
        yield f"progress fell from {before.progress} to {now.progress}"


def _log(log: LogState) -> Iterator[str]:
    settled = [Amount() for _ in log.fragments]
    for field, account in log.accounts.items():
        settled[account.last.fragment] += account.settled
        if account.last.seq < 1:
            yield f"account {field} ends with receipt {account.last.seq}"
    for fragment, (head, row) in enumerate(zip(log.fragments, log.ledger, strict=True)):
        if row.settled != settled[fragment]:
            yield f"ledger of f{fragment} sums to {row.settled}, its accounts to {settled[fragment]}"
        if head.version != head.merges + log.line:
            yield (
                f"f{fragment} is at version {head.version} after {head.merges} merges and "
                f"{log.line} rollbacks"
            )
        if head.hash_of(head.version) != head.published.sha256:
            yield f"f{fragment} v{head.version}: the hash on record is not that of its payload"
        if len(head.hashes) > HISTORY:
            yield f"f{fragment} remembers the hashes of {len(head.hashes)} versions"
    lately: Counter[str] = Counter()
    for merge in log.merged_lately:
        lately.update(merge)
    if lately != log.lately:
        yield f"tokens merged lately are {dict(lately)}, kept as {log.lately}"


def _contributions(machine: Machine) -> Iterator[str]:
    inbox, job = machine.inbox, machine.job
    merging = job.pendings if job is not None else ()
    marked = [pending for pending in inbox.pending.values() if pending.phase == "merging"]
    if (marked or merging) and set(marked) != set(merging):
        yield (
            f"marked as merging are {sorted(p.handin.id for p in marked)}, in the record under way "
            f"are {sorted(p.handin.id for p in merging)}"
        )


def _accounts(machine: Machine, waiting: Iterable[HandinId]) -> Iterator[str]:
    """What is wrong in how these, which wait for a receipt, are kept, or how they go with the log."""
    log, inbox = machine.log, machine.inbox
    for id_ in waiting:
        account = log.accounts.get(handin_field(id_.learner, id_.incarnation, id_.fragment))
        last, settled = (account.last.seq, account.settled) if account else (0, Amount())
        if id_.seq != last + 1:
            yield f"{id_} waits for a receipt where {last + 1} is next"
        receipt = inbox.unlogged.get(id_)
        if receipt is not None and (receipt.id != id_ or receipt.fate == "merged"):
            yield f"{id_} waits for a record with receipt {receipt}"
        pending = inbox.pending.get(id_)
        if pending is None:
            continue
        handin = pending.handin
        named = (handin.learner, handin.incarnation, handin.fragment, handin.seq)
        if id_ != named or pending not in inbox.of(handin.fragment):
            yield f"{handin.id} is pending as {id_}, or not with its fragment"
        if receipt is not None:
            yield f"{id_} has a fate and is pending as well"
        due = settled.steps + handin.steps, settled.tokens + handin.tokens
        if (handin.total.steps, handin.total.tokens) != due:
            yield f"{id_} reports {handin.total} in all, and {settled} is settled before it"
    if sum(len(inbox.of(p)) for p in range(len(log.fragments))) != len(inbox.pending):
        yield "the fragments' pending contributions are not all pending contributions"


def _waiting(machine: Machine) -> tuple[HandinId, ...]:
    return (*machine.inbox.pending, *machine.inbox.unlogged)


def _rounds(machine: Machine) -> Iterator[str]:
    log, settings = machine.log, machine.log.settings.round
    merging = machine.job.round if machine.job is not None else None
    rounds = list(machine.board.rounds.values())
    under_way = rounds if merging is None else [*rounds, merging]
    fragments, launches = {r.fragment for r in under_way}, {r.launch for r in under_way}
    if not len(fragments) == len(launches) == len(under_way):
        yield (
            f"{len(under_way)} rounds are under way for {len(fragments)} fragments and "
            f"{len(launches)} launch numbers"
        )
    if len(rounds) > settings.in_flight < sum(not r.extended for r in rounds):
        yield f"{len(rounds)} rounds are open, round.in_flight is {settings.in_flight}"
    for round_ in under_way:
        head = log.fragments[round_.fragment]
        if (round_.version_before, round_.line) != (head.version, log.line):
            yield (
                f"round {round_.launch} of f{round_.fragment} starts from v{round_.version_before} "
                f"line {round_.line}, the log is at v{head.version} line {log.line}"
            )
        if (round_.quorum_at is None) != (round_.grace_until is None):
            yield f"round {round_.launch} has a quorum or a grace, but not both"
    if merging is not None and merging.fragment in machine.board.rounds:
        yield f"f{merging.fragment} is open for a round while it is being merged"


def _job(machine: Machine) -> Iterator[str]:
    log, job = machine.log, machine.job
    if log.epoch > machine.epoch:
        yield f"the log is at epoch {log.epoch}, this coordinator at {machine.epoch}"
    if job is None or job.record is None:
        return
    if (job.record.seq, job.record.prev_digest) != (log.seq + 1, log.digest):
        yield f"record {job.record.seq} is under way, and does not follow record {log.seq}"


def _record(job: Job | None) -> Iterator[str]:
    if job is None or job.record is None:
        return
    merged = sorted(r.id for r in job.record.receipts if r.fate == "merged")
    if merged != sorted(i.handin.id for i in job.inputs):
        yield f"record {job.record.seq} says {merged} are merged, and others were"


def _members(machine: Machine) -> Iterator[str]:
    membership = machine.membership
    expected = {
        id_
        for id_, member in membership.members.items()
        if member.state == "training" and not member.record.store_down_s
    }
    if expected != membership.expected:
        yield f"rounds wait for {sorted(membership.expected)}, expected are {sorted(expected)}"


def _learner(machine: LearnerMachine) -> Iterator[str]:
    trained = machine.trained
    for fragment, track in enumerate(machine.tracks):
        a, b, c = track.handed_in, track.discarded, track.in_u
        steps, tokens = a.steps + b.steps + c.steps, a.tokens + b.tokens + c.tokens
        if (steps, tokens) != (trained.steps, trained.tokens):
            yield f"f{fragment}: {trained} was trained, accounted for are {a}, {b}, {c}"
        if track.in_u.steps and track.oldest_base > track.version:
            yield f"f{fragment}: holds v{track.version}, and steps on v{track.oldest_base}"
        if (
            track.encoding and track.outstanding is None
        ):  # while it is announced, its receipt may come
            yield f"f{fragment}: a contribution is on its way, but none is outstanding"
        if track.outstanding is not None:
            own = track.outstanding.incarnation == machine.incarnation
            if own and track.outstanding.seq != track.seq:
                yield f"f{fragment}: seq {track.outstanding.seq} is outstanding, {track.seq} the last"
        if machine.aligned and (track.version < 0 or not track.hash):
            yield f"f{fragment}: aligned, but no version was adopted"
