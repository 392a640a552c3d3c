"""The one manner of all benchmarks: cases take turns, medians count, figures stand beside limits.

    just bench NAME [--json] [--rounds N]

`--json` prints {"name", "machine", "figures": {KEY: {"value", "unit", "limit", "ratio"}}}: `limit` is
the goal, `ratio` compares with a reference that was measured in the same run. The exit code is 1 if a
goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

ROUNDS = 7


class Figure(NamedTuple):
    """One measured figure.

    Attributes:
        limit: the least (`at_most`: the largest) value that is good.
        ratio: to what `of` names.
    """

    value: float
    unit: str
    limit: float | None = None
    ratio: float | None = None
    of: str = ""
    at_most: bool = False

    @property
    def is_good(self) -> bool:
        if self.limit is None:
            return True
        return self.value <= self.limit if self.at_most else self.value >= self.limit


class Options(NamedTuple):
    """What a benchmark was asked for."""

    rounds: int
    json: bool


def options(description: str) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that each case takes")
    given = parser.parse_args()
    return Options(given.rounds, given.json)


def take_turns(cases: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median wall seconds of each case.

    In each round every case has its turn, so that what else the machine does meets all of them. The
    first round warms caches and does not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):
        for name, run in cases.items():
            started = time.perf_counter()
            run()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return {name: median(times) for name, times in seconds.items()}


def report(name: str, figures: Mapping[str, Figure], *, as_json: bool) -> int:
    """Print the figures; the exit code."""
    if as_json:
        document = {"name": name, "machine": machine(), "figures": {}}
        document["figures"] = {
            key: {
                "value": round(figure.value, 4),
                "unit": figure.unit,
                "limit": figure.limit,
                "ratio": None if figure.ratio is None else round(figure.ratio, 3),
            }
            for key, figure in figures.items()
        }
        print(json.dumps(document))
    else:
        print(machine())
        for key, figure in figures.items():
            goal = ""
            if figure.limit is not None:
                goal = f"  goal {'<=' if figure.at_most else '>='} {figure.limit:g}"
            ratio = "" if figure.ratio is None else f"  x{figure.ratio:.2f} of {figure.of}"
            print(f"{key:28} {figure.value:10.3f} {figure.unit:8}{goal}{ratio}")
    missed = [key for key, figure in figures.items() if not figure.is_good]
    if missed:
        print(f"goal missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def machine() -> str:
    """Cores, processor, system, and how busy it was: figures of a busy machine are poor ones."""
    model = platform.processor() or platform.machine()
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, load {load:.1f}"
