"""`ddl simulate`: what a fleet of failing machines would get done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, cast

import typer
from msgspec.structs import replace

from ddl.errors import ConfigError
from ddl.protocol.wire import canonical
from ddl.simulate import fleet
from ddl.simulate.fleet import Result
from ddl.simulate.paper import TABLE_1
from ddl.simulate.settings import (
    METHODS,
    PAPER,
    PRESETS,
    Method,
    Study,
    file_text,
    preset_text,
    read,
)
from ddl.simulate.tape import load_tape, save_tape
from ddl_cli.arguments import count
from ddl_cli.simulated import lines
from ddl_cli.units import short_time


def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[STUDY.toml]", help="What to simulate.", show_default=False),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"In its place: {', '.join(PRESETS)}.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only this one: {', '.join(METHODS)}."),
    ] = None,
    learners: Annotated[
        list[int] | None,
        typer.Option(min=1, help="So many in decoupled training; may be repeated."),
    ] = None,
    chips: Annotated[
        list[str] | None,
        typer.Option(metavar="COUNT", help="Make the fleet so large, such as 1.2M; the same."),
    ] = None,
    tape: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Have these failures, in place of drawn ones."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save-tape", metavar="FILE", help="Write the failures of one cell."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw goodput: a .png or .svg.")
    ] = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print the settings, to change them; simulate nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (Result).")
    ] = False,
) -> None:
    """Tell how much of a fleet would go into training, for each way to train on it.

    Machines fail and come back by lot, in virtual time. Goodput is the share of what all chips could
    do that goes into useful steps; uptime the share of time in which any learner steps.
    """
    text, where = _source(file, preset)
    if as_toml:
        typer.echo(text, nl=False)
        return
    study = _changed(read(text, where=where), method, learners, chips)
    played = load_tape(tape) if tape else None
    begun = time.perf_counter()
    cells = fleet.simulate(study, beside=TABLE_1 if preset == PAPER else {}, tape=played)
    result = Result(
        cells=cells,
        mean_abs_error_goodput=fleet.mean_abs_error(cells),
        seconds=time.perf_counter() - begun,
    )
    if save:
        save_tape(save, fleet.tape_of(study))
    if plot:
        from ddl_cli.plotting import draw_cells

        draw_cells(plot, cells, title=preset or where)
    if as_json:
        typer.echo(canonical(result))
        return
    drawn = f"mean of {study.seeds} histories of {short_time(study.horizon_s)} each"
    typer.echo("\n".join(lines(result, title=f"failures of {tape}" if tape else drawn)))


def _source(file: Path | None, preset: str | None) -> tuple[str, str]:
    """The settings as TOML, and what they are called."""
    if file is not None and preset is None:
        return file_text(file), str(file)
    if file is None and preset is not None:
        return preset_text(preset), f"preset {preset}"
    raise ConfigError(
        "what to simulate is not said" if file is None else "what to simulate is said twice",
        hint=f"Give a STUDY.toml, or one of --preset {', '.join(PRESETS)}",
    )


def _changed(
    study: Study, methods: list[str] | None, learners: list[int] | None, chips: list[str] | None
) -> Study:
    """The study, of those methods, numbers of learners and sizes that were asked for."""
    for name in methods or []:
        if name not in METHODS:
            raise ConfigError(
                f"--method {name!r} is unknown", hint=f"There are: {', '.join(METHODS)}"
            )
    whole = sum(kind.chips for kind in study.machines)
    sizes = tuple(count(text, option="--chips") / whole for text in chips or [])
    return replace(
        study,
        methods=cast("tuple[Method, ...]", tuple(methods or study.methods)),
        learners=tuple(learners or study.learners),
        sizes=sizes or study.sizes,
    )
