"""Learners that share a data set, as processes: killed, drained, restarted, joined late (T35)."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ddl.core.units import fold, holds, misfit
from ddl.embedded import EmbeddedRedis
from ddl.protocol.records import LogRecord
from ddl.protocol.units import UnitsDone
from ddl.protocol.wire import parse
from ddl.registry.reader import RedisReader
from tests.processes import Fleet, kill

NUM_UNITS = 60
UNIT_SIZE = 96

TASK = f'''
"""Each learner writes down which rows of which ticket it trains on."""
import json, os, threading
import torch
import ddl
from ddl.data import Units

class Rows:
    def __len__(self):
        return {NUM_UNITS * UNIT_SIZE}

    def __getitem__(self, row):
        return torch.tensor(row)

def build(ctx):
    torch.manual_seed(ctx.seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    if ctx.purpose != "train":
        return ddl.Task(model=model)
    units = Units(Rows(), unit_size={UNIT_SIZE}, global_batch=32, seed=ctx.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    book = open(f"rows-{{ctx.learner}}-{{ctx.incarnation}}.jsonl", "w")
    clock = threading.Event()

    def step(batch, progress):
        rows = batch.tolist()
        (ticket,) = (t for t in units.places() if units.unit_of(t)[1] == rows[0] % {NUM_UNITS})
        book.write(json.dumps([ticket, rows]) + "\\n")
        book.flush()
        clock.wait(0.02)
        loss = model(torch.ones(4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return ddl.StepResult(loss=loss, tokens=len(rows))

    return ddl.Task(model=model, optimizer=optimizer, batches=units, step=step)
'''


@pytest.fixture
def fleet(tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Fleet]:
    with Fleet(tmp_path, own_redis.url) as fleet:
        yield fleet


@pytest.mark.slow
@pytest.mark.timeout(300)  # eleven processes start one after the other
def test_rows_are_read_once_an_epoch_whoever_comes_and_goes(fleet: Fleet) -> None:
    """Four learners, each killed or drained once and restarted, and a fifth: two epochs.

    Every unit is finished once an epoch by the log, every row is read, and what is read twice is
    counted there.
    """
    fleet.write_run()
    (fleet.folder / "task.py").write_text(TASK)
    fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    learners = {name: fleet.learner(name) for name in ("ada", "bob", "cyd", "dan")}
    for name in learners:
        fleet.until(lambda name=name: _num_batches(fleet, name, 1) > 5, f"{name} reads")  # type: ignore[misc]
    for name in ("ada", "bob"):
        kill(learners[name])
        learners[name] = fleet.learner(name)
    for name in ("cyd", "dan"):
        learners[name].send_signal(signal.SIGTERM)
        assert learners[name].wait(timeout=30) == 75
        learners[name] = fleet.learner(name)
    fleet.learner("eve")
    for name, incarnation in (("ada", 2), ("bob", 2), ("cyd", 2), ("dan", 2), ("eve", 1)):
        fleet.until(
            lambda name=name, life=incarnation: _num_batches(fleet, name, life) > 5,  # type: ignore[misc]
            f"{name} reads in life {incarnation}",
        )
    fleet.until(lambda: _epochs_finished(fleet) >= 2, "two epochs are in the log", within_s=90)
    assert fleet.ddl("stop", fleet.address).wait(timeout=30) == 0

    sizes = {len(rows) for _, rows in _lines(fleet, "eve", 1)}
    assert round(32 / 5) in sizes, "five learners share a batch of 32 rows"
    read = _check_readings(fleet, epochs=2, kills=2)
    for name in ("cyd", "dan"):
        last, first = _lines(fleet, name, 1)[-1], _lines(fleet, name, 2)[0]
        assert max(read[last[0]].values()) == 1, f"{name} drained in the middle of ticket {last[0]}"
        assert not {*last[1]} & {*first[1]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_reading_goes_on_without_redis(fleet: Fleet, own_redis: EmbeddedRedis) -> None:
    """First what was claimed, then what was not; back in touch, it counts or is counted as repeated."""
    fleet.write_run()
    (fleet.folder / "task.py").write_text(TASK)
    fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    names = ("ada", "bob")
    for name in names:
        fleet.learner(name)
    for name in names:
        fleet.until(lambda name=name: _num_batches(fleet, name, 1) > 5, f"{name} reads")  # type: ignore[misc]
    own_redis.stop()
    standing = {name: _num_batches(fleet, name, 1) for name in names}
    more = 6 * UNIT_SIZE // 8  # more than any learner has claimed
    for name in names:
        fleet.until(
            lambda name=name: _num_batches(fleet, name, 1) > standing[name] + more,  # type: ignore[misc]
            f"{name} reads on",
        )
    own_redis.start()
    fleet.until(lambda: _epochs_finished(fleet) >= 1, "an epoch is in the log", within_s=90)
    assert fleet.ddl("stop", fleet.address).wait(timeout=30) == 0
    _check_readings(fleet, epochs=1)


def _check_readings(fleet: Fleet, *, epochs: int, kills: int = 0) -> dict[int, Counter[int]]:
    """Ticket -> row -> how often it was trained on: at least once, and again only if counted.

    Of a unit that was begun shortly before a kill nobody may have heard.
    """
    logged = _folded(fleet)["train"]
    assert all(holds(logged.finished, ticket) for ticket in range(epochs * NUM_UNITS))
    read = _read(fleet)
    for ticket in range(epochs * NUM_UNITS):
        assert len(read[ticket]) == UNIT_SIZE, f"rows of ticket {ticket} were never read"
    twice = {ticket for ticket, rows in read.items() if max(rows.values()) > 1}
    assert len(twice) <= sum(logged.repeated.values()) + kills, (twice, logged.repeated)
    return read


def _epochs_finished(fleet: Fleet) -> int:
    with closing(RedisReader(fleet.redis_url, fleet.run)) as reader:
        head = reader.view().head
    done = head.units.get("train") if head else None
    if done is None or not done.finished or done.finished[0][0] > 0:
        return 0
    return done.finished[0][1] // NUM_UNITS


def _folded(fleet: Fleet) -> dict[str, UnitsDone]:
    """What the records say, one after the other; none names a ticket again."""
    units: dict[str, UnitsDone] = {}
    for path in sorted((fleet.folder / "store" / fleet.run / "commits").iterdir()):
        record = parse(path.read_bytes(), LogRecord, what=path.name)
        assert misfit(units, record.units) == ""
        units = fold(units, record.units)
    return units


def _lines(fleet: Fleet, name: str, incarnation: int) -> list[tuple[int, list[int]]]:
    path = fleet.folder / f"rows-{name}-{incarnation}.jsonl"
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [tuple(json.loads(line)) for line in whole.splitlines()]


def _num_batches(fleet: Fleet, name: str, incarnation: int) -> int:
    return len(_lines(fleet, name, incarnation))


def _read(fleet: Fleet) -> dict[int, Counter[int]]:
    """Ticket -> row -> how often it was trained on."""
    read: dict[int, Counter[int]] = {}
    for path in fleet.folder.glob("rows-*.jsonl"):
        _, name, incarnation = path.stem.rsplit("-", 2)
        for ticket, rows in _lines(fleet, name, int(incarnation)):
            read.setdefault(ticket, Counter()).update(rows)
    return read
