"""What a refresh of `ddl status` costs with many learners: `just bench status [--json]`.

A refresh reads the run from a real Redis-compatible server, makes the snapshot, adds it to the trail
and draws a page on a terminal of 200 x 50. CPU time of this process alone, so a busy machine does not
change it.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import msgspec
from rich.console import Console

from ddl.embedded import EmbeddedRedis
from ddl.protocol.records import Fact
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from ddl_cli.reading import EVENTS_KEPT, Source
from ddl_cli.resolve import resolve
from ddl_cli.view.look import Look, Page
from ddl_cli.view.screen import Seen, picture
from ddl_cli.view.trail import Trail
from tests.bench.report import Figure, Options, options, report
from tests.views import handin, learner, merged, receipt, view

LEARNERS = 512
FRAGMENTS = 8
LIMIT_MS = 50.0
PAGES: tuple[Page, ...] = ("overview", "learners", "rounds", "events", "learner")


def main() -> int:
    asked = options(__doc__ or "")
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedRedis(Path(folder), persist=False) as redis,
    ):
        fill(redis.url)
        source = Source(resolve("demo", redis=redis.url, environment={}))
        figures = {
            f"refresh of {page}": Figure(
                1e3 * refresh_s(source, Look(page=page, selected="l100"), asked),
                "ms CPU",
                LIMIT_MS,
                at_most=True,
            )
            for page in PAGES
        }
    return report("status", figures, asked)


def refresh_s(source: Source, look: Look, asked: Options) -> float:
    """CPU seconds of a refresh, the least of all rounds: what else a machine does makes it more."""
    console = Console(file=io.StringIO(), force_terminal=True, width=200, height=50)
    trail = Trail(source.backlog())
    seconds = []
    for _ in range(asked.rounds + 1):
        started = time.process_time()
        shown = source.read()
        assert shown is not None
        console.print(picture(console, Seen(trail.add(shown), "", trail.rates), look))
        seconds.append(time.process_time() - started)
    return min(seconds)


def fill(url: str) -> None:
    """A run of `LEARNERS` learners, each with a receipt for every fragment, and a full stream."""
    base = view()
    assert base.entry is not None
    assert base.head is not None
    assert base.lease is not None
    names = [f"l{number:03d}" for number in range(LEARNERS)]
    receipts = [receipt(name, p, 9) for name in names for p in range(FRAGMENTS)]
    head = msgspec.structs.replace(base.head, shares=dict.fromkeys(names, 1 / LEARNERS))
    round_ = msgspec.structs.replace(
        base.rounds[0], arrived=tuple(names[:200]), awaited=tuple(names)
    )
    with (
        closing(RedisCoordinator(url, "demo")) as coordinator,
        closing(RedisLearner(url, "demo")) as member,
    ):
        lease = coordinator.take_lease(base.lease, ttl_s=600, min_epoch=2).lease
        assert lease is not None
        coordinator.rebuild(lease.epoch, base.entry, head, base.fragments, receipts)
        coordinator.set_rounds(lease.epoch, [round_], wake=False)
        for name in names:
            member.register(learner(name), gone_s=15.0, takeover=False)
            member.announce(handin(name, 1, 10, 12_000), incarnation=1)
        coordinator.tell([told(number, names) for number in range(EVENTS_KEPT)])


def told(number: int, names: list[str]) -> Fact:
    """A version of many contributions; now and then something else, so that lines are not all one."""
    if number % 50 == 0:
        name = names[number % len(names)]
        return Fact(
            at=number, name="learner.gone", text=f"{name} is gone", fields={"learner": name}
        )
    return merged(-number, number, 0, *(f"{name}/1/f0/9" for name in names[:64]))


if __name__ == "__main__":
    sys.exit(main())
