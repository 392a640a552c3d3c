"""The story of a version, and of the round that made it: each tells what the other does not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddl.core.chain import because
from ddl.names import counted
from ddl.protocol.records import LogRecord, Receipt
from ddl_cli.story import Line, Sources, fate_of, work_of
from ddl_cli.units import fine_time, short_number

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
        yield from _making(made, sources.typed)
    for record in sources.records:
        if record.kind == "rollback" and record.back_to == number:
            text = f"it was taken up again as version {record.global_version}{_because(record)}"
            yield Line(at=record.written_at, text=text)
        elif record.kind == "rollback" and (record.back_to or 0) < number < record.global_version:
            text = f"it was given up: the run went back to version {record.back_to}"
            yield Line(at=record.written_at, text=text + _because(record))


def _made(record: LogRecord) -> bool:
    return record.kind in ("step", "rollback")


def _making(record: LogRecord, run: str) -> Iterator[Line]:
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
        yield Line(at=at, text=f"merged {receipt.id}: {work_of(receipt)}, {share}{late}")
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
        text=f"what its round waited for, and what was not merged: `ddl explain {run} round "
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
        yield from _closing(record, sources.typed)
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


def _closing(record: LogRecord, run: str) -> Iterator[Line]:
    """The end of a round: who was in, where its time went, and what it had not waited for."""
    at = record.written_at
    merged = [receipt for receipt in record.receipts if receipt.fate == "merged"]
    names = _some([f"{r.id} ({_late(r)})" if r.staleness else str(r.id) for r in merged])
    because = f"; {record.why}" if record.why else ""
    yield Line(at=at, text=f"closed with {counted(len(merged), 'contribution')}: {names}{because}")
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
            yield Line(at=at, text=f"in the same record: {fate_of(receipt)}")
    version = record.global_version
    yield Line(
        at=at,
        text=f"it made version {version}; its weights and health: `ddl explain {run} version {version}`",
    )


# ---- words --------------------------------------------------------------------------------------


def _late(receipt: Receipt) -> str:
    return f"{counted(receipt.staleness, 'version')} late"


def _because(record: LogRecord) -> str:
    words = because(record)
    return f"{':' if record.why else ''} {words}" if words else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) or "nobody"
