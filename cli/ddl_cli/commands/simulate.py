"""`ddl simulate`: what a fleet of failing machines would get done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer
from msgspec.structs import replace

from ddl import config
from ddl.config import Scalar
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
from ddl.simulate.tape import Tape, load_tape, save_tape
from ddl_cli.arguments import count, key_values
from ddl_cli.simulated import lines, run_lines
from ddl_cli.units import short_time


def simulate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY.toml] [KEY=V1,V2 ...]",
            help="What to simulate; KEY=V1,V2: more for --sweep.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"For STUDY.toml: {', '.join(PRESETS)}.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only this one: {', '.join(METHODS)}."),
    ] = None,
    learners: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="So many in decoupled training; may be repeated."),
    ] = None,
    chips: Annotated[
        list[str] | None,
        typer.Option(metavar="COUNT", help="Make the fleet so large, such as 1.2M; the same."),
    ] = None,
    protocol: Annotated[
        bool, typer.Option("--protocol", help="Simulate whole runs of ddl, rounds and all.")
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2",
            help="The same, for each value of a setting, such as round.quorum=1,2.",
        ),
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
        Path | None, typer.Option(metavar="FILE", help="Draw the table: a .png or .svg.")
    ] = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print the settings, to change them; simulate nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (Result, RunResult).")
    ] = False,
) -> None:
    """Tell how much of a fleet would go into training, for each way to train on it.

    Machines fail and come back by lot, in virtual time. Goodput is the share of what all chips could
    do that goes into useful steps; uptime the share of time in which any learner steps. With
    --protocol or --sweep the very rules of ddl decide, over links of given speed, what is merged when.
    """
    pairs = [word for word in words or [] if "=" in word]
    text, where = _source([word for word in words or [] if "=" not in word], preset)
    if as_toml:
        typer.echo(text, nl=False)
        return
    study = _changed(read(text, where=where), method, learners, chips)
    played = load_tape(tape) if tape else None
    swept = _values([*(sweep or []), *pairs])
    title = preset or where
    if protocol or swept:
        if {*(method or [])} - {"decoupled"}:
            raise ConfigError("runs of ddl are decoupled", hint="Leave --method out")
        _simulate_runs(study, swept, played, save=save, plot=plot, title=title, as_json=as_json)
        return
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

        draw_cells(plot, cells, title=title)
    drawn = f"mean of {study.seeds} histories of {short_time(study.horizon_s)} each"
    shown = lines(result, title=f"failures of {tape}" if tape else drawn)
    typer.echo(canonical(result) if as_json else "\n".join(shown))


def _simulate_runs(
    study: Study,
    swept: dict[str, list[Scalar]],
    tape: Tape | None,
    *,
    save: Path | None,
    plot: Path | None,
    title: str,
    as_json: bool,
) -> None:
    from ddl.simulate.protocol.sweep import of_runs, simulate_runs
    from ddl.simulate.protocol.tally import RunResult

    begun = time.perf_counter()
    runs = simulate_runs(study, swept, tape=tape)
    result = RunResult(runs=runs, seconds=time.perf_counter() - begun)
    if save:
        save_tape(save, fleet.tape_of(of_runs(study)))
    if plot:
        from ddl_cli.plotting import draw_runs

        draw_runs(plot, runs, title=title)
    typer.echo(canonical(result) if as_json else "\n".join(run_lines(result)))


def _source(files: Sequence[str], preset: str | None) -> tuple[str, str]:
    """The settings as TOML, and what they are called."""
    if len(files) == 1 and preset is None:
        return file_text(Path(files[0])), files[0]
    if not files and preset is not None:
        return preset_text(preset), f"preset {preset}"
    raise ConfigError(
        f"what to simulate is {'said twice' if files else 'not said'}",
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


def _values(texts: list[str]) -> dict[str, list[Scalar]]:
    """The values of each setting that is swept. Raises: ConfigError: an unknown one, a wrong value."""
    return {
        key: [config.read_changes({key: value})[key] for value in values.split(",")]
        for key, values in key_values(texts, option="--sweep").items()
    }
