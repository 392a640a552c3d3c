"""Settings of a run: their names, defaults, limits, and where each value came from.

The text of `run.toml` maps one to one onto `Settings`. Who may change what:

* sections in `FIXED` are settled at genesis and stand in `run.json`;
* sections in `LIVE` may change during the run, as a `settings` record in the log;
* sections in `LOCAL` belong to one machine and are never stored.

Values are taken in the order default < file < environment < flag.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_type_hints

import msgspec

from ddl.errors import ConfigError
from ddl.names import check_run_name

Scalar = bool | int | float | str


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of `run.toml`."""


class RunSettings(Section, frozen=True, kw_only=True):
    name: str = "demo"
    seed: int = 0


class TaskSettings(Section, frozen=True, kw_only=True):
    file: str = "task.py"
    digest: Literal["warn", "refuse"] = "warn"
    args: dict[str, Scalar] = {}


class RedisSettings(Section, frozen=True, kw_only=True):
    url: str = "redis://127.0.0.1:6379/0"


class StoreSettings(Section, frozen=True, kw_only=True):
    url: str = "file:///var/lib/ddl"
    endpoint_url: str = ""
    region: str = ""
    part_bytes: int = 16 * 1024 * 1024


class FragmentSettings(Section, frozen=True, kw_only=True):
    num: int = 0
    publish_dtype: Literal["float32", "bfloat16"] = "float32"


class RoundSettings(Section, frozen=True, kw_only=True):
    every_steps: int = 24
    overlap_steps: int = 2
    in_flight: int = 2
    quorum: int = 1
    grace_ratio: float = 0.5
    deadline_s: float = 0.0
    staleness_max: int = 4
    staleness_decay: float = 1.0


class MergeSettings(Section, frozen=True, kw_only=True):
    method: Literal["rda", "mean"] = "rda"


class AdoptSettings(Section, frozen=True, kw_only=True):
    mode: Literal["carry", "overwrite", "blend"] = "carry"
    alpha: float = 0.5


class CodecSettings(Section, frozen=True, kw_only=True):
    up: Literal["fp32", "bf16", "int8", "int4"] = "fp32"
    down: Literal["full", "int4-step"] = "full"


class OuterSettings(Section, frozen=True, kw_only=True):
    lr: float = 0.6
    momentum: float = 0.3


class GateSettings(Section, frozen=True, kw_only=True):
    norm_factor: float = 10.0
    calm_rounds: int = 5
    refusals_max: int = 3


class LivenessSettings(Section, frozen=True, kw_only=True):
    beat_s: float = 1.0
    suspect_s: float = 5.0
    gone_s: float = 15.0
    lease_s: float = 10.0
    max_offline_s: float = 3600.0
    offline_action: Literal["pause", "exit"] = "pause"
    drain_s: float = 25.0


class HealthSettings(Section, frozen=True, kw_only=True):
    rollback: Literal["off", "hold", "auto"] = "hold"
    loss_jump_ratio: float = 0.2
    bad_rounds: int = 3


class StopSettings(Section, frozen=True, kw_only=True):
    tokens: int = 0
    commits: int = 0


class KeepSettings(Section, frozen=True, kw_only=True):
    versions: int = 3
    every: int = 50
    contributions: Literal["receipted", "all"] = "receipted"


class Settings(Section, frozen=True, kw_only=True):
    """All settings of a run, one field per table of `run.toml` (design 9)."""

    run: RunSettings = RunSettings()
    task: TaskSettings = TaskSettings()
    redis: RedisSettings = RedisSettings()
    store: StoreSettings = StoreSettings()
    fragments: FragmentSettings = FragmentSettings()
    round: RoundSettings = RoundSettings()
    merge: MergeSettings = MergeSettings()
    adopt: AdoptSettings = AdoptSettings()
    codec: CodecSettings = CodecSettings()
    outer: OuterSettings = OuterSettings()
    gate: GateSettings = GateSettings()
    liveness: LivenessSettings = LivenessSettings()
    health: HealthSettings = HealthSettings()
    stop: StopSettings = StopSettings()
    keep: KeepSettings = KeepSettings()


FIXED: Final = ("run", "task", "store", "fragments", "merge", "adopt", "codec")
LIVE: Final = ("round", "outer", "gate", "liveness", "health", "stop", "keep")
LOCAL: Final = ("redis",)

STALENESS_LIMIT: Final = 30
"""Highest `round.staleness_max`: the log remembers the digests of so many versions."""

ENVIRONMENT: Final = {"DDL_REDIS": "redis.url", "DDL_STORE": "store.url"}
"""Short names; every other setting is `DDL_<SECTION>_<KEY>`, for example DDL_ROUND_QUORUM."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and, for each dotted key, where its value came from."""

    settings: Settings
    origins: dict[str, str]


def load(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Loaded:
    """Read settings from all sources, check them, and remember their origin.

    Args:
        file: a `run.toml`, or None for the defaults.
        environment: variables to look at (`DDL_...`); others, and empty ones, are ignored.
        flags: dotted key -> text, as from `--set round.quorum=3`.
    Raises:
        ConfigError: unreadable file, unknown key (the nearest is named), wrong type, impossible value.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(all_keys(), "default")

    def take(key: str, value: Any, origin: str) -> None:
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = value
        origins[key] = origin

    if file is not None:
        for key, value in _flatten(_read_toml(file), str(file)):
            take(key, value, str(file))
    for variable, key in _environment_keys(environment or {}):
        take(
            key, _from_text(key, (environment or {})[variable], variable), f"environment {variable}"
        )
    for key, text in (flags or {}).items():
        known_key(key, "flag")
        take(key, _from_text(key, text, f"flag {key}"), "flag")
    settings = _convert(values, origins)
    check(settings)
    return Loaded(settings=settings, origins=origins)


def all_keys() -> list[str]:
    """Every dotted key, in the order of `run.toml`."""
    return [f"{s}.{k}" for s in Settings.__struct_fields__ for k in _section(s).__struct_fields__]


def known_key(key: str, where: str) -> str:
    """Return `key` if it is a setting. Raises: ConfigError that names the nearest one."""
    keys = all_keys()
    if key in keys:
        return key
    bare = key.rpartition(".")[2]
    elsewhere = [k for k in keys if k.rpartition(".")[2] == bare]  # right key, wrong table
    near = difflib.get_close_matches(key, elsewhere or keys, n=1, cutoff=0.0 if elsewhere else 0.5)
    hint = f"Did you mean {near[0]!r}?" if near else "See `ddl config show` for all settings"
    raise ConfigError(f"{where}: unknown setting {key!r}", hint=hint)


def get(settings: Settings, key: str) -> Any:
    """The value of a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def replace(settings: Settings, changes: Mapping[str, Scalar]) -> Settings:
    """Settings with dotted `changes` applied and checked. Raises: ConfigError."""
    raw: dict[str, Any] = msgspec.to_builtins(settings)
    for key, value in changes.items():
        known_key(key, "change")
        section, _, name = key.partition(".")
        raw[section][name] = value
    changed = _convert(raw, {})
    check(changed)
    return changed


def amend(settings: Settings, changes: Mapping[str, Scalar]) -> Settings:
    """`settings` with changes that a run under way allows. Raises: ConfigError."""
    for key in changes:
        section = known_key(key, "change").partition(".")[0]
        if section not in LIVE:
            why = "is fixed at genesis" if section in FIXED else "belongs to one machine"
            raise ConfigError(
                f"{key} {why} and cannot change during a run",
                hint=f"Tables that can: {', '.join(LIVE)}",
            )
    return replace(settings, changes)


def read_changes(texts: Mapping[str, str]) -> dict[str, Scalar]:
    """Changes as they are typed, dotted key -> text, as values of the right type.

    Raises: ConfigError: an unknown key (the nearest is named), or a value of another type.
    """
    return {
        known_key(key, "change"): _from_text(key, text, f"change {key}")
        for key, text in texts.items()
    }


def check(settings: Settings) -> None:
    """Refuse values that cannot work, alone or together. Raises: ConfigError."""
    check_run_name(settings.run.name)
    s = settings
    _at_least(s, "run.seed", 0)
    _at_least(s, "store.part_bytes", 5 * 1024 * 1024)
    _at_least(s, "fragments.num", 0)
    for key in ("round.every_steps", "round.overlap_steps", "round.in_flight", "round.quorum"):
        _at_least(s, key, 1)
    _between(s, "round.staleness_max", 0, STALENESS_LIMIT)
    _at_least(s, "round.deadline_s", 0)
    _between(s, "round.grace_ratio", 0.0, 1.0, open_top=True)
    _between(s, "round.staleness_decay", 0.0, 1.0)
    _between(s, "adopt.alpha", 0.0, 1.0)
    _between(s, "outer.momentum", 0.0, 1.0, open_top=True)
    _above(s, "outer.lr", 0.0)
    _above(s, "gate.norm_factor", 1.0)
    _at_least(s, "gate.calm_rounds", 0)
    _at_least(s, "gate.refusals_max", 1)
    for key in ("beat_s", "suspect_s", "gone_s", "lease_s", "max_offline_s", "drain_s"):
        _above(s, f"liveness.{key}", 0.0)
    _above(s, "health.loss_jump_ratio", 0.0)
    _at_least(s, "health.bad_rounds", 1)
    for key in ("stop.tokens", "stop.commits", "keep.every"):
        _at_least(s, key, 0)
    _at_least(s, "keep.versions", 1)
    if s.round.overlap_steps >= s.round.every_steps:
        raise ConfigError(
            f"round.overlap_steps ({s.round.overlap_steps}) must be less than "
            f"round.every_steps ({s.round.every_steps})",
            hint=f"Use at most {s.round.every_steps - 1}",
        )
    if s.fragments.num and s.round.in_flight > s.fragments.num:
        raise ConfigError(
            f"round.in_flight ({s.round.in_flight}) is more than fragments.num "
            f"({s.fragments.num}): a fragment has one open round at most",
            hint=f"Use round.in_flight = {s.fragments.num}",
        )
    if s.fragments.num > s.round.every_steps:
        raise ConfigError(
            f"fragments.num ({s.fragments.num}) is more than round.every_steps "
            f"({s.round.every_steps}): a learner would hand in fragments with no step on them",
            hint=f"Use fragments.num = {s.round.every_steps} or fewer",
        )
    live = s.liveness
    if not 3 * live.beat_s <= live.suspect_s <= live.gone_s:
        raise ConfigError(
            f"liveness.beat_s ({live.beat_s:g}), suspect_s ({live.suspect_s:g}) and gone_s "
            f"({live.gone_s:g}) must satisfy 3 * beat_s <= suspect_s <= gone_s",
            hint=f"Use suspect_s = {3 * live.beat_s:g} or more, and gone_s no less than that",
        )
    if live.lease_s < 3 * live.beat_s:
        raise ConfigError(
            f"liveness.lease_s ({live.lease_s:g}) is less than 3 beats of {live.beat_s:g} s",
            hint=f"Use lease_s = {3 * live.beat_s:g} or more",
        )


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist", hint="`ddl init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _flatten(raw: Mapping[str, Any], where: str) -> Iterable[tuple[str, Any]]:
    sections = Settings.__struct_fields__
    for section, table in raw.items():
        if section not in sections:
            near = difflib.get_close_matches(section, sections, n=1, cutoff=0.5)
            hint = f"Did you mean [{near[0]}]?" if near else f"Known tables: {', '.join(sections)}"
            raise ConfigError(f"{where}: unknown table [{section}]", hint=hint)
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: {section} must be a table [{section}], got {table!r}")
        for name, value in table.items():
            yield known_key(f"{section}.{name}", where), value


def _environment_keys(environment: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Variables that are set, and their keys. Raises: ConfigError: a setting that does not exist."""
    names = {f"DDL_{key.upper().replace('.', '_')}": key for key in all_keys()} | ENVIRONMENT
    tables = tuple(f"DDL_{section.upper()}_" for section in Settings.__struct_fields__)
    for name in environment:
        if name.startswith(tables) and name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]}?" if near else "See `ddl config show` for all settings"
            raise ConfigError(f"environment: no setting is called {name}", hint=hint)
    return [(name, key) for name, key in names.items() if environment.get(name)]


def _from_text(key: str, text: str, where: str) -> Any:
    section, _, name = key.partition(".")
    kind = get_type_hints(_section(section))[name]
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind is int:
            return int(text.replace("_", ""))
        if kind is float:
            return float(text)
        if kind in (dict, dict[str, Scalar]):
            return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, KeyError):
        expected = getattr(kind, "__name__", str(kind))
        raise ConfigError(f"{where}: expected {expected}, got {text!r}") from None
    return text


def _convert(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        # strict=False would take "3" for 3; whole numbers are welcome where a float is meant
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`")
        section, _, name = key.partition(".")
        value = values.get(section, {}).get(name)
        where = origins.get(key, "")
        allowed = _choices(section, name)
        hint = f"Allowed: {', '.join(allowed)}" if allowed else ""
        prefix = f"{where}: " if where and where != "default" else ""
        message = re.sub(r"^Invalid enum value.*", "not one of the allowed values", message)
        raise ConfigError(f"{prefix}{key} = {value!r}: {message}", hint=hint) from None


def _choices(section: str, name: str) -> list[str]:
    if section not in Settings.__struct_fields__:
        return []
    kind = get_type_hints(_section(section)).get(name)
    return (
        [str(a) for a in get_args(kind)] if kind and str(kind).startswith("typing.Literal") else []
    )


@cache
def _section(name: str) -> type[Section]:
    kind = get_type_hints(Settings)[name]
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    return kind


def _at_least(settings: Settings, key: str, least: float) -> None:
    value = get(settings, key)
    if not value >= least:
        raise ConfigError(f"{key} = {value!r}: must be at least {least:g}")
    if value == float("inf"):  # no JSON number, so no record could hold it
        raise ConfigError(f"{key} = {value!r}: must be finite")


def _above(settings: Settings, key: str, bound: float) -> None:
    value = get(settings, key)
    if not bound < value < float("inf"):
        raise ConfigError(f"{key} = {value!r}: must be a finite number above {bound:g}")


def _between(
    settings: Settings, key: str, low: float, high: float, *, open_top: bool = False
) -> None:
    value = get(settings, key)
    if not (low <= value < high if open_top else low <= value <= high):
        top = "below" if open_top else "at most"
        raise ConfigError(f"{key} = {value!r}: must be at least {low:g} and {top} {high:g}")
