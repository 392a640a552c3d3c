"""`ddl coordinator`: own the model of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ddl import config
from ddl.errors import ConfigError, UnknownRunError
from ddl_cli.arguments import LogOption, MetricsPortOption, key_values
from ddl_cli.exits import Exit
from ddl_cli.logs import open_log

if TYPE_CHECKING:
    from ddl.config import Settings
    from ddl.coordinator.service import Service
    from ddl.journal import Journal
    from ddl.metrics.families import Family

app = typer.Typer(help="Own the model of a run.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Own the model of a run."""


@app.command("start")
def start(
    run: Annotated[
        Path, typer.Argument(metavar="RUN.toml", help="Settings of the run.", show_default=False)
    ],
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start weights, as safetensors, for a run that is created.",
            show_default=False,
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="If another coordinator works, wait, and take over when it is gone.",
        ),
    ] = False,
    redis: Annotated[
        str | None, typer.Option("--redis", metavar="URL", help="The same as --set redis.url=URL.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The same as --set store.url=URL.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; stands above all others."),
    ] = None,
    up_mbit: Annotated[
        float | None, typer.Option(metavar="X", help="Cap on uploads, in Mbit/s.")
    ] = None,
    down_mbit: Annotated[
        float | None, typer.Option(metavar="X", help="Cap on downloads, in Mbit/s.")
    ] = None,
    metrics_port: MetricsPortOption = None,
    log: LogOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as one JSON object a line.")] = False,
) -> None:
    """Create the run of RUN.toml, or go on with it, until it is over.

    Ctrl-C and SIGTERM end this process, not the run: start it again to go on.
    """
    if run.parts[:1] and run.parts[0].endswith(":"):
        raise ConfigError(
            "a coordinator starts from the run.toml of its run, not from an address",
            hint="`ddl init` writes one; of a run that exists, give the one that it was created with",
        )
    flags = key_values(changes or [], option="--set")
    flags |= {"redis.url": redis} if redis else {}
    flags |= {"store.url": store} if store else {}
    loaded = config.load(run, environment=os.environ, flags=flags)
    from ddl.coordinator.start import StartOptions, run_coordinator

    options = StartOptions(
        loaded=loaded,
        task_file=run.parent / loaded.settings.task.file,
        init=init,
        standby=standby,
        up_mbit=up_mbit,
        down_mbit=down_mbit,
    )
    journal = open_log(as_json=as_json)
    with _signals() as signals, _numbers(metrics_port, log or [], loaded.settings, journal):
        try:
            outcome = run_coordinator(options, journal=journal, on_ready=signals.attach)
        except KeyboardInterrupt:  # before there was a service to end
            outcome = "asked"
            journal.tell("coordinator.ended", "interrupted before it could coordinate")
    if outcome == "asked" and signals.received == signal.SIGINT:
        raise typer.Exit(Exit.INTERRUPTED)


@contextmanager
def _numbers(
    port: int | None, log: list[str], settings: Settings, journal: Journal
) -> Iterator[None]:
    """Serve `/metrics` of the run and write its curves, as far as asked: what Redis shows at each look."""
    if port is None and not log:
        yield
        return
    from ddl.core.snapshot import snapshot
    from ddl.metrics.families import of_run
    from ddl.metrics.log import writing
    from ddl.metrics.serve import serving
    from ddl.registry.reader import RedisReader

    name = settings.run.name
    label = {"run": name}
    reading = Lock()  # several may look at the same time
    with ExitStack() as stack:
        reader = stack.enter_context(closing(RedisReader(settings.redis.url, name)))

        def families() -> Iterator[Family]:
            with reading:
                shown = snapshot(reader.view(num_facts=0))
            if shown is None:
                raise UnknownRunError(f"Redis does not know the run {name!r}")
            yield from of_run(shown)

        if port is not None:
            port = stack.enter_context(serving(port, families, label=label))
            journal.tell("metrics.served", f"/metrics is at port {port}")
        for where in log:
            stack.enter_context(
                writing(where, families, over="ddl_progress_tokens", label=label, journal=journal)
            )
        yield


class _Signals:
    """Turns SIGINT and SIGTERM into an orderly end."""

    def __init__(self) -> None:
        self.received = 0
        self._service: Service | None = None

    def attach(self, service: Service) -> None:
        """From now on, end this service instead of interrupting the main thread."""
        self._service = service

    def handle(self, number: int, _: FrameType | None) -> None:
        self.received = number
        if self._service is None:
            raise KeyboardInterrupt
        self._service.end(signal.Signals(number).name.replace("SIGINT", "Ctrl-C"))


@contextmanager
def _signals() -> Iterator[_Signals]:
    signals = _Signals()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signals.handle) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
