"""What `ddl` promises its users (design 7), each promise by a test of its own.

`just promises` runs these and all others that are marked with the number of a promise.
"""

from __future__ import annotations

import ast
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch

import ddl
import ddl_cli
from ddl.codec.digest import sha256
from ddl.coordinator.history import History
from ddl.coordinator.verify import verify_run
from ddl.core.log import LogState
from ddl.embedded import EmbeddedRedis
from ddl.learner.learner import Learner
from ddl.learner.session import JoinOptions, open_session
from ddl.protocol.records import Handin, Round
from ddl.store.local import LocalStore
from tests.coordinating import (
    EVERY_CODEC,
    RUN,
    Running,
    ScriptedLearner,
    options,
    running,
    write_run,
)
from tests.stores import HookedStore

STEPS = 200

WAITED_S = 0.5
"""What a step would take at least that waited for anything that is gone."""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def toml(tmp_path: Path, redis_url: str) -> Path:
    return write_run(tmp_path, redis_url=redis_url)


def folded(store: LocalStore) -> LogState:
    history = History(store, RUN)
    return history.fold(history.existing_run())


def weights(log: LogState) -> list[tuple[int, str, str]]:
    """Version and digests of every fragment."""
    return [
        (head.version, head.published.sha256, head.outer.sha256 if head.outer else "")
        for head in log.fragments
    ]


# ---- 1. The training thread never waits ---------------------------------------------------------


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still for the length of the block: its connections are open, and silent."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.promise(1)
def test_the_training_thread_never_waits(tmp_path: Path, own_redis: EmbeddedRedis) -> None:
    """With the coordinator gone, Redis silent and the store stuck in the middle of a transfer, two
    hundred steps take no longer than they take: whatever waits, the loop does not."""
    toml = write_run(tmp_path, redis_url=own_redis.url)
    stuck, go_on = threading.Event(), threading.Event()

    def stick(key: str) -> None:
        if "/contributions/" in key:
            stuck.set()
            go_on.wait(60.0)

    coordinator = Running(options(toml)).ready()
    model = tiny_model(toml.parent)
    session = open_session(
        JoinOptions(address=f"{own_redis.url}?run={RUN}", learner="a", spool=tmp_path / "spool")
    )
    session.store = HookedStore(session.store, before=stick)
    slowest_s = 0.0
    with Learner(session) as learner:
        learner.attach(model)
        while not stuck.is_set():  # until a contribution is on its way
            step(model, learner)
        coordinator.end()
        with stopped(own_redis.pid):
            for _ in range(STEPS):
                slowest_s = max(slowest_s, step(model, learner))
                if slowest_s >= WAITED_S:
                    break
        go_on.set()
    print(f"slowest step: {slowest_s * 1000:.1f} ms")
    assert slowest_s < WAITED_S


def tiny_model(folder: Path) -> torch.nn.Module:
    """The model of the test's task."""
    names: dict[str, type[torch.nn.Module]] = {}
    exec((folder / "task.py").read_text(), names)
    return names["Tiny"](4)


def step(model: torch.nn.Module, learner: Learner) -> float:
    """One step of training; the seconds that it spent in ddl."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.sub_(0.001)
    time.sleep(0.002)
    begun = time.monotonic()
    learner.step(tokens=10, loss=1.0)
    return time.monotonic() - begun


# ---- 4. Who is not aligned cannot change the model ----------------------------------------------


class Misled(ScriptedLearner):
    """Holds other bytes than those that were published, and does not know it."""

    def adopt(self) -> None:
        super().adopt()
        self._hashes[0] = sha256(b"the weights of another run")


@pytest.mark.promise(4)
@EVERY_CODEC
def test_a_learner_that_holds_other_weights_cannot_change_the_model(
    codec: Mapping[str, str], tmp_path: Path, store: LocalStore, redis_url: str
) -> None:
    """Its contribution is whole, finite and of the right shape, and is refused; the model stays as it
    is, and after the next good one it is what it would have been without."""
    toml = write_run(tmp_path, redis_url=redis_url, codec=codec)
    with running(options(toml)):
        misled = Misled(redis_url, store, "misled")
        handin = misled.hand_in(misled.open_round())
        assert misled.receipt(handin) == "refused"
        assert misled.reasons[handin.id].startswith("not aligned")
        misled.leave()
        assert weights(folded(store)) == weights(
            LogState.genesis(History(store, RUN).existing_run())
        )
        good = ScriptedLearner(redis_url, store, "good")
        good.contribute(2)
    for learner in (misled, good):
        learner.close()
    log = folded(store)
    assert log.global_version == 2
    assert sum(row.refused.steps for row in log.ledger) == 4


@pytest.mark.promise(4)
def test_work_of_another_line_cannot_change_the_model(
    toml: Path, store: LocalStore, redis_url: str
) -> None:
    """Work that began before a rollback is answered, not merged."""

    class Behind(ScriptedLearner):
        def open_round(self) -> Round:
            return msgspec.structs.replace(super().open_round(), line=7)

    with running(options(toml)):
        learner = Behind(redis_url, store)
        assert learner.receipt(learner.hand_in(learner.open_round())) == "rolled_back"
        learner.close()
    assert folded(store).global_version == 0


# ---- 6. The same log and payloads: the same bytes -----------------------------------------------


@pytest.mark.promise(6)
@EVERY_CODEC
def test_a_replay_gives_the_same_bytes(
    codec: Mapping[str, str], tmp_path: Path, store: LocalStore, redis_url: str
) -> None:
    """Every merge of a run, done again from what is kept, publishes the very bytes of then."""
    keep = {"versions": 100, "contributions": "all"}
    toml = write_run(tmp_path, redis_url=redis_url, keep=keep, codec=codec)
    with running(options(toml)):
        learner = ScriptedLearner(redis_url, store)
        learner.contribute(6)
        learner.close()
    found = verify_run(store, RUN, replay=True)
    assert found.differences == ()
    assert found.replay is not None
    assert (found.replay.num_steps, found.replay.num_equal) == (6, 6)


# ---- 7. Nothing is unpickled --------------------------------------------------------------------

SOURCES = sorted(
    path
    for package in (ddl, ddl_cli)
    for folder in package.__path__
    for path in Path(folder).rglob("*.py")
)
UNPICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
LOADERS = {"torch.load", "numpy.load", "np.load"}


def unpicklers(source: str) -> Iterator[str]:
    """What in a source imports a module that unpickles, or names a function that may."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.partition(".")[0] in UNPICKLERS)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in UNPICKLERS:
                yield module
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                if f"{name}.{attribute}" in LOADERS:
                    yield f"{name}.{attribute}"


@pytest.mark.promise(7)
def test_no_source_knows_how_to_unpickle() -> None:
    """Neither the library nor the commands import a module that does, or name a function that may."""
    assert len(SOURCES) > 100
    assert list(unpicklers("import pickle\nfrom dill import x\ntorch.load('f')")) == [
        "pickle",
        "dill",
        "torch.load",
    ]
    found = {path.name: list(unpicklers(path.read_text("utf-8"))) for path in SOURCES}
    assert not {name: what for name, what in found.items() if what}


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return Path.write_text, (self.path, "boom")


@pytest.mark.promise(7)
def test_a_pickle_in_place_of_a_contribution_is_refused_unread(
    tmp_path: Path, toml: Path, store: LocalStore, redis_url: str
) -> None:
    """It has the size that is expected, is announced truly, with its digest, and nothing of it is
    ever run."""
    proof = tmp_path / "proof"
    bomb = pickle.dumps(Bomb(proof))

    class Hostile(ScriptedLearner):
        def _encode(self, handin: Handin, values: Mapping[str, float]) -> bytes:
            honest = super()._encode(handin, values)
            assert len(bomb) <= len(honest)
            return bomb.ljust(len(honest), b".")  # what stands behind a pickle is not read

    with running(options(toml)):
        learner = Hostile(redis_url, store)
        handin = learner.hand_in(learner.open_round())
        assert learner.receipt(handin) == "refused", learner.reasons
        learner.close()
    assert not proof.exists()
    pickle.loads(bomb)
    assert proof.exists(), "the bomb was none"
