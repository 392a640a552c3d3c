"""What is free goes back to the system, though something that lives lies behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddl.coordinator import heap
from ddl.coordinator.heap import GIVE_BACK_S, Heap

SCRIPT = """
from pathlib import Path
from ddl.clock import SystemClock
from ddl.coordinator.heap import Heap

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

blocks = [b"x" * 60_000 for _ in range(2_000)]
full = resident_mb()
last = blocks.pop()
blocks.clear()
kept = resident_mb()
Heap(SystemClock()).give_back()
print(full - kept, kept - resident_mb())
"""


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@pytest.mark.skipif(heap._trim is None, reason="this C library gives nothing back on demand")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_what_lies_before_a_living_block_is_given_back() -> None:
    """120 MB are freed, and stay with the process until they are given back."""
    shown = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    ).stdout
    by_itself, given_back = map(float, shown.split())
    assert by_itself < 20
    assert given_back > 90


def test_it_is_done_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep may come many times a second."""
    calls: list[int] = []
    monkeypatch.setattr(heap, "_trim", calls.append)
    clock = Clock()
    one = Heap(clock)
    for clock.now in (0.0, 1.0, GIVE_BACK_S, GIVE_BACK_S + 1.0):
        one.give_back()
    assert calls == [0, 0]
    monkeypatch.setattr(heap, "_trim", None)
    clock.now = 10 * GIVE_BACK_S
    one.give_back()
    assert len(calls) == 2
