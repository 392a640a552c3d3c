"""Plays the demo and draws what README shows of it: `just pictures`."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from rich.console import Console

from ddl.coordinator.history import History
from ddl.protocol.records import Fact, RunSnapshot
from ddl_cli.commands.report import payload_bytes
from ddl_cli.demo.bucket import Storage, storage
from ddl_cli.demo.cast import RUN, Options
from ddl_cli.demo.command import say
from ddl_cli.demo.stage import play
from ddl_cli.display import Lines
from ddl_cli.records import read_log
from ddl_cli.report.plots import draw_all
from ddl_cli.report.story import gather
from ddl_cli.view.head import done_ratio
from ddl_cli.view.look import Look
from ddl_cli.view.screen import Seen, picture
from ddl_cli.view.trail import Trail

HERE = Path(__file__).parent
WORK = HERE.parents[1] / "build" / "pictures"
WIDTH, HEIGHT = 100, 28

LATE = 0.8
"""Share of the run after which no more screens are kept."""


class Camera:
    """A display that keeps the newest screen of a run that is in full swing, as an SVG picture."""

    def __init__(self) -> None:
        self.svg = ""
        self._lines = Lines(say)
        self._trail = Trail()

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def show(self, snapshot: RunSnapshot, notice: str = "") -> None:
        self._lines.show(snapshot, notice)
        seen = Seen(self._trail.add(snapshot), notice, self._trail.rates)
        states = [learner.state for learner in snapshot.learners]
        if "gone" in states and (done_ratio(snapshot) or 1.0) < LATE:
            self.svg = _photograph(seen)


def _photograph(seen: Seen) -> str:
    console = Console(
        file=io.StringIO(), record=True, force_terminal=True, width=WIDTH, height=HEIGHT
    )
    console.print(picture(console, seen, Look()))
    svg = console.export_svg(title=f"ddl status {RUN}")
    # a font from elsewhere, which a picture within a page may not fetch
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    camera = Camera()
    with storage(WORK, s3=False) as place:
        played = play(Options(folder=WORK), place, camera)
        loss = _loss_plot(place, played.view.facts)
    for name, svg in (("status", camera.svg), ("loss", loss)):
        (HERE / f"{name}.svg").write_text(svg, encoding="utf-8")
        say(f"{name}.svg is drawn")
    simulate = ["simulate", "--preset", "paper-table1", "--plot", str(HERE / "goodput.svg")]
    return subprocess.run([sys.executable, "-m", "ddl_cli", *simulate], check=False).returncode


def _loss_plot(place: Storage, facts: tuple[Fact, ...]) -> str:
    with closing(place.open()) as store:
        history = History(store, RUN)
        record = history.existing_run()
        story = gather(record, read_log(history), payload_bytes=payload_bytes(record), facts=facts)
    return draw_all(story)[0].svg


if __name__ == "__main__":
    sys.exit(main())
