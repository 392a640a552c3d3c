"""`ddl coordinator start`, `ddl stop` and `ddl export` as processes: kills, signals, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ddl.coordinator.history import Entry, History
from ddl.core.log import LogState
from ddl.core.snapshot import snapshot
from ddl.registry.reader import RedisReader
from ddl.store.local import LocalStore
from tests.coordinating import RUN, ScriptedLearner, eventually, write_run

DDL = [sys.executable, "-m", "ddl_cli"]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def toml(tmp_path: Path, redis_url: str) -> Path:
    return write_run(tmp_path, redis_url=redis_url)


class Processes:
    """Starts coordinators; whatever still runs at the end is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, toml: Path, *flags: str) -> subprocess.Popen[bytes]:
        command = [*DDL, "coordinator", "start", str(toml), *flags]
        with self.log(len(self.started)).open("wb") as log:
            self.started.append(subprocess.Popen(command, stderr=log))
        return self.started[-1]

    def log(self, index: int) -> Path:
        return self._folder / f"coordinator-{index}.log"

    def serving(self, index: int) -> None:
        """Wait until this one serves the run."""
        eventually(lambda: "run.entered" in self.log(index).read_text(), what="run.entered")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def folded(store: LocalStore) -> LogState:
    history = History(store, RUN)
    run = history.run_record()
    assert run is not None
    return history.fold(run)


def test_a_killed_coordinator_is_started_again_and_goes_on(
    toml: Path, store: LocalStore, redis_url: str, processes: Processes, tmp_path: Path
) -> None:
    """The new one takes the lease when the dead one's has run out, and continues from its version.

    Then SIGTERM ends it with 0, the run does not: a third start and Ctrl-C end with 130.
    """
    first = processes.start(toml)
    learner = ScriptedLearner(redis_url, store)
    learner.contribute(3)
    handin = learner.hand_in(learner.open_round())
    first.kill()
    first.wait()
    before = folded(store)
    second = processes.start(toml)
    assert learner.receipt(handin) == "merged"
    learner.contribute(1)
    second.terminate()
    assert second.wait(60) == 0, processes.log(1).read_text()
    after = folded(store)
    assert before.global_version in (3, 4)
    assert (after.global_version, after.epoch, after.state) == (5, 2, "running")
    third = processes.start(toml)
    processes.serving(2)
    learner.contribute(1)
    third.send_signal(signal.SIGINT)
    assert third.wait(60) == 130, processes.log(2).read_text()
    learner.close()
    export = [*DDL, "export", (tmp_path / "store" / RUN).as_uri(), "--out", str(tmp_path / "out")]
    said = subprocess.run([*export, "--json", "--at", "5"], capture_output=True, check=True)
    exported = json.loads(said.stdout)
    assert (exported["schema"], exported["global_version"]) == (1, 5)
    assert "first.weight" in load_file(exported["path"])


def test_two_starts_at_once_leave_one_coordinator(
    toml: Path, store: LocalStore, redis_url: str, processes: Processes
) -> None:
    """The other ends with 5 and names the one that serves."""
    both = [processes.start(toml), processes.start(toml)]
    loser = eventually(lambda: next((p for p in both if p.poll() is not None), None), within_s=40)
    winner = both[1 - both.index(loser)]
    assert loser.returncode == 5
    said = processes.log(both.index(loser)).read_text()
    assert f"process {winner.pid}" in said
    assert "Traceback" not in said
    learner = ScriptedLearner(redis_url, store)
    learner.contribute(1)
    learner.close()
    assert winner.poll() is None


def test_a_coordinator_that_was_stopped_for_too_long_finds_itself_replaced(
    toml: Path, store: LocalStore, redis_url: str, processes: Processes
) -> None:
    """T31: SIGSTOP for longer than its lease, another takes over; awake again it ends with 5."""
    first = processes.start(toml)
    learner = ScriptedLearner(redis_url, store)
    learner.contribute(1)
    first.send_signal(signal.SIGSTOP)
    processes.start(toml)
    processes.serving(1)
    learner.contribute(1)
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 5, processes.log(0).read_text()
    assert "Traceback" not in processes.log(0).read_text()
    learner.contribute(1)
    learner.close()
    assert (folded(store).global_version, folded(store).epoch) == (3, 2)


def test_ddl_stop_ends_the_run(toml: Path, processes: Processes, redis_url: str) -> None:
    """It waits until that is so; a second one says that it was so already."""
    coordinator = processes.start(toml)
    processes.serving(0)
    stop = [*DDL, "stop", f"{redis_url}?run={RUN}", "--why", "enough"]
    said = subprocess.run(stop, capture_output=True, text=True, check=True)
    assert said.stdout == f"{RUN} has stopped, at version 0\n"
    assert coordinator.wait(60) == 0
    assert "enough" in processes.log(0).read_text()
    again = subprocess.run(stop, capture_output=True, text=True, check=True)
    assert again.stdout == f"{RUN} has stopped already, at version 0\n"


def test_nothing_can_be_stopped_without_a_coordinator(
    toml: Path, processes: Processes, redis_url: str
) -> None:
    """A wish that nobody would take up is not left behind."""
    coordinator = processes.start(toml)
    processes.serving(0)
    with closing(RedisReader(redis_url, RUN)) as reader:
        eventually(lambda: reader.view().entry, what="the run in Redis")
    coordinator.terminate()
    assert coordinator.wait(60) == 0
    stop = [*DDL, "stop", f"{redis_url}?run={RUN}"]
    said = subprocess.run(stop, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert f"no coordinator of '{RUN}' is running" in said.stderr


def test_a_standby_takes_over_from_a_killed_coordinator(
    tmp_path: Path, store: LocalStore, redis_url: str, processes: Processes
) -> None:
    """It is shown while it waits, and once the lease has run out rounds close again; nothing else
    tells it to. A second standby is in the run by then, and goes on waiting."""
    toml = write_run(tmp_path, redis_url=redis_url, liveness={"lease_s": 3.0})
    first = processes.start(toml)
    learner = ScriptedLearner(redis_url, store)
    learner.contribute(2)
    processes.start(toml, "--standby")
    processes.start(toml, "--standby")
    reader = RedisReader(redis_url, RUN)
    eventually(lambda: len(reader.view().standbys) == 2, within_s=60, what="two standbys")
    eventually(lambda: "standing by" in processes.log(1).read_text(), what="the journal")
    learner.contribute(1)  # so that they have something to follow
    first.kill()
    first.wait()
    learner.contribute(1)
    learner.close()
    log = folded(store)
    assert (log.global_version, log.epoch) == (4, 2)
    shown = snapshot(reader.view())
    assert shown is not None
    assert len(shown.coordinator.standbys) == 1
    assert shown.coordinator.holder not in shown.coordinator.standbys
    reader.close()


@pytest.mark.slow
def test_a_standby_is_asked_to_end(
    toml: Path, store: LocalStore, redis_url: str, processes: Processes
) -> None:
    """SIGTERM ends it with 0 and takes it off the list; a holder that ends hands over at once."""
    first = processes.start(toml)
    processes.serving(0)
    second, third = processes.start(toml, "--standby"), processes.start(toml, "--standby")
    reader = RedisReader(redis_url, RUN)
    eventually(lambda: len(reader.view().standbys) == 2, within_s=60, what="two standbys")
    third.terminate()
    assert third.wait(60) == 0, processes.log(2).read_text()
    assert len(reader.view().standbys) == 1
    first.terminate()
    assert first.wait(60) == 0
    processes.serving(1)
    assert reader.view().standbys == ()
    reader.close()
    assert second.poll() is None


def test_a_run_that_is_stopped_has_no_more_need_of_standbys(
    toml: Path, store: LocalStore, redis_url: str, processes: Processes
) -> None:
    """They end with 0 and write nothing, whatever their `run.toml` says: it stays stopped."""
    processes.start(toml)
    processes.serving(0)
    for _ in range(2):
        processes.start(toml, "--standby", "--set", "round.quorum=2")
    with closing(RedisReader(redis_url, RUN)) as reader:
        eventually(lambda: len(reader.view().standbys) == 2, within_s=60, what="two standbys")
    subprocess.run([*DDL, "stop", f"{redis_url}?run={RUN}", "--why", "enough"], check=True)
    for num, process in enumerate(processes.started):
        assert process.wait(60) == 0, processes.log(num).read_text()
        assert "the run is over: enough" in processes.log(num).read_text()
    log = folded(store)
    assert (log.seq, log.state, log.settings.round.quorum) == (1, "stopped", 1)


def test_a_coordinator_that_wakes_up_beside_its_standby_writes_nothing(
    toml: Path, store: LocalStore, redis_url: str, processes: Processes
) -> None:
    """SIGSTOP in the middle of its work: the standby goes on. Awake again the first one ends with 5,
    and no record of its epoch has come after those of the other."""
    first = processes.start(toml)
    learner = ScriptedLearner(redis_url, store)
    learner.contribute(1)
    processes.start(toml, "--standby")
    reader = RedisReader(redis_url, RUN)
    eventually(lambda: reader.view().standbys, within_s=60, what="a standby")
    reader.close()
    first.send_signal(signal.SIGSTOP)
    handin = learner.hand_in(learner.open_round())  # taken in by the first one, or by nobody yet
    assert learner.receipt(handin) == "merged"
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 5, processes.log(0).read_text()
    learner.contribute(2)
    learner.close()
    history = History(store, RUN)
    epochs = [entry.record.epoch for entry in entries(history)]
    assert epochs == [1, 2, 2, 2]


def entries(history: History) -> Iterator[Entry]:
    """All records, in order."""
    seq = 1
    while (entry := history.read(seq)) is not None:
        yield entry
        seq += 1
