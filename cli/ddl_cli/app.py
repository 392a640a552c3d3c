"""Puts the commands together; turns errors into one sentence and an exit code."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer
from rich.console import Console

from ddl import __version__
from ddl.errors import DdlError
from ddl_cli.commands import (
    config,
    coordinator,
    demo,
    doctor,
    evaluate,
    export,
    fork,
    gc,
    init,
    learner,
    plan,
    rm,
    runs,
    status,
    steer,
    stop,
    verify,
)
from ddl_cli.exits import exit_code

app = typer.Typer(
    name="ddl",
    help="Train one PyTorch model on many machines that come and go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Debug:
    """Whether errors show their traceback; set once, by the first option that is read."""

    on = False


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ddl {__version__}")
        raise typer.Exit


def _set_debug(asked: bool) -> None:
    _Debug.on = asked


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            callback=_set_debug,
            is_eager=True,
            envvar="DDL_DEBUG",
            help="Show the traceback of an error.",
        ),
    ] = False,
) -> None:
    """Train one PyTorch model on many machines that come and go."""


app.add_typer(coordinator.app, name="coordinator")
app.add_typer(learner.app, name="learner")
app.command("demo")(demo.demo)
app.command("status")(status.status)
app.command("init")(init.init)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.add_typer(config.app, name="config")
app.command("pause")(steer.pause)
app.command("resume")(steer.resume)
app.command("set")(steer.set_)
app.command("rollback")(steer.rollback)
app.command("stop")(stop.stop)
app.command("export")(export.export)
app.command("evaluate")(evaluate.evaluate)
app.command("verify")(verify.verify)
app.command("runs")(runs.runs)
app.command("fork")(fork.fork)
app.command("gc")(gc.gc)
app.command("rm")(rm.rm)


def main() -> None:
    """The `ddl` command. Never returns: ends the process with a code of `ddl_cli.exits`."""
    try:
        app()
    except DdlError as error:
        if _Debug.on:
            traceback.print_exception(error)
        Console(stderr=True, soft_wrap=True).print(
            f"ddl: {error}", style="red", markup=False, highlight=False
        )
        sys.exit(exit_code(error))
