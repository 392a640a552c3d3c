"""Records that fit together, for unit tests of the core: a log, hand-ins to it, records on it."""

from __future__ import annotations

from typing import Any

import msgspec

from ddl.config import OuterSettings, Settings
from ddl.core.log import LogState
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    Amount,
    FragmentStep,
    Handin,
    Layout,
    LearnerRecord,
    LogRecord,
    ObjectRef,
    Receipt,
    RunRecord,
    TensorSpec,
    held_digest,
)

KEYS = ObjectKeys("demo")
NUMEL = 300, 100  # the fragments' shares are 3/4 and 1/4


def ref(text: str) -> ObjectRef:
    return ObjectRef(key=f"demo/{text}", bytes=10, sha256=wire.digest(text.encode()))


def run_record(settings: Settings | None = None) -> RunRecord:
    """A run of two fragments with one tensor each; by default its outer step stays as it is."""
    tensors = tuple(
        TensorSpec(
            name=f"w{p}", shape=(n,), dtype="float32", kind="parameter", rule="mean", fragment=p
        )
        for p, n in enumerate(NUMEL)
    )
    return RunRecord(
        ddl_version="0",
        name="demo",
        lineage="lineage",
        created_at=1000.0,
        settings=settings or Settings(outer=OuterSettings(preset="fixed")),
        layout=Layout(num_fragments=2, tensors=tensors),
        task_digest="",
        fragments=(ref("f0v0"), ref("f1v0")),
    )


def genesis(settings: Settings | None = None) -> LogState:
    return LogState.genesis(run_record(settings))


def handin(log: LogState, learner: str = "a", fragment: int = 0, **changes: Any) -> Handin:
    """What a learner that holds the newest versions hands in next: 8 steps, 800 tokens."""
    amount = Amount(steps=changes.pop("steps", 8), tokens=changes.pop("tokens", 800))
    seq = log.account_seq(learner, 1, fragment) + 1
    sha256 = wire.digest(f"{learner}/{fragment}/{seq}".encode())
    record = Handin(
        learner=learner,
        incarnation=1,
        fragment=fragment,
        seq=seq,
        lineage=log.lineage,
        line=log.line,
        launch=1_000_001,
        oldest_base=log.fragments[fragment].version,
        held=tuple(head.version for head in log.fragments),
        held_digest=held_digest({p: h.published.sha256 for p, h in enumerate(log.fragments)}),
        steps=amount.steps,
        tokens=amount.tokens,
        total=log.settled(learner, 1, fragment) + amount,
        codec="fp32/1",
        payload=ObjectRef(
            key=KEYS.contribution(learner, 1, fragment, seq, sha256), bytes=10, sha256=sha256
        ),
    )
    return msgspec.structs.replace(record, **changes)


def receipt(log: LogState, learner: str = "a", fragment: int = 0, **changes: Any) -> Receipt:
    """The next receipt of a learner: 8 steps, 800 tokens, merged."""
    record = Receipt(
        learner=learner,
        incarnation=1,
        fragment=fragment,
        seq=log.account_seq(learner, 1, fragment) + 1,
        fate="merged",
        weight=80_000.0,
        norm=4.0,
        steps=8,
        tokens=800,
    )
    return msgspec.structs.replace(record, **changes)


def step_record(
    log: LogState, fragment: int = 0, receipts: tuple[Receipt, ...] | None = None, **changes: Any
) -> LogRecord:
    """The next step: `fragment` moves on by what `receipts` say was merged."""
    version = log.fragments[fragment].version
    step = FragmentStep(
        fragment=fragment,
        version_before=version,
        version_after=version + 1,
        published=ref(f"f{fragment}v{version + 1}"),
        outer=ref(f"f{fragment}v{version + 1}-outer"),
    )
    record = log.next_record(
        "step",
        epoch=1,
        holder="c1",
        written_at=1001.0 + log.seq,
        ddl_version="0",
        receipts=(receipt(log, fragment=fragment),) if receipts is None else receipts,
        fragments=(step,),
    )
    return msgspec.structs.replace(record, **changes)


def other_record(log: LogState, kind: Any, **fields: Any) -> LogRecord:
    """The next record of a kind that merges nothing."""
    return log.next_record(
        kind, epoch=1, holder="c1", written_at=1001.0 + log.seq, ddl_version="0", **fields
    )


def apply(log: LogState, record: LogRecord) -> None:
    log.apply(record, wire.digest(wire.canonical(record)))


def learner(name: str = "a", **changes: Any) -> LearnerRecord:
    """A learner that trains, one second a step."""
    record = LearnerRecord(
        id=name, incarnation=1, lineage="lineage", state="training", step=10, step_s=1.0
    )
    return msgspec.structs.replace(record, **changes)
