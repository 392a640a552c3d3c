"""Taking up a run whose log is long: what a restart reads does not grow with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddl.coordinator.history import History
from ddl.core.log import CHECKPOINT_EVERY, LogState
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import FragmentStep, LogRecord, ObjectRef, Receipt
from ddl.store.base import Progress
from ddl.store.local import LocalStore
from tests.coordinating import RUN, ScriptedLearner, options, running, write_run
from tests.redis_servers import admin
from tests.stores import HookedStore

KEYS = ObjectKeys(RUN)
RECORDS = 100_000
LEARNERS = 8
RESTART_EVERY = 1000


class Counting(HookedStore):
    """Counts the objects that are read or looked up."""

    reads = 0

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        self.reads += 1
        return super().get(key, progress=progress)


def grow(log: LogState, num: int) -> Iterator[LogRecord]:
    """The next `num` steps: each merges one contribution of every learner, and publishes what was
    published before. Learners come back under new incarnations now and then."""
    refs: list[ObjectRef] = [head.published for head in log.fragments]
    for _ in range(num):
        fragment = log.global_version % len(refs)
        incarnation = 1 + log.seq // RESTART_EVERY
        version = log.fragments[fragment].version
        receipts = [
            Receipt(
                learner=f"learner-{number}",
                incarnation=incarnation,
                fragment=fragment,
                seq=log.account_seq(f"learner-{number}", incarnation, fragment) + 1,
                fate="merged",
                weight=1.0,
                norm=1.0,
                steps=4,
                tokens=40,
            )
            for number in range(LEARNERS)
        ]
        step = FragmentStep(
            fragment=fragment,
            version_before=version,
            version_after=version + 1,
            published=refs[fragment],
        )
        yield log.next_record(
            "step",
            epoch=1,
            holder="before",
            written_at=log.committed_at + 1.0,
            ddl_version="0",
            receipts=receipts,
            fragments=(step,),
        )


def write_log(folder: Path, log: LogState, num: int) -> None:
    """Extend the log in a directory store: plainly, for create-once puts would take minutes."""
    checkpoints = folder / KEYS.checkpoints
    checkpoints.mkdir(exist_ok=True)
    (folder / KEYS.commits).mkdir(exist_ok=True)
    for record in grow(log, num):
        data = wire.canonical(record)
        (folder / KEYS.commit(record.seq)).write_bytes(data)
        log.apply(record, wire.digest(data))
        if record.seq % CHECKPOINT_EVERY == 0:
            (folder / KEYS.checkpoint(record.seq)).write_bytes(wire.canonical(log))


class Gathering(HookedStore):
    """Answers no read of a record before four are asked for at once."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self._all = threading.Barrier(4)

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        if key.startswith(KEYS.commits) and self.head(key) is not None:
            self._all.wait(30)
        return super().get(key, progress=progress)


def test_records_are_read_several_at_a_time(tmp_path: Path, redis_url: str) -> None:
    """Those since the checkpoint, on the way to the newest version and to an older one: a store far
    away takes a tenth of a second for each. The states are those of reading one after the other."""
    toml = write_run(tmp_path, redis_url=redis_url)
    store = LocalStore(tmp_path / "store")
    with running(options(toml)):
        pass
    history = History(store, RUN)
    run = history.existing_run()
    log = history.fold(run)
    write_log(tmp_path / "store", log, 40)
    older = wire.canonical(log)
    write_log(tmp_path / "store", log, 40)
    assert wire.canonical(history.fold_to(run, 40)) == older
    assert wire.canonical(history.fold(run)) == wire.canonical(log)
    assert wire.canonical(History(Gathering(store), RUN).fold(run)) == wire.canonical(log)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_log_of_100_000_records_resumes_in_ten_seconds(tmp_path: Path, redis_url: str) -> None:
    """With Redis empty: the newest record is found without a listing, the newest checkpoint and the
    records after it are read, Redis is rebuilt, and the next contribution is merged."""
    toml = write_run(tmp_path, redis_url=redis_url, keep={"versions": RECORDS})
    store = LocalStore(tmp_path / "store")
    with running(options(toml)):
        pass
    history = History(store, RUN)
    log = history.fold(history.existing_run())
    write_log(tmp_path / "store", log, RECORDS - log.seq)
    with admin(redis_url) as client:
        client.flushall()

    counting = Counting(store)
    started = time.monotonic()
    with running(options(toml), counting):
        took_s = time.monotonic() - started
        reads = counting.reads
        learner = ScriptedLearner(redis_url, store)
        learner.contribute(1)
        learner.close()
    print(f"{RECORDS} records: serves after {took_s:.2f} s and {reads} reads")
    assert took_s < 10.0
    assert reads < 2 * CHECKPOINT_EVERY
    again = history.fold(history.existing_run())
    assert (again.seq, again.global_version) == (RECORDS + 1, RECORDS + 1)
    assert again.epoch == 2
