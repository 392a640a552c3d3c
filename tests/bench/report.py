"""The one manner of all benchmarks: cases take turns, medians count, figures stand beside limits.

    just bench NAME [--json] [--rounds N] [--one-core]

`--json` prints {"name", "machine", "figures": {KEY: {"value", "unit", "limit", "ratio"}}}: `limit` is
the goal, `ratio` compares with a reference that was measured in the same run. The exit code is 1 if a
goal is missed.

`--one-core` is for a machine that is busy with other things: one thread, timed by its CPU time. Goals
are for two cores of an idle machine; who reaches one on a single core reaches it all the more on two.
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

import torch

ROUNDS = 7
THREADS = 2


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
    """What a benchmark was asked for.

    Attributes:
        rounds: turns that each case takes.
        json: one JSON document on stdout.
        one_core: one thread, timed by its CPU time.
    """

    rounds: int
    json: bool
    one_core: bool

    @property
    def threads(self) -> int:
        return 1 if self.one_core else THREADS


def options(description: str) -> Options:
    """Read the command line, and have torch use as many threads as it says."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that each case takes")
    parser.add_argument("--one-core", action="store_true", help="one thread, by its CPU time")
    given = parser.parse_args()
    asked = Options(given.rounds, given.json, given.one_core)
    torch.set_num_threads(asked.threads)
    return asked


def take_turns(cases: Mapping[str, Callable[[], object]], asked: Options) -> dict[str, float]:
    """Median seconds of each case.

    In each round every case has its turn, so that what else the machine does meets all of them. The
    first round warms caches and does not count.
    """
    clock = time.thread_time if asked.one_core else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(asked.rounds + 1):
        for name, run in cases.items():
            started = clock()
            run()
            if round_:
                seconds[name].append(clock() - started)
    return {name: median(times) for name, times in seconds.items()}


def report(name: str, figures: Mapping[str, Figure], asked: Options) -> int:
    """Print the figures; the exit code."""
    if asked.json:
        shown = {
            key: {
                "value": round(figure.value, 4),
                "unit": figure.unit,
                "limit": figure.limit,
                "ratio": None if figure.ratio is None else round(figure.ratio, 3),
            }
            for key, figure in figures.items()
        }
        print(json.dumps({"name": name, "machine": machine(asked), "figures": shown}))
    else:
        print(machine(asked))
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


def machine(asked: Options) -> str:
    """What was used of which machine, and how busy it was: wall times of a busy one mean little."""
    used = "CPU time of one thread" if asked.one_core else f"wall time of {asked.threads} threads"
    model = platform.processor() or platform.machine()
    load = os.getloadavg()[0]
    return f"{used}; {os.cpu_count()} cores, {model}, {platform.system()}, load {load:.1f}"
