"""Puts the commands together; turns errors into one sentence and an exit code."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from ddl import __version__
from ddl.errors import DdlError
from ddl_cli.catalogue import Commands
from ddl_cli.exits import Exit, exit_code

app = typer.Typer(
    name="ddl",
    cls=Commands,
    help="Train one PyTorch model on many machines that come and go.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain text can be read anywhere, and costs a third of the time
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
            help="Show the traceback of an error; may stand anywhere.",
        ),
    ] = False,
) -> None:
    """Train one PyTorch model on many machines that come and go."""


def _debug_first(arguments: list[str]) -> list[str]:
    """Whoever has just seen an error adds `--debug` at the end of the line."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = arguments[:end]
    if "--debug" not in options:
        return arguments
    return ["--debug", *(word for word in options if word != "--debug"), *arguments[end:]]


def main() -> None:
    """The `ddl` command. Never returns: ends the process with a code of `ddl_cli.exits`."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a locale has no letter for is no failure
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=_debug_first(sys.argv[1:]))
    except DdlError as error:
        if _Debug.on:
            import traceback

            traceback.print_exception(error)
        from rich.console import Console

        Console(stderr=True, soft_wrap=True).print(
            f"ddl: {error.code}: {error}", style="red", markup=False, highlight=False
        )
        sys.exit(exit_code(error))
    except SystemExit as ended:
        # click and rich make a 1 of it; whoever reads the output may stop at any time, as `head` does
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(Exit.OK)
        raise
