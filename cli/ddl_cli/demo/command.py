"""The demo from its folder to its summary."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import typer
from rich.console import Console

from ddl.errors import ConfigError
from ddl.protocol.wire import canonical
from ddl_cli import display, typed
from ddl_cli.demo.books import read_books
from ddl_cli.demo.bucket import Storage, storage
from ddl_cli.demo.cast import RUN, Options, data
from ddl_cli.demo.report import Losses, judge, text
from ddl_cli.demo.stage import play
from ddl_cli.units import short_number
from ddl_cli.view.events import PUBLISHED
from ddl_cli.view.paper import is_screen

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit code after SIGTERM, as a shell gives it."""


def new_folder(asked: Path | None, *, prefix: str = "demo-") -> Path:
    """The folder to write into, empty; by default a new one here. Raises: ConfigError."""
    try:
        if asked is None:
            return Path(tempfile.mkdtemp(prefix=prefix, dir="."))
        asked.mkdir(parents=True, exist_ok=True)
        if any(asked.iterdir()):
            raise ConfigError(f"--dir {asked} is not empty", hint="Give a new folder")
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {asked or f'{prefix}...'}: {error.strerror}",
            hint="Give another one with --dir",
        ) from error
    return asked


def run_demo(options: Options, *, loss_below: float, as_json: bool) -> bool:
    """Play, measure, report; whether all is as it must be. Raises: DdlError."""
    console = Console(stderr=True, highlight=False)
    screen = is_screen(console)
    shown = display.Screen(console) if screen else display.Lines(say, left_out=[PUBLISHED])
    say(f"demo in {options.folder}: real processes, a real Redis server, real text")
    say(f"starting Redis and the coordinator; their logs are in {options.folder / 'logs'}")
    with orderly_sigterm(), storage(options.folder, s3=options.s3) as place:
        played = play(options, place, shown)
        # they bring in torch, for which nobody should wait before the first line is shown
        from ddl.coordinator.evaluate import evaluate_file
        from ddl.coordinator.export import export_model

        say("the run has ended; measuring version 0 and the last one")
        with closing(place.open()) as store:
            books = read_books(store, RUN)
            exports = [
                Path(export_model(store, RUN, options.folder / "export", at=version).path)
                for version in (0, books.state.global_version)
            ]
        first, last = (
            evaluate_file(file, task_file=data("task.py"), settings=books.run.settings)["loss"]
            for file in exports
        )
    report = judge(
        played,
        books,
        Losses(first=first, last=last),
        export=exports[-1],
        loss_target=loss_below,
    )
    if as_json:
        typer.echo(canonical(report))
    else:
        typer.echo(text(report, books, then=_then(options, place, exports[-1])))
    for problem in report.problems:
        say(f"FAILED: {problem}")
    return not report.problems


def _then(options: Options, place: Storage, model: Path) -> Iterator[tuple[str, str]]:
    """What people may do next: the very commands."""
    script = typed.place(data("sample.py"))
    yield "let it write", f"{typed.python()} {script} {typed.place(model)}"
    if not options.s3:  # a bucket is gone with its server
        yield "look again", f"{typed.program('ddl')} status {shlex.quote(f'{place.url}/{RUN}')}"
    size = short_number(typed.bytes_of(options.folder))
    yield "remove it", f"rm -r {typed.place(options.folder)}   ({size}B)"


def say(line: str) -> None:
    """Tell how it goes, beside the result on standard output."""
    typer.echo(line, err=True)


@contextmanager
def orderly_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C does, so that all processes are ended before this one."""

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's signature
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
