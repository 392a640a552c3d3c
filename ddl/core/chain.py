"""Whether a record follows a folded log: every number in it must be the one that is next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddl import config
from ddl.core import units
from ddl.errors import ConfigError, IntegrityError
from ddl.protocol.keys import handin_field
from ddl.protocol.records import LogRecord, RecordKind, RunState

if TYPE_CHECKING:
    from ddl.config import Settings
    from ddl.core.log import LogState


def check_follows(record: LogRecord, log: LogState) -> Settings:
    """Refuse a record that does not follow `log`; return the settings in force after one that does.

    Raises: IntegrityError; it names the difference.
    """
    moves = record.kind in ("step", "rollback")
    _equal(record, "lineage", record.lineage, log.lineage)
    _equal(record, "seq", record.seq, log.seq + 1)
    _equal(record, "prev_digest", record.prev_digest, log.digest)
    _equal(record, "global_version", record.global_version, log.global_version + moves)
    _equal(record, "line", record.line, log.line + (record.kind == "rollback"))
    if record.epoch < log.epoch:
        raise _misfit(record, "epoch", record.epoch, f"{log.epoch} or more")
    if record.kind == "step" and log.state != "running":
        raise _misfit(record, "kind", record.kind, f"anything but a step: the run is {log.state}")
    if record.kind != "settings":
        _equal(record, "state", record.state, state_after(record.kind, log.state))
    _check_moves(record, log)
    _check_receipts(record, log)
    ledger, progress = log.totals_with(record.receipts)
    _equal(record, "ledger", list(record.ledger), ledger)
    if record.kind == "rollback":
        if record.back_to is None or not 0 <= record.back_to <= log.global_version:
            raise _misfit(record, "back_to", record.back_to, f"from 0 to {log.global_version}")
    else:
        _equal(record, "progress", record.progress, progress)
    if misfit := units.misfit(log.units, record.units):
        raise _misfit(record, "units", misfit, "units that are finished for the first time")
    if record.kind != "settings" or not record.changes:
        return log.settings
    try:
        return config.amend(log.settings, record.changes)
    except ConfigError as error:
        raise _misfit(record, "changes", str(error), "settings that can be used") from error


def state_after(kind: RecordKind, state: RunState) -> RunState:
    """The run's state after a record of this kind; a `settings` record may set another one."""
    if kind == "stop":
        return "stopped"
    if kind == "rollback" and state == "held":  # what it was held for is undone
        return "running"
    return state


def because(record: LogRecord) -> str:
    """Why a record was written, and by whom, for people; empty if it does not say."""
    if record.who and record.why:
        return f"{record.why} ({record.who})"
    return f"by {record.who}" if record.who else record.why


def _check_moves(record: LogRecord, log: LogState) -> None:
    """A step moves some fragments by one version each, a rollback all, anything else none."""
    moved = [step.fragment for step in record.fragments]
    known = range(len(log.fragments))
    expected: list[int] = []
    if record.kind == "rollback":
        expected = list(known)
    elif record.kind == "step":
        expected = sorted(set(moved) & set(known)) or list(known)
    _equal(record, "list of fragments", moved, expected)
    for step in record.fragments:
        before = log.fragments[step.fragment].version
        _equal(record, f"version_before of f{step.fragment}", step.version_before, before)
        _equal(record, f"version_after of f{step.fragment}", step.version_after, before + 1)


def _check_receipts(record: LogRecord, log: LogState) -> None:
    """Each is the next one of its account; what is merged went into a fragment that moved."""
    moved = {step.fragment for step in record.fragments} if record.kind == "step" else set()
    known = range(len(log.fragments))
    seqs: dict[str, int] = {}
    for r in record.receipts:
        if r.fragment not in known:
            raise _misfit(record, f"fragment of {r.id}", r.fragment, f"below {len(known)}")
        field = handin_field(r.learner, r.incarnation, r.fragment)
        account = log.accounts.get(field)
        last = seqs.get(field) or (account.last.seq if account is not None else 0)
        if r.seq != last + 1:
            raise _misfit(record, f"receipt seq of {field}", r.seq, last + 1)
        seqs[field] = r.seq
        if r.fate == "merged" and r.fragment not in moved:
            raise _misfit(record, f"fragment of merged {r.id}", r.fragment, f"among {moved}")


def _equal(record: LogRecord, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise _misfit(record, what, found, expected)


def _misfit(record: LogRecord, what: str, found: object, expected: object) -> IntegrityError:
    return IntegrityError(
        f"log record {record.seq} does not follow the log: its {what} is {found}, "
        f"expected {expected}",
        hint="Run `ddl verify` on this run",
    )
