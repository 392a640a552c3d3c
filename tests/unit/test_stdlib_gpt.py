"""The example that the demo runs: it learns, shares its text, and says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ddl.errors import TaskError
from ddl.task import Progress, Purpose, Task, load_task
from tests.contexts import context

EXAMPLE = Path(__file__).parents[2] / "examples" / "stdlib_gpt"
TEXT = b"def f(x):\n    return x + 10\n\n" * 400  # 29 bytes: windows of 16 begin anywhere in it


@pytest.fixture(autouse=True)
def _nothing_left_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    """Arguments for a model that takes milliseconds, on a text that is easy to learn."""
    data = tmp_path / "text"
    data.write_bytes(TEXT)
    return {"data": str(data), "width": 32, "depth": 1, "context": 16, "lr": 1e-2}


def build(args: dict[str, Any], *, purpose: Purpose = "train", data_seed: int = 1) -> Task:
    ctx = context(seed=3, purpose=purpose, data_seed=data_seed, args=args)
    return load_task(EXAMPLE / "task.py", ctx)


def train(task: Task, *, steps: int) -> float:
    """Held-out loss after a plain loop over the task's own parts."""
    assert task.loss is not None
    assert task.batches is not None
    assert task.optimizer is not None
    assert task.evaluate is not None
    for batch in islice(task.batches, steps):
        task.optimizer.zero_grad()
        torch.autograd.backward(task.loss(task.model, batch))
        task.optimizer.step()
    return task.evaluate(task.model)["loss"]


def test_it_learns(small: dict[str, Any]) -> None:
    """From about ln 256 = 5.5 nats per byte to well under half of that in forty steps."""
    task = build(small)
    assert 5.0 < train(task, steps=0) < 6.0
    assert train(task, steps=40) < 2.5


def test_learners_share_one_order(small: dict[str, Any]) -> None:
    """Whatever their own seeds: one pass holds every window once, and the next has another order."""
    streams = [iter(build(small, data_seed=seed).batches or ()) for seed in (1, 2)]
    num_windows = (len(TEXT) - len(TEXT) // 20 - 1) // 16  # 95 % of the text
    first, other = (_windows(stream, num_windows) for stream in streams)
    second = _windows(streams[0], num_windows)
    assert first == other
    assert sorted(first) == sorted(second)
    assert first != second


def _windows(batches: Any, count: int) -> list[list[int]]:
    found: list[list[int]] = []
    while len(found) < count:
        found += next(batches).tolist()
    assert len(found) == count, "a pass ends with a batch of its own"
    return found


def test_the_position_survives_a_restart(small: dict[str, Any]) -> None:
    """With the state of another life, reading goes on where it stopped."""
    first: Any = build(small).batches
    list(islice(first, 5))
    second: Any = build(small, data_seed=2).batches
    second.load_state_dict(first.state_dict())
    assert torch.equal(next(iter(first)), next(iter(second)))


def test_the_learning_rate_warms_up_and_decays(small: dict[str, Any]) -> None:
    """Over a learner's first steps, and over the run's budget."""
    factor = build(small).lr_factor
    assert factor is not None

    def at(local_steps: int, fraction: float) -> float:
        return factor(
            Progress(tokens=0, fraction=fraction, global_version=0, local_steps=local_steps)
        )

    assert at(0, 0.0) == pytest.approx(1 / 50)
    assert at(49, 0.0) == at(400, 0.0) == 1.0
    assert at(400, 1.0) == pytest.approx(0.1)


def test_genesis_reads_no_text(small: dict[str, Any]) -> None:
    """The coordinator needs the task, but not the data."""
    task = build({**small, "data": "/nowhere"}, purpose="init")
    assert task.batches is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wdith": 64}, "unknown argument 'wdith'; known are data, width"),
        ({"width": 33}, "width 33 is not a multiple of 32"),
        ({"data": "/nowhere"}, "No such file or directory: '/nowhere'"),
        ({"batch": 0}, "batch_size must be at least 1"),
        ({"context": 600}, "less than one window"),
    ],
)
def test_wrong_arguments_are_told(
    small: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    """A misspelt or impossible argument ends the build, and is named."""
    with pytest.raises(TaskError, match=message):
        build({**small, **changes})


def test_an_export_can_be_sampled(small: dict[str, Any], tmp_path: Path) -> None:
    """`sample.py` needs the exported file alone, and writes as many bytes as it is told. A pattern of
    the shell may give it several."""
    task = build(small)
    for _ in range(3):
        train(task, steps=80)
    export = tmp_path / "model.safetensors"
    save_file(task.model.state_dict(), export)
    command = [sys.executable, "-B", str(EXAMPLE / "sample.py"), "older.safetensors", str(export)]
    done = subprocess.run(
        [*command, "--prompt", "def", "--count", "60", "--temperature", "0.1"],
        check=True,
        capture_output=True,
        env={"PYTHONPATH": str(EXAMPLE.parents[1])},
    )
    assert done.stdout.startswith(b"def")
    assert len(done.stdout) == len(b"def") + 60 + len(b"\n")
    assert b"return x" in done.stdout, "the only text it has seen"


def test_what_is_no_export_of_this_model_is_named(tmp_path: Path) -> None:
    """Missing, damaged, of another model: one sentence with the file, and no traceback."""
    damaged, other = tmp_path / "damaged.safetensors", tmp_path / "other.safetensors"
    damaged.write_bytes(b"x")
    save_file({"weight": torch.ones(2)}, other)
    command = [sys.executable, "-B", str(EXAMPLE / "sample.py")]
    for file, words in (
        (tmp_path / "missing.safetensors", "cannot be read: No such file"),
        (damaged, "cannot be read"),
        (other, "is not an export of this model: 'position.weight'"),
    ):
        done = subprocess.run(
            [*command, str(file)],
            check=False,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(EXAMPLE.parents[1])},
        )
        assert (done.returncode, f"error: {file} {words}" in done.stderr) == (2, True), done
        assert "Traceback" not in done.stderr
