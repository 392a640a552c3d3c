"""`ddl exits`: what exit codes and the names of errors mean."""

from __future__ import annotations

import difflib
import inspect
from typing import Annotated

import typer

from ddl.errors import ConfigError, DdlError
from ddl.protocol.records import Record
from ddl.protocol.wire import SCHEMA, canonical
from ddl_cli.exits import EXPLAINED, Exit, error_kinds, exit_of


def exits(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE]",
            help="Only this one: an exit code such as 75, or what stands before an error's message.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (Exits).")] = False,
) -> None:
    """Tell what the exit codes and errors of `ddl` mean, and what to do about them."""
    errors = {kind.code: kind for kind in error_kinds()}
    if as_json:
        typer.echo(canonical(_document(code, errors)))
    elif code is None:
        for one in Exit:
            _tell_exit(one)
            for name, kind in errors.items():
                if exit_of(kind) == one:
                    typer.echo(f"     {name}: {_meaning(kind)}")
    elif code in errors:
        kind = errors[code]
        typer.echo(f"{code}: {_meaning(kind)}")
        if kind.retryable:
            typer.echo(
                "A running learner or coordinator waits for it to pass, and goes on by itself."
            )
        typer.echo("A command that it ends has the exit code")
        _tell_exit(exit_of(kind))
    else:
        _tell_exit(_read(code, list(errors)))


class ErrorMeaning(Record, frozen=True, kw_only=True):
    """What stands before an error's message; `retryable`: who is running waits for it to pass."""

    name: str
    exit_code: int
    meaning: str
    retryable: bool


class ExitMeaning(Record, frozen=True, kw_only=True):
    code: int
    meaning: str
    todo: str


class Exits(Record, frozen=True, kw_only=True):
    """What `ddl exits --json` prints: all, or those that were asked for."""

    schema: int = SCHEMA
    exits: tuple[ExitMeaning, ...]
    errors: tuple[ErrorMeaning, ...]


def _document(code: str | None, errors: dict[str, type[DdlError]]) -> Exits:
    """An error with its exit code, an exit code with its errors, or all."""
    codes, kinds = list(Exit), list(errors.values())
    if code in errors:
        codes, kinds = [exit_of(errors[code])], [errors[code]]
    elif code is not None:
        codes = [_read(code, list(errors))]
        kinds = [kind for kind in kinds if exit_of(kind) in codes]
    return Exits(
        exits=tuple(
            ExitMeaning(code=one.value, meaning=EXPLAINED[one].meaning, todo=EXPLAINED[one].todo)
            for one in codes
        ),
        errors=tuple(
            ErrorMeaning(
                name=kind.code,
                exit_code=exit_of(kind).value,
                meaning=_meaning(kind),
                retryable=kind.retryable,
            )
            for kind in kinds
        ),
    )


def _tell_exit(code: Exit) -> None:
    told = EXPLAINED[code]
    typer.echo(f"{code.value:>3}  {told.meaning}\n     To do: {told.todo}.")


def _meaning(kind: type[DdlError]) -> str:
    """The first sentence of what its docstring says."""
    first = (inspect.getdoc(kind) or "").split("\n\n")[0]
    return " ".join(first.split())


def _read(text: str, names: list[str]) -> Exit:
    """The exit code that this is. Raises: ConfigError: it is none."""
    if not text.isdecimal():
        near = difflib.get_close_matches(text, names, n=1)
        raise ConfigError(
            f"no error of ddl is called {text!r}",
            hint=f"Did you mean {near[0]}?" if near else "`ddl exits` lists them all",
        )
    if int(text) not in EXPLAINED:
        raise ConfigError(
            f"ddl never ends with {text}",
            hint="Above 128 it is a signal: 137 is SIGKILL, 143 is SIGTERM"
            if int(text) > 128
            else "`ddl exits` lists the codes it ends with",
        )
    return Exit(int(text))
