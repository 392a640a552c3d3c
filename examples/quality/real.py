"""A cell as a run of real processes: the public commands, a Redis-compatible server, a directory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from ddl.coordinator.export import export_model
from ddl.core.snapshot import snapshot
from ddl.embedded import EmbeddedRedis
from ddl.errors import DdlError
from ddl.registry.reader import RedisReader
from ddl_cli.demo.bucket import Storage, storage
from ddl_cli.demo.cast import Cast, Play
from ddl_cli.demo.stage import await_genesis
from examples.quality import text
from examples.quality.cells import Cell, Outcome

RUN: Final = "quality"
"""The run's name in `run.toml`."""

LEAVE_S: Final = 30.0
"""Longest wait for a learner to leave when the run has ended."""


def run_processes(cell: Cell, settings: Mapping[str, object]) -> Outcome:
    """Coordinator and learners from start to end, and the exported model's loss.

    Args:
        cell: its learners, steps and seed.
        settings: dotted key -> value, all that differs from the defaults.
    Raises: DdlError when a process ends that should not.
    """
    with tempfile.TemporaryDirectory() as name, storage(Path(name), s3=False) as place:
        folder = Path(name)
        play = Play(
            folder=folder,
            files=Path(__file__).parent,
            run=RUN,
            learners=cell.learners,
            settings={key: _text(value) for key, value in settings.items()},
        )
        tokens = _perform(play, place)
        with closing(place.open()) as store:
            export = export_model(store, RUN, folder)
        model = text.make_model(cell.seed)
        with torch.no_grad():
            model.load_state_dict(load_file(export.path))
        return Outcome(
            cell=cell,
            tokens=tokens,
            heldout_loss=text.heldout_loss(model),
            versions=export.global_version,
        )


def _perform(play: Play, place: Storage) -> int:
    """The tokens merged. Raises: DdlError."""
    with (
        EmbeddedRedis(play.folder / "redis", persist=False) as redis,
        closing(RedisReader(redis.url, RUN)) as registry,
        Cast(play, redis.url, place) as cast,
    ):
        coordinator = cast.start_coordinator()
        await_genesis(registry, coordinator)
        learners = [cast.start_learner(name) for name in cast.names]
        while (code := coordinator.wait(1.0)) is None:
            for learner in learners:
                if learner.ended():
                    raise learner.death()
        if code != 0:
            raise coordinator.death()
        for learner in learners:
            if learner.wait(LEAVE_S) != 0:
                raise learner.death()
        last = snapshot(registry.view())
        if last is None:
            raise DdlError("Redis lost the run before its end could be looked at")
        return round(last.run.progress)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
