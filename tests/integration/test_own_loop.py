"""The example of `ddl.Learner` in a bare loop: as short as its README says, and it trains."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

import ddl
from ddl.coordinator.evaluate import Evaluator, evaluate_versions
from ddl.coordinator.history import History
from ddl.coordinator.verify import verify_run
from ddl.core.snapshot import snapshot
from ddl.errors import RefusedError
from ddl.protocol.records import LedgerTotals
from ddl.registry.reader import RedisReader
from ddl.store.local import LocalStore
from ddl.task import load_task
from tests.contexts import context
from tests.coordinating import RUN, eventually, options, running, write_run
from tests.processes import Fleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop"
ADDED_MAX = 6


def code(file: str) -> list[str]:
    """Lines of a script below its docstring, without indentation."""
    text = (EXAMPLE / file).read_text()
    return [line.strip() for line in text.partition('"""\n\n')[2].splitlines()]


def test_the_readme_shows_what_came_into_the_loop() -> None:
    """At most six added lines of code, nothing taken away; README and the two files say the same."""
    change = list(difflib.ndiff(code("plain.py"), code("train.py")))
    assert [line for line in change if line.startswith("- ")] == []
    added = [line[2:] for line in change if line.startswith("+ ")]
    assert 0 < len([line for line in added if line]) <= ADDED_MAX
    (block,) = re.findall(r"```diff\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    shown = block.splitlines()
    assert [line[1:].strip() for line in shown if line.startswith("+")] == added
    script = (EXAMPLE / "train.py").read_text().splitlines()
    assert [line[1:] for line in shown] == script[2 : 2 + len(shown)]


def test_two_processes_train_the_runs_model(tmp_path: Path, redis_url: str) -> None:
    """Both loops end by themselves when the run has stopped, and the merged model is good. A third
    one, that was sent away, asks to be started again."""
    folder = tmp_path / "own_loop"
    shutil.copytree(EXAMPLE, folder)
    store = (tmp_path / "store").as_uri()
    with Fleet(folder, redis_url, run="spirals") as fleet:
        fleet.coordinator("--redis", redis_url, "--store", store, "--set", "stop.tokens=4_000_000")
        fleet.until(fleet.snapshot, "the run in Redis")
        for number in (1, 2, 3):
            with (folder / f"train-{number}.log").open("wb") as output:
                fleet.processes.append(
                    subprocess.Popen(
                        [sys.executable, "train.py", fleet.address],
                        cwd=folder,
                        stdout=output,
                        stderr=output,
                        env={**os.environ, "DDL_SPOOL": str(tmp_path / "spool")},
                    )
                )
        coordinator, *loops, third = fleet.processes
        fleet.until(lambda: _training(fleet) == 3, "all three train")
        third.send_signal(signal.SIGTERM)
        assert third.wait(30) == 75
        for process in (coordinator, *loops):
            assert process.wait(100) == 0
    told = [(folder / f"train-{number}.log").read_text() for number in (1, 2)]
    assert all("accuracy 0.9" in text or "accuracy 1.0" in text for text in told), told
    opened = LocalStore(tmp_path / "store")
    run = History(opened, "spirals").existing_run()
    evaluator = Evaluator(folder / "task.py", run.settings)
    first, last = evaluate_versions(opened, run, [0, None], evaluator)
    assert first.measures["accuracy"] < 0.7 < 0.95 < last.measures["accuracy"]
    found = verify_run(opened, "spirals")
    assert found.num_differences == 0
    assert found.num_receipts > found.global_version  # both learners' work was merged


def _training(fleet: Fleet) -> int:
    seen = fleet.snapshot()
    return sum(one.state == "training" for one in seen.learners) if seen else 0


def test_only_what_failed_is_a_trouble(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a loop is left, its run is told why. Ctrl-C and a plain exit are no errors; an error of
    ours speaks for itself, of others the class is told."""
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))
    loop_ends = "its training loop has ended"
    ends: dict[str, tuple[BaseException | None, str, bool]] = {
        "plain": (None, loop_ends, False),
        "interrupted": (KeyboardInterrupt(), "Ctrl-C", False),
        "exited": (SystemExit(0), loop_ends, False),
        "refused": (RefusedError("it has to leave", hint="Ask Anna"), "it has to leave. Ask", True),
        "failed": (ValueError("no such row"), "ValueError: no such row", True),
    }
    toml = write_run(tmp_path, redis_url=redis_url)
    model = load_task(tmp_path / "task.py", context(purpose="evaluate", learner=None)).model
    with running(options(toml)), closing(RedisReader(redis_url, RUN)) as reader:
        for name, (error, _, _) in ends.items():
            with (
                suppress(*(() if error is None else (type(error),))),
                ddl.Learner.join(f"{redis_url}?run={RUN}", model=model, id=name),
            ):
                if error is not None:
                    raise error

        def told() -> dict[str, str] | None:
            facts = [fact for fact in reader.view().facts if fact.name == "learner.left"]
            texts = {str(fact.fields["learner"]): fact.text for fact in facts}
            return texts if len(texts) == len(ends) else None

        texts = eventually(told, what="the coordinator tells of all of them")
        shown = snapshot(reader.view())
    assert shown is not None
    troubles = {one.learners: one.what for one in shown.troubles if one.name == "learner.failed"}
    for name, (_, said, is_trouble) in ends.items():
        assert f": {said}" in texts[name]
        assert ((name,) in troubles) == is_trouble
    assert "Error" not in texts["refused"] + troubles["refused",]


def test_ctrl_c_while_a_loop_that_ended_hands_in_is_no_error(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does not want to wait for that leaves at once, and the run is told why."""
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))
    toml = write_run(tmp_path, redis_url=redis_url)
    model = load_task(tmp_path / "task.py", context(purpose="evaluate", learner=None)).model

    def impatient(*_: object) -> None:
        raise KeyboardInterrupt

    with running(options(toml)), closing(RedisReader(redis_url, RUN)) as reader:
        learner = ddl.Learner.join(f"{redis_url}?run={RUN}", model=model, id="a")
        learner.step(tokens=10)
        monkeypatch.setattr(learner, "_stand_still", impatient)
        with pytest.raises(KeyboardInterrupt):
            learner.close()
        (one,) = reader.view().learners.values()
        assert (one.state, one.why, one.error) == ("left", "Ctrl-C", "")


def test_a_loop_that_ends_by_itself_hands_in_all_it_has_trained(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a learner that is asked to leave does; but nobody asked, so its process is not to be started again."""
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))
    toml = write_run(tmp_path, redis_url=redis_url, stop={"commits": 1000})
    model = load_task(tmp_path / "task.py", context(purpose="evaluate", learner=None)).model
    with running(options(toml)), closing(RedisReader(redis_url, RUN)) as reader:
        with ddl.Learner.join(f"{redis_url}?run={RUN}", model=model, id="a") as learner:
            for _ in range(7):
                learner.step(tokens=10)
        assert learner.stop is None

        def ledger() -> LedgerTotals | None:
            shown = snapshot(reader.view())
            return shown.ledger if shown and shown.ledger.merged else None

        told = eventually(ledger, what="what it handed in is merged")
        assert told.handed_in == pytest.approx(70.0)
        (one,) = reader.view().learners.values()
        assert (one.state, one.in_u.tokens) == ("left", 0.0)
