"""Six ways to break a real run: the first screen of `ddl status` says what it is, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ddl.embedded import EmbeddedRedis
from ddl_cli.reading import Source
from ddl_cli.resolve import resolve
from ddl_cli.view.look import Look
from ddl_cli.view.pages import Frame, screenful
from ddl_cli.view.text import Canvas
from tests.processes import PACED_TASK, Fleet, kill

WILD_TASK = PACED_TASK.replace(
    "    clock =", '    wild = float(ctx.args.get("wild", 0))\n    clock ='
).replace(
    "        optimizer.step()\n",
    """\
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=wild)
""",
)

# processes that each import torch, and six outages: a busy machine takes its time
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def fleet(tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Fleet]:
    with Fleet(tmp_path, own_redis.url) as fleet:
        yield fleet


def test_the_first_screen_says_why(fleet: Fleet, own_redis: EmbeddedRedis) -> None:
    """Below quorum, a learner kicked, its work refused, Redis full, the store gone, the coordinator
    dead; each alarm goes when its cause has gone, and the run goes on."""
    fleet.task = WILD_TASK
    fleet.write_run(round={"quorum": 2}, gate={"calm_rounds": 1})
    coordinator = fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    fleet.learner("anna")
    fleet.learner("bert")
    screen = Screen(fleet)
    fleet.until_version(3)
    fleet.until(lambda: "!!" not in screen.text(), "nothing is wrong")

    kick = fleet.ddl("learner", "kick", fleet.address, "bert", "--why", "its fan is dead")
    assert kick.wait(60) == 0
    screen.until("bert was kicked: its fan is dead", f"`ddl learner allow '{fleet.address}' bert`")
    screen.until("!! no round can close: each needs 2 contributions, and 1 learner can hand in")
    cure = f"Start more learners, or `ddl set '{fleet.address}' round.quorum=1`"
    assert cure in screen.text()
    assert fleet.ddl("learner", "allow", fleet.address, "bert").wait(60) == 0
    wild = fleet.learner("bert", "--arg", "wild=300")
    screen.until("!! the last hand-in of bert was refused, and no round has closed since")
    assert "Look at that machine" in screen.text()
    kill(wild)
    fleet.learner("bert")
    screen.goes_on()

    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory", 1)
        screen.until("!! Redis refuses writes: its memory is full", "maxmemory")
        assert "gone without a word" not in screen.text()
        client.config_set("maxmemory", 0)
    screen.goes_on()

    store, away = fleet.folder / "store", fleet.folder / "away"
    store.rename(away)
    screen.until("!!", "store directory", "is gone")
    away.rename(store)
    screen.goes_on()

    kill(coordinator)
    screen.until("!!", "no coordinator is alive", "Start one: `ddl coordinator start run.toml`")
    fleet.coordinator()
    screen.goes_on()


class Screen:
    """The first screen of `ddl status`, 80 columns by 24 lines, as one would see it now."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._source = Source(resolve(fleet.address, environment={}))

    def text(self) -> str:
        """All of it in one line, so that sentences can be found."""
        shown = self._source.read()
        assert shown is not None
        lines = screenful(Frame(shown, Look(), Canvas(80)), 24)
        return " ".join(" ".join(line.plain for line in lines).split())

    def until(self, *words: str) -> None:
        """Wait until all of these stand there."""
        self._fleet.until(lambda: all(word in self.text() for word in words), f"{words} on screen")

    def goes_on(self) -> None:
        """Wait for a new version, and for a screen without an alarm."""
        version = self._fleet.version()
        self._fleet.until_version(version + 2)
        self._fleet.until(lambda: "!!" not in self.text(), "no alarm")
