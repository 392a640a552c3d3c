"""What `ddl doctor` says of a task file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from ddl import config
from ddl.config import Settings
from ddl.doctor.task import check_task
from ddl.task import task_digest
from tests.core_records import run_record

GOOD = "def build(ctx): ...\n"


@pytest.mark.parametrize(
    ("text", "runs", "status", "words"),
    [
        (GOOD, True, "ok", "can be imported and defines `build`"),
        ("import nowhere_at_all\n" + GOOD, True, "fail", "nowhere_at_all"),
        ("import nowhere_at_all\n" + GOOD, False, "ok", "can be read"),
        ("build = 1\n", True, "fail", "defines no function `build`"),
        (None, False, "fail", "task.py"),
    ],
)
def test_a_task_file(tmp_path: Path, text: str | None, runs: bool, status: str, words: str) -> None:
    file = tmp_path / "task.py"
    if text is not None:
        file.write_text(text)
    check = check_task(file, None, runs=runs)
    assert (check.name, check.status) == ("task.file", status)
    assert words in check.text
    assert bool(check.cure) == (status != "ok")


@pytest.mark.parametrize("digest", ["warn", "refuse"])
def test_another_file_than_the_runs(tmp_path: Path, digest: Literal["warn", "refuse"]) -> None:
    """It may be meant, unless the run refuses it, as it would a learner; the run's own file is fine."""
    file = tmp_path / "task.py"
    file.write_text(GOOD)
    run = run_record(config.replace(Settings(), {"task.digest": digest}))
    other = check_task(file, run, runs=False)
    assert other.status == ("fail" if digest == "refuse" else "warn")
    assert "differs from the one" in other.text
    assert ("lets no other in" in other.text) == (digest == "refuse")
    own = check_task(file, replace(run, task_digest=task_digest(file)), runs=False)
    assert own.status == "ok"
