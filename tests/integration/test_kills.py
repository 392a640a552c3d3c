"""A coordinator that is killed again and again changes nothing of what the run comes to."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddl.coordinator.history import History
from ddl.core.log import LogState
from ddl.protocol.records import HandinId
from ddl.store.local import LocalStore
from tests.coordinating import RUN, ScriptedLearner, eventually, write_run
from tests.redis_servers import admin

COMMITS = 200
KILLS = 20
SEED = 4
LEARNERS = "abc"


class Restarted:
    """A coordinator process that is started anew whenever it was killed."""

    def __init__(self, toml: Path) -> None:
        self._toml = toml
        self._log = (toml.parent / "coordinator.log").open("wb")
        self.kills = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "ddl_cli", "coordinator", "start", str(self._toml)]
        self.process = subprocess.Popen([*command, "--standby"], stderr=self._log)

    def kill(self) -> None:
        """SIGKILL, wherever it is in its work, and start the next one."""
        assert self.process.poll() is None
        self.process.kill()
        self.process.wait()
        self.kills += 1
        self.start()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@contextmanager
def restarted(toml: Path) -> Iterator[Restarted]:
    coordinator = Restarted(toml)
    try:
        yield coordinator
    finally:
        coordinator.end()


def whole_run(folder: Path, redis_url: str, *, kills: int) -> tuple[LogState, set[HandinId]]:
    """Three scripted learners, all in every merge; the coordinator is killed at random moments of
    randomly chosen rounds. The log at the end, and what was handed in."""
    folder.mkdir()
    toml = write_run(
        folder,
        redis_url=redis_url,
        round={"quorum": len(LEARNERS), "deadline_s": 1000.0},
        keep={"versions": 1000},
        stop={"commits": COMMITS},
    )
    store = LocalStore(folder / "store")
    dice = random.Random(SEED)
    killed_in = set(dice.sample(range(COMMITS), kills))
    handed_in = set()
    with restarted(toml) as coordinator:
        learners = [ScriptedLearner(redis_url, store, name, patience_s=120.0) for name in LEARNERS]
        for commit in range(COMMITS):
            handins = []
            for learner in learners:
                handins.append(learner.hand_in(learner.open_round()))
                if commit in killed_in and dice.random() < 0.3:
                    killed_in.discard(commit)
                    coordinator.kill()  # in the middle of the round
            if commit in killed_in:
                coordinator.kill()  # all are in: it is fetching, merging, or writing
            for learner, handin in zip(learners, handins, strict=True):
                assert learner.receipt(handin) == "merged"
                handed_in.add(handin.id)
        eventually(lambda: coordinator.process.poll() == 0, what="the end of the run")
        assert coordinator.kills == kills
    for learner in learners:
        learner.close()
    with admin(redis_url) as client:
        client.flushall()
    history = History(store, RUN)
    return history.fold(history.existing_run()), handed_in


def weights_and_momentum(log: LogState) -> list[tuple[int, str, str]]:
    """Version and digests of every fragment."""
    return [
        (head.version, head.published.sha256, head.outer.sha256 if head.outer else "")
        for head in log.fragments
    ]


@pytest.mark.promise(2)
@pytest.mark.promise(3)
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_coordinator_killed_twenty_times_comes_to_the_same_bytes(
    tmp_path: Path, redis_url: str
) -> None:
    """200 commits with a quorum of all: weights and momentum are bit-equal to those of the run that
    nobody killed, and every contribution has its one receipt in the log."""
    undisturbed, _ = whole_run(tmp_path / "undisturbed", redis_url, kills=0)
    killed, handed_in = whole_run(tmp_path / "killed", redis_url, kills=KILLS)
    assert weights_and_momentum(killed) == weights_and_momentum(undisturbed)
    assert killed.epoch == undisturbed.epoch + KILLS
    history = History(LocalStore(tmp_path / "killed" / "store"), RUN)
    receipts = []
    for seq in range(1, killed.seq + 1):
        entry = history.read(seq)
        assert entry is not None
        receipts += [receipt.id for receipt in entry.record.receipts]
    assert len(receipts) == len(set(receipts))
    assert set(receipts) == handed_in
