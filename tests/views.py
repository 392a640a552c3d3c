"""A run as Redis shows it, for tests of everything that people look at."""

from __future__ import annotations

from typing import Any

import msgspec

from ddl.config import RoundSettings, Settings, StopSettings
from ddl.core.log import LogState
from ddl.protocol.records import (
    Amount,
    Fact,
    FragmentState,
    FragmentStep,
    Handin,
    Head,
    Health,
    Layout,
    LearnerRecord,
    Lease,
    LedgerRow,
    ObjectRef,
    Receipt,
    Round,
    RunEntry,
    RunRecord,
    TensorSpec,
    Upload,
    Work,
)
from ddl.protocol.wire import canonical, digest
from ddl.registry.base import View
from ddl_cli.demo.books import Books

NOW = 1_764_424_800.0
REF = ObjectRef(key="demo/x", bytes=4, sha256="00" * 32)


def tensor(name: str, size: int, fragment: int) -> TensorSpec:
    return TensorSpec(
        name=name, shape=(size,), dtype="float32", kind="parameter", rule="mean", fragment=fragment
    )


def run_record(**changes: Any) -> RunRecord:
    """Two fragments, with 3/4 and 1/4 of 1,000 parameters."""
    record = RunRecord(
        ddl_version="0.1.0",
        name="demo",
        lineage="abc",
        created_at=NOW - 100,
        settings=Settings(
            round=RoundSettings(quorum=2), stop=StopSettings(tokens=1_000_000, commits=60)
        ),
        layout=Layout(num_fragments=2, tensors=(tensor("a", 750, 0), tensor("b", 250, 1))),
        task_digest="00" * 32,
        fragments=(REF, REF),
    )
    return msgspec.structs.replace(record, **changes)


def books_of(receipts: tuple[Receipt, ...], **changes: Any) -> Books:
    """A log of one step on each fragment, with these receipts; `changes` are to the run's record."""
    run = run_record(**changes)
    state = LogState.genesis(run)
    for fragment in (0, 1):
        step = FragmentStep(fragment=fragment, version_before=0, version_after=1, published=REF)
        record = state.next_record(
            "step",
            epoch=1,
            holder="h",
            written_at=0.0,
            ddl_version="0",
            fragments=[step],
            receipts=[row for row in receipts if row.fragment == fragment],
        )
        state.apply(record, digest(canonical(record)))
    return Books(run, state, receipts)


def learner(name: str, **changes: Any) -> LearnerRecord:
    """A learner that trains: 200 steps of 1,000 tokens, 0.1 s each."""
    record = LearnerRecord(
        id=name,
        incarnation=1,
        lineage="abc",
        host="host-a",
        pid=1234,
        device="cpu",
        state="training",
        started_at=NOW - 60,
        step=200,
        step_s=0.1,
        tokens=200_000,
        loss=2.5,
        lr=1e-3,
        held=(7, 6),
        handed_in=Work(steps=190, tokens=190_000),
        stall_s=0.3,
        busy_s=59.7,
        rss_bytes=412_000_000,
    )
    return msgspec.structs.replace(record, **changes)


def handin(name: str, fragment: int, seq: int, tokens: int) -> Handin:
    return Handin(
        learner=name,
        incarnation=1,
        fragment=fragment,
        seq=seq,
        lineage="abc",
        line=0,
        launch=1,
        oldest_base=6,
        held=(7, 6),
        held_digest="00",
        steps=10,
        tokens=tokens,
        total=Amount(steps=20, tokens=2 * tokens),
        codec="fp32",
        payload=REF,
    )


def receipt(name: str, fragment: int, seq: int, **changes: Any) -> Receipt:
    record = Receipt(
        learner=name,
        incarnation=1,
        fragment=fragment,
        seq=seq,
        fate="merged",
        steps=10,
        tokens=10_000,
    )
    return msgspec.structs.replace(record, **changes)


def fact(age_s: float, name: str, text: str, **fields: Any) -> Fact:
    return Fact(at=NOW - age_s, name=name, text=text, fields=fields)


def merged(age_s: float, version: int, fragment: int, *contributions: str) -> Fact:
    text = f"version {version}: fragment {fragment} from {', '.join(contributions)}"
    return fact(
        age_s,
        "version.published",
        text,
        version=version,
        fragment=fragment,
        loss=round(3.0 - version / 32, 3),
        learners=[contribution.split("/")[0] for contribution in contributions],
        contributions=list(contributions),
        carried=0,
        waits={"quorum_s": 1.2, "grace_s": 0.3, "fetch_s": 0.05, "merge_s": 0.02, "publish_s": 0.1},
    )


def view(**changes: Any) -> View:
    """A run of four learners in the middle: two train, one uploads, one was killed."""
    record = run_record()
    learners = {
        "anna": learner("anna"),
        "bert": learner("bert", step=100, step_s=0.2, tokens=100_000, loss=2.61),
        "cleo": learner("cleo", state="joining", step=0, step_s=None, tokens=0, loss=None),
        "dora": learner("dora", upload=Upload(bytes=1000, done_bytes=250, bytes_per_s=100.0)),
    }
    whole = View(
        now=NOW,
        latency_s=0.0004,
        entry=RunEntry(run=record, store_url="file:///srv/ddl", boot="b", settings=record.settings),
        lease=Lease(
            holder="host-a:77", epoch=3, host="host-a", pid=77, taken_at=NOW - 90, store_s=0.034
        ),
        lease_left_s=8.5,
        standbys=(),
        head=Head(
            seq=20,
            global_version=15,
            line=0,
            epoch=3,
            digest="00",
            progress=400_000.0,
            lineage="abc",
            ledger=(
                LedgerRow(merged=Amount(steps=400, tokens=400_000)),
                LedgerRow(
                    merged=Amount(steps=400, tokens=400_000),
                    refused=Amount(steps=8, tokens=8_000),
                ),
            ),
            health=Health(loss_mean=2.5432),
            committed_at=NOW - 2,
            shares={"anna": 0.5, "bert": 0.25, "dora": 0.25},
        ),
        fragments=tuple(
            FragmentState(fragment=p, version=7, line=0, published=REF) for p in range(2)
        ),
        rounds=(
            Round(
                fragment=1,
                version_before=7,
                launch=3_000_017,
                line=0,
                opened_at=NOW - 1.5,
                deadline_at=NOW + 3.5,
                quorum=2,
                arrived=("anna",),
                awaited=("bert",),
                reason="needs 2 contributions, 1 in",
            ),
        ),
        learners=learners,
        beats={"anna": NOW - 0.2, "bert": NOW - 0.4, "cleo": NOW - 0.1, "dora": NOW - 20.0},
        handins={"anna/1/1": handin("anna", 1, 8, 12_000)},
        receipts={
            "anna/1/0": receipt("anna", 0, 8),
            "anna/1/1": receipt("anna", 1, 7),
            "bert/1/1": receipt("bert", 1, 4, fate="refused", reason="norm"),
        },
        facts=(
            fact(60, "learner.joined", "anna joined from host-a (cpu)", learner="anna"),
            merged(22, 13, 1, "anna/1/f1/7", "dora/1/f1/7"),
            merged(12, 14, 0, "bert/1/f0/4"),
            fact(
                6,
                "contribution.refused",
                "bert/1/f1/4 refused: norm",
                learner="bert",
                contribution="bert/1/f1/4",
            ),
            fact(5, "learner.gone", "dora is gone (was suspect)", learner="dora"),
            merged(2, 15, 0, "anna/1/f0/8"),
        ),
        broken=(),
    )
    return whole._replace(**changes)
