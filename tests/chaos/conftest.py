"""Fixtures of the chaos tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddl.embedded import EmbeddedRedis, find_server
from tests.chaos.forked import ChaosFleet


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis of the test's own; it keeps its data over a restart."""
    with EmbeddedRedis(tmp_path / "redis", binary=find_server()) as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, server: EmbeddedRedis) -> Iterator[ChaosFleet]:
    with ChaosFleet(tmp_path, server.url) as fleet:
        yield fleet
    for log in sorted(tmp_path.glob("*.log")):  # shown if the test has failed
        print(f"---- {log.name}\n{log.read_text()[-2000:]}")
