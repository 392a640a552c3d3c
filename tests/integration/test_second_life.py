"""A learner that comes back says what has become of its optimizer's state."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

import ddl
from ddl.registry.reader import RedisReader
from ddl.task import load_task
from tests.contexts import context
from tests.coordinating import RUN, options, running, write_run


def test_a_second_life_says_whether_its_optimizer_starts_cold(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first life has nothing to say; one that finds a state says so, and one that finds none says why
    that may be: a life that ends in good order leaves one."""
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))
    toml = write_run(tmp_path, redis_url=redis_url)
    model = load_task(toml.parent / "task.py", context(purpose="evaluate", learner=None)).model

    def live() -> list[str]:
        """A life of a few steps; what was told of the state in this and all lives before it."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        address = f"{redis_url}?run={RUN}"
        with ddl.Learner.join(address, model=model, optimizer=optimizer, id="a") as learner:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            for _ in range(3):
                optimizer.step()
                learner.step(tokens=10)
        with closing(RedisReader(redis_url, RUN)) as reader:
            return [fact.text for fact in reader.view().facts if fact.name == "learner.warm"]

    with running(options(toml)):
        assert live() == []
        resumed = "a resumes with the optimizer state of its former life"
        assert live() == [resumed]
        (state,) = (tmp_path / "spool").rglob("*.warm.safetensors")
        state.unlink()
        cold = (
            "a starts cold: its former life left no optimizer state here, as one does that ran "
            "elsewhere or was killed in its first 30 s"
        )
        assert live() == [resumed, cold]
