"""How long `ddl` takes to say something: `just bench startup`.

Wall time is what people feel; CPU time is what a busy machine does not change.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from ddl.embedded import EmbeddedRedis
from tests.cli.conftest import publish

REPEATS = 7


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedRedis(Path(folder), persist=False) as redis,
    ):
        publish(redis.url)
        address = f"{redis.url}?run=demo"
        for words in (["--help"], ["status", "--help"], ["status", "--once", address]):
            wall_s, cpu_s = zip(*(cost_of(words) for _ in range(REPEATS)), strict=True)
            print(
                f"ddl {' '.join(words[:2]):<16} wall {median(wall_s) * 1e3:5.0f} ms, "
                f"CPU {median(cpu_s) * 1e3:5.0f} ms (medians of {REPEATS})"
            )


def cost_of(words: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one `ddl` process."""
    started, cpu_before = time.monotonic(), children_cpu_s()
    subprocess.run([sys.executable, "-m", "ddl_cli", *words], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started, children_cpu_s() - cpu_before


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
