"""What is simulated: machines, how they fail, and who trains on them. One TOML file, or a preset."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_type_hints

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

    Raises: ConfigError: no TOML, an unknown key (the nearest is named), a missing one, a wrong type,
        or a value that cannot work.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    for path, key, known in _unknown(raw, Study):
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}"
        raise ConfigError(f"{where}: unknown key {path + key!r}", hint=hint)
    try:
        study = msgspec.convert(raw, Study)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    check(study, where=where)
    return study


def check(study: Study, *, where: str) -> None:
    """Refuse what cannot be simulated. Raises: ConfigError."""
    for key, number in _numbers(study):
        least = 0.0 if key.endswith(MAY_BE_ZERO) else None
        if not (number > 0 or number == least) or not math.isfinite(number):
            what = "a finite number, 0 or more" if least == 0 else "a finite number above 0"
            raise ConfigError(f"{where}: {key} = {number!r}: must be {what}")
    try:
        config.replace(study.protocol.settings, {})
    except ConfigError as error:
        raise ConfigError(f"{where}: protocol.settings: {error}") from error
    for key in ("methods", "learners", "sizes", "machines"):
        if not getattr(study, key):
            raise ConfigError(f"{where}: {key} is empty, so there is nothing to simulate")


def _unknown(
    raw: Mapping[str, Any], kind: type, path: str = ""
) -> Iterator[tuple[str, str, list[str]]]:
    """Every key that `kind` does not have: where it stands, the key, and those that are known."""
    hints = get_type_hints(kind)
    for key, value in raw.items():
        if key not in hints:
            yield path, key, list(hints)
            continue
        inner = next((k for k in (hints[key], *get_args(hints[key])) if _is_section(k)), None)
        for table in value if isinstance(value, list) else [value]:
            if inner is not None and isinstance(table, dict):
                yield from _unknown(table, inner, f"{path}{key}.")


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
