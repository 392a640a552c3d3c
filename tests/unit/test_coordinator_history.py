"""The log in the store: found by exact keys, folded, extended once."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from ddl.config import Settings
from ddl.coordinator.history import History
from ddl.core.log import CHECKPOINT_EVERY, LogState
from ddl.errors import ConfigError, IntegrityError
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    FragmentStep,
    Layout,
    LogRecord,
    ObjectRef,
    RunRecord,
    TensorSpec,
)
from ddl.store.local import LocalStore

KEYS = ObjectKeys("tiny")


def ref(name: str) -> ObjectRef:
    return ObjectRef(key=name, bytes=1, sha256=wire.digest(name.encode()))


RECORD_0 = RunRecord(
    ddl_version="0",
    name="tiny",
    lineage="l" * 32,
    created_at=0.0,
    settings=Settings(),
    layout=Layout(
        num_fragments=1,
        tensors=(
            TensorSpec(
                name="w", shape=(2,), dtype="float32", kind="parameter", rule="mean", fragment=0
            ),
        ),
    ),
    task_digest="t",
    fragments=(ref("v0"),),
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store")
    store.put(KEYS.run_record, wire.canonical(RECORD_0), mode="create")
    return store


@pytest.fixture
def history(store: LocalStore) -> History:
    return History(store, "tiny")


def next_record(state: LogState, *, step: bool = True, holder: str = "me") -> LogRecord:
    """A record without receipts: a step, or one that moves nothing."""
    version = state.fragments[0].version
    moved = FragmentStep(
        fragment=0,
        version_before=version,
        version_after=version + 1,
        published=ref(f"v{version + 1}"),
        outer=ref(f"o{version + 1}"),
    )
    return state.next_record(
        "step" if step else "receipts",
        epoch=1,
        holder=holder,
        written_at=float(state.seq),
        ddl_version="0",
        fragments=(moved,) if step else (),
    )


def grow(history: History, num: int) -> list[LogState]:
    """Write `num` steps, with a checkpoint where one is due; the state before each and at the end."""
    state = LogState.genesis(RECORD_0)
    states = [state]
    for _ in range(num):
        state = msgspec.json.decode(wire.canonical(state), type=LogState)
        entry = history.write(next_record(state))
        state.apply(entry.record, entry.digest)
        if state.seq % CHECKPOINT_EVERY == 0:
            history.write_checkpoint(state.seq, wire.canonical(state))
        states.append(state)
    return states


def test_a_run_that_is_not_there_is_none(tmp_path: Path) -> None:
    """A question, not an error."""
    assert History(LocalStore(tmp_path / "other"), "tiny").run_record() is None


def test_record_0_is_read_back(history: History) -> None:
    """Byte for byte: its digest is the first of the chain."""
    run = history.run_record()
    assert run is not None
    assert LogState.genesis(run).digest == LogState.genesis(RECORD_0).digest


@pytest.mark.parametrize("num", [0, 1, 2, 3, 7, 8, 9])
def test_fold_finds_the_newest_record(history: History, num: int) -> None:
    """However many there are, without a listing."""
    states = grow(history, num)
    assert history.newest_seq() == num
    assert history.fold(RECORD_0) == states[-1]


def test_one_reader_needs_no_thread(
    history: History, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many records are read by several threads at once, unless whoever reads is the only one."""
    newest = grow(history, 20)[-1]
    threads: list[threading.Thread] = []
    get = store.get

    def noting(key: str) -> bytearray:
        threads.append(threading.current_thread())
        return get(key)

    monkeypatch.setattr(store, "get", noting)
    assert history.fold(RECORD_0) == newest
    assert any(thread is not threading.main_thread() for thread in threads)
    threads.clear()
    assert History(store, "tiny", readers=1).fold(RECORD_0) == newest
    assert set(threads) == {threading.main_thread()}


def test_fold_starts_from_a_checkpoint(history: History, store: LocalStore) -> None:
    """The records before it are not read again, and the state is the same."""
    states = grow(history, CHECKPOINT_EVERY + 2)
    store.put(KEYS.commit(5), b"not read")
    assert history.fold(RECORD_0) == states[-1]
    store.delete([KEYS.checkpoint(CHECKPOINT_EVERY)])
    with pytest.raises(Exception, match="cannot be read"):
        history.fold(RECORD_0)


@pytest.mark.parametrize("damage", ["cut", "other ledger", "other digest"])
def test_a_checkpoint_that_disagrees_is_left_aside(
    history: History, store: LocalStore, damage: str
) -> None:
    """It is derived: the records say the same."""
    states = grow(history, CHECKPOINT_EVERY)
    key = KEYS.checkpoint(CHECKPOINT_EVERY)
    data = wire.canonical(states[-1])
    if damage == "other ledger":
        data = wire.canonical(msgspec.structs.replace(states[-1], ledger=[]))
    elif damage == "other digest":
        data = wire.canonical(msgspec.structs.replace(states[-1], digest="0" * 64))
    store.put(key, data[:-9] if damage == "cut" else data)
    assert history.fold(RECORD_0) == states[-1]


def test_a_changed_record_breaks_the_chain(history: History, store: LocalStore) -> None:
    """One other byte in the middle, and the fold refuses what follows it."""
    grow(history, 3)
    entry = history.read(2)
    assert entry is not None
    forged = msgspec.structs.replace(entry.record, written_at=7.5)
    store.put(KEYS.commit(2), wire.canonical(forged))
    with pytest.raises(IntegrityError, match="record 3"):
        history.fold(RECORD_0)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_fold_to_a_version(history: History, version: int) -> None:
    """The state at the record that made it, not at a later one of the same version."""
    states = grow(history, 3)
    state = msgspec.json.decode(wire.canonical(states[-1]), type=LogState)
    for step in (False, True):
        entry = history.write(next_record(state, step=step))
        state.apply(entry.record, entry.digest)
    folded = history.fold_to(RECORD_0, version)
    assert folded == states[version]
    assert folded.seq == version


def test_fold_to_a_version_that_is_not_there(history: History) -> None:
    """The error says which there are."""
    grow(history, 2)
    with pytest.raises(ConfigError, match=r"no version 3.* 0 to 2"):
        history.fold_to(RECORD_0, 3)


def test_writing_the_same_record_again_is_a_success(history: History) -> None:
    """So an answer that was lost is found by asking again."""
    record = next_record(LogState.genesis(RECORD_0))
    assert history.write(record) == history.write(record)
    assert history.newest_seq() == 1


@pytest.mark.promise(2)
def test_a_seq_that_is_taken_shows_what_took_it(history: History) -> None:
    """And nothing is overwritten."""
    state = LogState.genesis(RECORD_0)
    theirs = history.write(next_record(state, holder="them"))
    assert history.write(next_record(state, holder="me")) == theirs
    assert theirs.record.holder == "them"


def test_the_chain_begins_at_the_stored_bytes_of_run_json(tmp_path: Path) -> None:
    """A later ddl may know more fields: what it would write itself is not what the log goes by."""
    store = LocalStore(tmp_path)
    data = wire.canonical(RECORD_0)[:-1] + b',"from_an_older_ddl":1}'
    store.put(ObjectKeys(RECORD_0.name).run_record, data)
    history = History(store, RECORD_0.name)
    run = history.run_record()
    assert run is not None
    assert history.genesis(run).digest == wire.digest(data) != wire.digest(wire.canonical(run))
