"""The runs of a Redis or of a store, one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from rich.text import Text

from ddl.core.membership import PRESENT
from ddl.core.snapshot import snapshot
from ddl.errors import ConfigError, ProtocolError, RefusedError
from ddl.names import check_run_name
from ddl.protocol.records import Record
from ddl.protocol.wire import SCHEMA
from ddl.registry.reader import RedisReader, read_runs
from ddl.store.base import Store
from ddl_cli.units import short_number
from ddl_cli.view.text import Canvas, Column, Table, optional, sentence

STEP_WITHIN: Final = 8
"""How many records back the newest step, and its loss, are looked for."""


NOT_STARTED: Final = "not started"
"""State of a run in a store whose log has no record yet: at most it waits for its first version."""


class RunRow(Record, frozen=True, kw_only=True):
    """One run. Where `problem` is not empty, only `name` and `store` count.

    `state` is "running", "held", "paused" or "stopped" as the newest record says, "not started" as long
    as there is none, of a fork say; `coordinator` is the present holder, empty if there is none;
    `num_learners` are present. A store knows neither: these two are None.
    """

    name: str
    store: str
    lineage: str = ""
    state: str = ""
    global_version: int = 0
    progress: float = 0.0
    loss: float | None = None
    coordinator: str | None = None
    num_learners: int | None = None
    problem: str = ""


class RunList(Record, frozen=True, kw_only=True):
    """What `ddl runs --json` prints; `where` is the Redis or the store that was asked."""

    schema: int = SCHEMA
    where: str
    runs: tuple[RunRow, ...]


def runs_at_redis(url: str) -> Iterator[RunRow]:
    """Those in the index of a Redis. Raises: AddressError, RegistryError."""
    for name, index in read_runs(url).items():
        registry = RedisReader(url, name)
        try:
            shown = snapshot(registry.view(num_facts=0))
        except ProtocolError as error:  # one run of another version must not hide all others
            yield RunRow(name=name, store=index.store, problem=str(error))
            continue
        finally:
            registry.close()
        if shown is None:
            problem = "Redis has lost it; its store may still hold it"
            yield RunRow(name=name, store=index.store, problem=problem)
            continue
        held = shown.coordinator.lease_left_s is not None
        yield RunRow(
            name=name,
            store=index.store,
            lineage=shown.run.lineage,
            state=shown.run.state,
            global_version=shown.run.global_version,
            progress=shown.run.progress,
            loss=shown.loss,
            coordinator=shown.coordinator.holder if held else "",
            num_learners=sum(learner.state in PRESENT for learner in shown.learners),
        )


def runs_in_store(store: Store) -> Iterator[RunRow]:
    """Those that lie in a store, by name. Raises: StoreError."""
    for name in sorted(store.folders()):
        try:
            row = _in_store(store, check_run_name(name))
        except ConfigError:
            continue  # no run can be called so
        except (ProtocolError, RefusedError) as error:
            yield RunRow(name=name, store=store.url, problem=str(error))
            continue
        if row is not None:
            yield row


def _in_store(store: Store, name: str) -> RunRow | None:
    """A run by its newest records, however long its log is; None if there is no such run."""
    from ddl.coordinator.history import History

    history = History(store, name)
    run = history.run_record()
    if run is None:
        return None
    newest = step = None
    seq = history.newest_seq()
    for back in range(min(seq, STEP_WITHIN)):
        entry = history.read(seq - back)
        assert entry is not None, "records are dense"
        newest = newest or entry.record
        if entry.record.kind == "step":
            step = entry.record
            break
    return RunRow(
        name=run.name,
        store=store.url,
        lineage=run.lineage,
        state=newest.state if newest else NOT_STARTED,
        global_version=newest.global_version if newest else 0,
        progress=newest.progress if newest else 0.0,
        loss=step.health.loss_mean if step else None,
    )


def lines(runs: RunList, canvas: Canvas) -> list[Text]:
    """The list for people, as wide as the canvas; what is wrong with a run stands below."""
    good = [row for row in runs.runs if not row.problem]
    shown = _TABLE.lines(good, canvas, 0.0) if good else []
    for row in runs.runs:
        if row.problem:
            shown += sentence(f"{row.name}: {row.problem}", canvas, style="yellow")
    return shown


def _text(title: str, rank: int, cell: Callable[[RunRow], str]) -> Column[RunRow]:
    return Column(title, rank, lambda row, _: cell(row), right=False)


def _number(title: str, rank: int, cell: Callable[[RunRow], str]) -> Column[RunRow]:
    return Column(title, rank, lambda row, _: cell(row))


_TABLE: Final = Table[RunRow](
    "run",
    lambda row: row.name,
    (
        _text("state", 1, lambda row: row.state),
        _number("version", 2, lambda row: str(row.global_version)),
        _number("tokens", 6, lambda row: short_number(row.progress)),
        _number("loss", 7, lambda row: optional(row.loss, ".3f")),
        _number(
            "learners", 3, lambda row: "?" if row.num_learners is None else f"{row.num_learners}"
        ),
        _text(
            "coordinator",
            5,
            lambda row: "?" if row.coordinator is None else row.coordinator or "none",
        ),
        _text("store", 4, lambda row: row.store),
    ),
)
