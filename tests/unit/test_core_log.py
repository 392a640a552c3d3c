"""The folded log: what records imply, and that a record which does not fit changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddl.core.log import HISTORY, LATELY_CYCLES, LogState
from ddl.errors import IntegrityError
from ddl.limits import STALENESS_LIMIT
from ddl.protocol import wire
from ddl.protocol.records import Amount, FragmentStep, Health, LedgerRow, LogRecord
from tests.core_records import (
    apply,
    genesis,
    other_record,
    receipt,
    ref,
    run_record,
    step_record,
)


def snapshot(log: LogState) -> bytes:
    return wire.canonical(log)


def grown() -> LogState:
    """Two steps of fragment 0 and one of 1, by a and b."""
    log = genesis()
    apply(log, step_record(log, 0, (receipt(log, "a"), receipt(log, "b"))))
    apply(log, step_record(log, 1, (receipt(log, "a", 1), receipt(log, "b", 1, fate="refused"))))
    apply(log, step_record(log, 0, (receipt(log, "a"),)))
    return log


def test_record_zero_is_version_zero_of_everything() -> None:
    """Genesis: nothing settled, no progress, the chain begins at run.json."""
    run = run_record()
    log = LogState.genesis(run)
    assert log.digest == wire.digest(wire.canonical(run))
    assert (log.seq, log.global_version, log.line, log.progress) == (0, 0, 0, 0.0)
    assert log.shares == [0.75, 0.25]
    assert [head.hash_of(0) for head in log.fragments] == [r.sha256 for r in run.fragments]


def test_steps_add_up() -> None:
    """Versions, ledger and progress by hand: 3/4 * (800 + 800 + 800) + 1/4 * 800 = 2000 tokens."""
    log = grown()
    assert (log.seq, log.global_version) == (3, 3)
    assert [head.version for head in log.fragments] == [2, 1]
    assert log.ledger[0] == LedgerRow(merged=Amount(steps=24, tokens=2400))
    assert log.ledger[1] == LedgerRow(
        merged=Amount(steps=8, tokens=800), refused=Amount(steps=8, tokens=800)
    )
    assert log.progress == 2000.0
    assert log.account_seq("a", 1, 0) == 2
    assert log.settled("a", 1, 0) == Amount(steps=16, tokens=1600)
    assert log.account_seq("a", 2, 0) == 0
    assert log.learner_shares() == {"a": 0.75, "b": 0.25}  # what was refused does not count
    assert log.last_fragment == 0
    assert log.fragments[0].published == ref("f0v2")


def test_the_record_that_follows_says_what_will_be() -> None:
    """`next_record` carries ledger, progress and versions as they are after it is applied."""
    log = grown()
    record = step_record(log, 1, (receipt(log, "b", 1),))
    apply(log, record)
    assert list(record.ledger) == log.ledger
    assert record.progress == log.progress == 2200.0
    assert record.global_version == log.global_version == 4
    head = log.head()
    assert (head.seq, head.digest) == (4, wire.digest(wire.canonical(record)))


def test_the_gate_s_history_is_one_number_a_merge() -> None:
    """The medians per step and per root of steps: many learners do not crowd out the past."""
    log = genesis()
    norms = (4.0, 8.0, 40.0)
    receipts = tuple(receipt(log, name, norm=n) for name, n in zip("abc", norms, strict=True))
    apply(log, step_record(log, 0, receipts))
    assert log.fragments[0].norms == [1.0]  # median of 4/8, 8/8, 40/8
    assert log.fragments[0].root_norms == [pytest.approx(8.0**0.5)]  # of those by root of 8
    apply(log, step_record(log, 0, (receipt(log, norm=None),)))
    assert log.fragments[0].norms == [1.0]
    assert log.fragments[0].merges == 2


def test_memory_is_bounded() -> None:
    """Hashes and norms of the last versions only, and learners' shares of the last merges."""
    log = genesis()
    for _ in range(HISTORY + 5):
        apply(log, step_record(log, 0))
    head = log.fragments[0]
    assert len(head.hashes) == len(head.norms) == HISTORY
    assert head.hash_of(head.version - STALENESS_LIMIT - 1) == ref("f0v6").sha256
    assert head.hash_of(head.version - HISTORY) is None
    assert head.hash_of(head.version + 1) is None
    assert len(log.merged_lately) == LATELY_CYCLES * len(log.fragments)
    assert log.lately == {"a": 800 * len(log.merged_lately)}


def test_a_state_survives_its_own_bytes() -> None:
    """A checkpoint is the state itself: read back, it goes on in the same way."""
    log = grown()
    again = wire.parse(snapshot(log), LogState, what="checkpoint")
    record = step_record(log, 1, (receipt(log, "b", 1),))
    for state in (log, again):
        apply(state, record)
    assert snapshot(again) == snapshot(log)


def test_settings_and_stop() -> None:
    """A change is in force from its record on; a stop ends the run until settings resume it."""
    log = grown()
    apply(log, other_record(log, "settings", changes={"round.quorum": 2}, who="ann"))
    assert log.settings.round.quorum == 2
    apply(log, other_record(log, "stop", who="ann", why="enough"))
    assert log.head().state == "stopped"
    with pytest.raises(IntegrityError, match="anything but a step: the run is stopped"):
        apply(log, step_record(log, 0))
    apply(log, other_record(log, "settings", state="running", why="resumed"))
    assert log.head().state == "running"
    apply(log, step_record(log, 0))


def test_receipts_alone_move_no_version() -> None:
    """A record of receipts settles accounts and leaves the model as it is."""
    log = grown()
    lost = receipt(log, "b", 1, fate="lost", reason="no such object")
    apply(log, other_record(log, "receipts", receipts=[lost]))
    assert log.global_version == 3
    assert log.settled("b", 1, 1) == Amount(steps=16, tokens=1600)
    assert log.ledger[1].lost == Amount(steps=8, tokens=800)


def test_a_rollback_starts_a_new_line() -> None:
    """All fragments move, the line rises, and what was learned of hashes on the old line is gone."""
    log = grown()
    apply(log, other_record(log, "rollback", fragments=_all_again(log), progress=0.0, back_to=0))
    assert (log.line, log.global_version, log.progress) == (1, 4, 0.0)
    assert [len(head.hashes) for head in log.fragments] == [1, 1]
    assert [head.line for head in log.fragments] == [1, 1]


def _all_again(log: LogState) -> tuple[FragmentStep, ...]:
    """Every fragment moves to what it was at version 0."""
    return tuple(
        FragmentStep(
            fragment=p,
            version_before=head.version,
            version_after=head.version + 1,
            published=ref(f"f{p}v0"),
        )
        for p, head in enumerate(log.fragments)
    )


def broken(log: LogState) -> dict[str, tuple[LogRecord, str]]:
    """Records that do not follow `log`, by what is wrong, with what the error says of it."""
    good = step_record(log, 0, (receipt(log, "a"),))
    (step,) = good.fragments

    def but(**changes: Any) -> LogRecord:
        return msgspec.structs.replace(good, **changes)

    def moved(**changes: Any) -> LogRecord:
        return but(fragments=(msgspec.structs.replace(step, **changes),))

    def with_receipts(*receipts: Any) -> LogRecord:
        return but(receipts=receipts)

    first = receipt(log, "a")
    return {
        "lineage": (but(lineage="other"), "lineage is other, expected lineage"),
        "seq skipped": (but(seq=5), "seq is 5, expected 4"),
        "seq again": (but(seq=3), "seq is 3, expected 4"),
        "chain": (but(prev_digest="00"), "prev_digest is 00"),
        "global version": (but(global_version=9), "global_version is 9, expected 4"),
        "line": (but(line=1), "line is 1, expected 0"),
        "epoch": (but(epoch=0), "epoch is 0, expected 1 or more"),
        "version before": (moved(version_before=1), "version_before of f0 is 1, expected 2"),
        "version after": (moved(version_after=4), "version_after of f0 is 4, expected 3"),
        "unknown fragment": (moved(fragment=7), r"list of fragments is \[7\]"),
        "no fragment": (but(fragments=()), r"list of fragments is \[\]"),
        "fragment twice": (but(fragments=(step, step)), r"list of fragments is \[0, 0\]"),
        "receipt skipped": (
            with_receipts(msgspec.structs.replace(first, seq=4)),
            "receipt seq of a/1/0 is 4, expected 3",
        ),
        "receipt again": (
            with_receipts(msgspec.structs.replace(first, seq=2)),
            "receipt seq of a/1/0 is 2, expected 3",
        ),
        "receipt twice": (with_receipts(first, first), "receipt seq of a/1/0 is 3, expected 4"),
        "receipt of no fragment": (
            with_receipts(msgspec.structs.replace(first, fragment=9)),
            "fragment of a/1/f9/3 is 9, expected below 2",
        ),
        "merged elsewhere": (
            with_receipts(receipt(log, "a", 1)),
            "fragment of merged a/1/f1/2 is 1",
        ),
        "ledger": (but(ledger=()), "ledger is"),
        "progress": (but(progress=9.5), "progress is 9.5, expected 2600.0"),
        "merged without a step": (
            other_record(log, "receipts", receipts=[first]),
            "fragment of merged a/1/f0/3 is 0",
        ),
        "a stop that moves": (
            but(kind="stop", state="stopped", global_version=3),
            r"list of fragments is \[0\]",
        ),
        "half a rollback": (
            but(kind="rollback", line=1, receipts=()),
            r"list of fragments is \[0\], expected \[0, 1\]",
        ),
        "a rollback to nowhere": (
            other_record(log, "rollback", back_to=4, fragments=_all_again(log)),
            "back_to is 4, expected from 0 to 3",
        ),
        "another state": (but(state="held"), "state is held, expected running"),
        "fixed settings": (
            other_record(log, "settings", changes={"merge.method": "mean"}),
            "merge.method is fixed at genesis",
        ),
        "impossible settings": (
            other_record(
                log,
                "settings",
                changes={"round.quorum": 0},
                receipts=[msgspec.structs.replace(first, fate="lost")],
            ),
            "round.quorum = 0: must be at least 1",
        ),
    }


@pytest.mark.parametrize("name", sorted(broken(grown())))
def test_a_record_that_does_not_follow_is_refused_and_nothing_changes(name: str) -> None:
    """The difference is named; the state is byte for byte as before, and the right record fits."""
    log = grown()
    before = snapshot(log)
    record, what = broken(log)[name]
    with pytest.raises(IntegrityError, match=what):
        log.apply(record, "ff" * 32)
    assert snapshot(log) == before
    apply(log, step_record(log, 0))


def test_health_is_that_of_the_newest_step() -> None:
    """Records that merge nothing leave the signs of the last step standing."""
    log = genesis()
    apply(log, step_record(log, 0, health=Health(cos_peers=0.5)))
    apply(log, other_record(log, "settings", state="running", why="resumed"))
    assert log.head().health.cos_peers == 0.5
