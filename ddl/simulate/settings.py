"""What is simulated: machines, how they fail, and who trains on them. One TOML file, or a preset."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from ddl import config
from ddl.config import Section, Settings
from ddl.errors import ConfigError

Method = Literal["data-parallel", "data-parallel-elastic", "decoupled"]
"""Who trains: all machines as one learner, which needs all of them, or goes on with those that are
there; or several learners, each of them elastic."""

METHODS: Final[tuple[Method, ...]] = get_args(Method)

PAPER: Final = "paper-table1"
PRESETS: Final = (PAPER, "paper-table5", "spot", "lab")


MAY_BE_ZERO: Final = (
    "_spread",
    "down_s",
    "up_s",
    "restart_s",
    "latency_s",
    "coordinator_mtbi_s",
    "coordinator_away_s",
)


class Machines(Section, frozen=True, kw_only=True):
    """Equal machines. A **slice** is what fails together: a machine, or a TPU slice.

    Attributes:
        chips: of all of them.
        mtbi_s: mean time between interruptions of one chip that is at work.
        speed: against a chip that takes `times.step_s` for a step.
        speed_spread: standard deviation of the slices' speeds, as a share of `speed`; drawn once.
        return_scale_s, return_shape, return_exponent: how long a failed slice is away, by an
            exponentiated Weibull distribution: P(away <= t) = (1 - exp(-(t/scale)^shape))^exponent.
    """

    name: str = ""
    chips: int
    slice_chips: int
    mtbi_s: float
    speed: float = 1.0
    speed_spread: float = 0.0
    return_scale_s: float
    return_shape: float = 1.0
    return_exponent: float = 1.0


class Times(Section, frozen=True, kw_only=True):
    """What takes how long.

    Attributes:
        step_s: a step on chips of speed 1.
        down_s: of an elastic learner, to go on without slices that failed.
        up_s: to take in slices that came back; all that are back at that moment count as one.
        restart_s: of a learner that is not elastic, from a failure until it steps again.
    """

    step_s: float
    down_s: float
    up_s: float
    restart_s: float


class Protocol(Section, frozen=True, kw_only=True):
    """What `ddl` needs to know of a run beside the fleet, to simulate its own rules.

    Attributes:
        parameters: of the model.
        up_mbit, down_mbit: of each learner's link, in million bits per second.
        coordinator_mbit: of the coordinator's link, in each direction.
        latency_s: of a request to Redis or to the store.
        step_spread: standard deviation of a learner's steps, as a share of its usual one.
        coordinator_mtbi_s: mean life of a coordinator's process; 0: it never dies.
        coordinator_away_s: from its death until the next one is started.
        horizon_s: takes the place of the study's.
        settings: of the run, as in `run.toml`.
    """

    parameters: int = 124_000_000
    up_mbit: float = 1000.0
    down_mbit: float = 1000.0
    coordinator_mbit: float = 10_000.0
    latency_s: float = 0.01
    step_spread: float = 0.0
    coordinator_mtbi_s: float = 0.0
    coordinator_away_s: float = 10.0
    horizon_s: float = 3600.0
    settings: Settings = Settings()


class Study(Section, frozen=True, kw_only=True):
    """A table of cells: each method on each size of the fleet.

    Attributes:
        learners: numbers of learners for `decoupled`; data-parallel training is one learner.
        sizes: times `machines`, one column each.
        spares: whether other machines stand in for failed ones when training is not elastic; if not,
            it waits until all are back.
        seeds: how often each cell is simulated; figures are means.
    """

    methods: tuple[Method, ...] = METHODS
    learners: tuple[int, ...]
    sizes: tuple[float, ...] = (1.0,)
    spares: bool = False
    horizon_s: float = 200_000.0
    seeds: int = 3
    times: Times
    machines: tuple[Machines, ...]
    protocol: Protocol = Protocol()


def preset_text(name: str) -> str:
    """The TOML of a preset. Raises: ConfigError."""
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}", hint=f"There are: {', '.join(PRESETS)}")
    return (files("ddl.simulate") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def preset(name: str) -> Study:
    """A study that comes with `ddl`. Raises: ConfigError."""
    return read(preset_text(name), where=f"preset {name}")


def file_text(file: Path) -> str:
    """The TOML of a file. Raises: ConfigError: it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}",
            hint="`ddl simulate --preset lab --toml` prints one to begin with",
        ) from error


def read(text: str, *, where: str) -> Study:
    """A study from TOML.

    Raises: ConfigError: no TOML; unknown keys (the nearest is named), missing ones and wrong types,
        all at once; values that cannot work.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    _refuse(_mistakes(raw, Study), where=where)
    study = msgspec.convert(raw, Study)
    check(study, where=where)
    return study


def check(study: Study, *, where: str) -> None:
    """Refuse what cannot be simulated. Raises: ConfigError with all mistakes."""
    _refuse(_impossible(study), where=where)


def _impossible(study: Study) -> Iterator[str]:
    for key, number in _numbers(study):
        least = 0.0 if key.endswith(MAY_BE_ZERO) else None
        if not (number > 0 or number == least) or not math.isfinite(number):
            what = "a finite number, 0 or more" if least == 0 else "a finite number above 0"
            yield f"{key} = {number!r}: must be {what}"
    try:
        config.replace(study.protocol.settings, {})
    except ConfigError as error:
        yield f"protocol.settings: {error}"
    for key in ("methods", "learners", "sizes", "machines"):
        if not getattr(study, key):
            yield f"{key} is empty, so there is nothing to simulate"


def _refuse(mistakes: Iterable[str], *, where: str) -> None:
    """Raises: ConfigError if there are any."""
    told = list(mistakes)
    if len(told) == 1:
        raise ConfigError(f"{where}: {told[0]}")
    if told:
        lines = "".join(f"\n  {mistake}" for mistake in told)
        raise ConfigError(f"{where}: {len(told)} things are wrong:{lines}")


def _mistakes(raw: Mapping[str, Any], kind: type[Section], path: str = "") -> Iterator[str]:
    """Of a table that is to become a `kind`: unknown and missing keys, values of a wrong type."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        name = f"{path}{key}"
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(fields)}"
            yield f"unknown key {name!r}. {hint}"
            continue
        expected = fields[key].type
        inner = next((k for k in (expected, *get_args(expected)) if _is_section(k)), None)
        if inner is None:
            yield from _wrong_type(name, value, expected)
            continue
        tables = [value] if inner is expected else value
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            shape = f"a table [{name}]" if inner is expected else f"tables [[{name}]]"
            yield f"{name} = {value!r}: must be {shape}"
            continue
        for table in tables:
            yield from _mistakes(table, inner, f"{name}.")
    for key, field in fields.items():
        if field.required and key not in raw:
            yield f"{path}{key} is missing"


def _wrong_type(name: str, value: object, expected: Any) -> Iterator[str]:
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        yield f"{name} = {value!r}: {error}"


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a study, with their keys; those of a run's settings have rules of their own."""
    if isinstance(value, Settings):
        return
    if isinstance(value, Section):
        for name in value.__struct_fields__:
            yield from _numbers(getattr(value, name), f"{key}.{name}".lstrip("."))
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value
