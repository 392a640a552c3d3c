"""Records of a small run, for the contract tests of the registry."""

from __future__ import annotations

from typing import Any

from ddl.config import Settings
from ddl.protocol.records import (
    Amount,
    FragmentState,
    Handin,
    Head,
    Layout,
    LearnerRecord,
    Lease,
    ObjectRef,
    Receipt,
    Round,
    RunEntry,
    RunRecord,
    TensorSpec,
)

RUN = "demo"
LINEAGE = "lineage-1"
NUM_FRAGMENTS = 2


def ref(name: str) -> ObjectRef:
    return ObjectRef(key=f"{RUN}/{name}", bytes=8, sha256="0" * 64)


def entry(
    *, boot: str = "boot-1", lineage: str = LINEAGE, settings: Settings | None = None
) -> RunEntry:
    weight = TensorSpec(
        name="w", shape=(2,), dtype="float32", kind="parameter", rule="rda", fragment=0
    )
    run = RunRecord(
        ddl_version="0",
        name=RUN,
        lineage=lineage,
        created_at=1.5,
        settings=settings or Settings(),
        layout=Layout(num_fragments=NUM_FRAGMENTS, tensors=(weight,)),
        task_digest="task",
        fragments=tuple(ref(f"f{p}") for p in range(NUM_FRAGMENTS)),
    )
    return RunEntry(run=run, store_url="file:///store", boot=boot, settings=settings or Settings())


def head(seq: int = 0, *, epoch: int = 1, lineage: str = LINEAGE) -> Head:
    return Head(
        seq=seq,
        global_version=seq,
        line=0,
        epoch=epoch,
        digest=f"digest-{seq}",
        progress=0.1,
        lineage=lineage,
    )


def state(fragment: int, version: int = 0) -> FragmentState:
    return FragmentState(
        fragment=fragment, version=version, line=0, published=ref(f"f{fragment}-v{version}")
    )


def states(version: int = 0) -> list[FragmentState]:
    return [state(p, version) for p in range(NUM_FRAGMENTS)]


def learner(name: str = "ada", incarnation: int = 1, **fields: Any) -> LearnerRecord:
    usual: dict[str, Any] = {"lineage": LINEAGE, "host": "box", "pid": 7}
    return LearnerRecord(id=name, incarnation=incarnation, **(usual | fields))


def handin(
    name: str = "ada",
    incarnation: int = 1,
    fragment: int = 0,
    seq: int = 1,
    *,
    lineage: str = LINEAGE,
) -> Handin:
    return Handin(
        learner=name,
        incarnation=incarnation,
        fragment=fragment,
        seq=seq,
        lineage=lineage,
        line=0,
        launch=seq,
        oldest_base=0,
        held=(0, 0),
        held_digest="held",
        steps=3,
        tokens=30,
        total=Amount(steps=3 * seq, tokens=30 * seq),
        codec="fp32",
        payload=ref(f"{name}-{incarnation}-{fragment}-{seq}"),
        loss=0.1,
    )


def receipt(of: Handin) -> Receipt:
    return Receipt(
        learner=of.learner,
        incarnation=of.incarnation,
        fragment=of.fragment,
        seq=of.seq,
        fate="merged",
        weight=0.1,
        steps=of.steps,
        tokens=of.tokens,
    )


def open_round(fragment: int = 0) -> Round:
    return Round(
        fragment=fragment,
        version_before=0,
        launch=1,
        line=0,
        opened_at=1.5,
        deadline_at=6.5,
    )


def lease(holder: str = "first", *, epoch: int = 0, pid: int = 1) -> Lease:
    return Lease(holder=holder, epoch=epoch, host="box", pid=pid)
