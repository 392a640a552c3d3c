"""Settings of a run: their names, defaults, limits, and where each value came from.

The text of `run.toml` maps one to one onto `Settings`. Who may change what:

* sections in `FIXED` are settled at genesis and stand in `run.json`;
* sections in `LIVE` may change during the run, as a `settings` record in the log;
* sections in `LOCAL` belong to one machine and are never stored.

Values are taken in the order default < file < environment < flag.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from ddl.errors import ConfigError
from ddl.limits import LIMITS, conflicts
from ddl.names import check_run_name, read_count

Scalar = bool | int | float | str

FLAG: Final = "flag"
"""Origin of a setting that was given on the command line."""

CHANGE: Final = "change"
"""Origin of one that is to change in a run under way."""

_SPOKEN: Final = {FLAG: "command line: ", CHANGE: ""}
"""How an origin begins an error, where that is not its own name."""


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
    preset: Literal["fixed", "auto"] = "auto"
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

CHOSEN: Final = ("outer.lr", "outer.momentum")
"""Chosen by the run itself, and by nobody else, where `outer.preset = "auto"`; see `by_hand`."""

ARGUMENT: Final = "task.args."
"""Before the name of an argument of the task, where it is given alone."""

ENVIRONMENT: Final = {"DDL_REDIS": "redis.url", "DDL_STORE": "store.url"}
"""Short names; every other setting is `DDL_<SECTION>_<KEY>`, for example DDL_ROUND_QUORUM."""

_TABLE_PREFIXES: Final = tuple(f"DDL_{section.upper()}_" for section in Settings.__struct_fields__)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and, for each dotted key, where its value came from.

    `outdone`: what the file or the environment says of settings that may change during a run and of
    which a flag says otherwise.
    """

    settings: Settings
    origins: dict[str, str]
    outdone: dict[str, Scalar] = {}


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
        flags: dotted key -> text, as from `--set round.quorum=3`; `task.args.NAME` is one argument
            of the task, beside the others.
    Raises:
        ConfigError: unreadable file, unknown key (the nearest is named), wrong type, impossible
            value; every mistake there is, a line each, with where it was made.
    """
    reading = _Reading({})
    if file is not None:
        reading.take_tables(_read_toml(file), str(file))
    for variable, text in (environment or {}).items():
        reading.take_variable(variable, text)
    without_flags = {section: dict(table) for section, table in reading.values.items()}
    for key, text in (flags or {}).items():
        if key.startswith(ARGUMENT):
            reading.take_argument(key.removeprefix(ARGUMENT), text, FLAG)
        else:
            reading.take_text(key, text, FLAG)
    reading.take_implied()
    settings = reading.settings()
    if settings.outer.preset == "auto":
        reading.refuse_given(
            CHOSEN, 'chosen by outer.preset = "auto"', 'set outer.preset = "fixed"'
        )
    if settings.adopt.mode != "blend":
        reading.refuse_given(("adopt.alpha",), "for blending", 'set adopt.mode = "blend"')
    outdone = {
        f"{section}.{name}": value
        for section, table in without_flags.items()
        for name, value in table.items()
        if section in LIVE and value != getattr(getattr(settings, section), name)
    }
    return Loaded(settings=settings, origins=reading.origins, outdone=outdone)


@cache
def all_keys() -> tuple[str, ...]:
    """Every dotted key, in the order of `run.toml`."""
    sections = Settings.__struct_fields__
    return tuple(f"{s}.{k}" for s in sections for k in _section(s).__struct_fields__)


def known_key(key: str, where: str) -> str:
    """Return `key` if it is a setting. Raises: ConfigError that names the nearest one."""
    keys = all_keys()
    if key in keys:
        return key
    bare = key.rpartition(".")[2]
    elsewhere = [k for k in keys if k.rpartition(".")[2] == bare]  # right key, wrong table
    near = difflib.get_close_matches(key, elsewhere or keys, n=1, cutoff=0.0 if elsewhere else 0.5)
    hint = f"Did you mean {near[0]!r}?" if near else "See `ddl config show` for all settings"
    raise ConfigError(f"{_begins(where)}unknown setting {key!r}", hint=hint)


def get(settings: Settings, key: str) -> Any:
    """The value of a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def replace(settings: Settings, changes: Mapping[str, Scalar], *, where: str = CHANGE) -> Settings:
    """Settings with dotted `changes` applied and checked; `where` they were made, for errors.

    Raises: ConfigError, as `load`.
    """
    reading = _Reading(msgspec.to_builtins(settings))
    for key, value in changes.items():
        reading.take(key, value, where)
    return reading.settings()


def amend(settings: Settings, changes: Mapping[str, Scalar]) -> Settings:
    """`settings` with changes that a run under way allows. Raises: ConfigError."""
    for key in changes:
        section = known_key(key, CHANGE).partition(".")[0]
        if section not in LIVE:
            why = "is fixed at genesis" if section in FIXED else "belongs to one machine"
            raise ConfigError(
                f"{key} {why} and cannot change during a run",
                hint=f"Tables that can: {', '.join(LIVE)}",
            )
    return replace(settings, changes)


def by_hand(changes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """`changes`, and where they choose the outer step, but no preset, the one that keeps to such a choice."""
    alone = "outer.preset" not in changes and any(key in changes for key in CHOSEN)
    return {**changes, "outer.preset": "fixed"} if alone else dict(changes)


def read_changes(texts: Mapping[str, str]) -> dict[str, Scalar]:
    """Changes as they are typed, dotted key -> text, as values of the right type, with what they imply.

    Raises: ConfigError: unknown keys (the nearest is named), or values of another type.
    """
    reading = _Reading({})
    for key, text in texts.items():
        reading.take_text(key, text, CHANGE)
    reading.refuse()
    read = {key: reading.values[key.partition(".")[0]][key.partition(".")[2]] for key in texts}
    return by_hand(read)


def check(settings: Settings) -> None:
    """Refuse values that cannot work, alone or together. Raises: ConfigError."""
    _Reading(msgspec.to_builtins(settings)).settings()


class _Reading:
    """Values as they come in, where each came from, and what is wrong with them.

    Attributes:
        values: by table and name.
        origins: of every key there is; "default" if nothing was taken for it.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values: dict[str, dict[str, Any]] = values
        self.origins = dict.fromkeys(all_keys(), "default")
        self._problems: list[ConfigError] = []

    def take_tables(self, raw: Mapping[str, Any], where: str) -> None:
        """All of a `run.toml`."""
        sections = Settings.__struct_fields__
        for section, table in raw.items():
            if section not in sections:
                near = difflib.get_close_matches(section, sections, n=1, cutoff=0.5)
                known = f"Known tables: {', '.join(sections)}"
                hint = f"Did you mean [{near[0]}]?" if near else known
                self._problem(where, f"unknown table [{section}]", hint)
            elif not isinstance(table, dict):
                self._problem(where, f"{section} must be a table [{section}], got {table!r}")
            else:
                for name, value in table.items():
                    self.take(f"{section}.{name}", value, where)

    def take_variable(self, name: str, text: str) -> None:
        """A variable of the environment; nothing, if it is none of ours or empty."""
        if (key := _variables().get(name)) is not None:
            if text:
                self.take_text(key, text, f"environment {name}")
        elif name.startswith(_TABLE_PREFIXES):
            near = difflib.get_close_matches(name, _variables(), n=1)
            hint = f"Did you mean {near[0]}?" if near else "See `ddl config show` for all settings"
            self._problem(f"environment {name}", "unknown setting", hint)

    def take_text(self, key: str, text: str, where: str) -> None:
        """A value as it was typed."""
        value = _read_text(_kind(key), text) if key in self.origins else text
        self.take(key, value, where)

    def take_argument(self, name: str, text: str, where: str) -> None:
        """One argument of the task; the others stay."""
        value: Any = text
        with suppress(tomllib.TOMLDecodeError):
            value = tomllib.loads(f"x = {text}")["x"]
        others = self.values.get("task", {}).get("args", {})
        self.take("task.args", {**others, name: value}, where)

    def take(self, key: str, value: Any, where: str) -> None:
        """A value of a type that TOML has."""
        try:
            kind = _kind(known_key(key, where))
        except ConfigError as error:
            self._problems.append(error)
            return
        if wanted := _wrong_type(kind, value):
            self._problem(where, f"{key} = {value!r}: must be {wanted}")
            return
        section, _, name = key.partition(".")
        self.values.setdefault(section, {})[name] = value
        self.origins[key] = where

    def take_implied(self) -> None:
        """What was taken implies more (`by_hand`); it comes from where that came from."""
        given = {key: "" for key, where in self.origins.items() if where != "default"}
        for key, value in by_hand(given).items():
            if key not in given:
                self.take(key, value, self._where(*CHOSEN))

    def settings(self) -> Settings:
        """What was taken, with the defaults for all else. Raises: ConfigError with all mistakes."""
        settings = msgspec.convert(self.values, Settings)
        for key, judge in LIMITS.items():
            value = get(settings, key)
            if wanted := judge(value):
                self._problem(self._where(key), f"{key} = {value!r}: must be {wanted}")
        try:
            check_run_name(settings.run.name)
        except ConfigError as error:
            self._problem(self._where("run.name"), error.args[0], error.hint)
        if not self._problems:  # else what stands beside it may be none
            for keys, text, hint in conflicts(settings):
                self._problem(self._where(*keys), text, hint)
        self.refuse()
        return settings

    def refuse_given(self, keys: Iterable[str], why: str, else_: str) -> None:
        """Raises: ConfigError if one of `keys` was given, which would have no effect."""
        for key in keys:
            if where := self._where(key):
                self._problem(where, f"{key} is {why}", f"Leave it out, or {else_}")
        self.refuse()

    def refuse(self) -> None:
        """Raises: ConfigError if anything was wrong."""
        if len(self._problems) == 1:
            raise self._problems[0]
        if self._problems:
            lines = "".join(f"\n  {problem}" for problem in self._problems)
            raise ConfigError(f"{len(self._problems)} settings cannot be used:{lines}")

    def _problem(self, where: str, text: str, hint: str = "") -> None:
        self._problems.append(ConfigError(_begins(where) + text, hint=hint))

    def _where(self, *keys: str) -> str:
        """Where the values of these keys came from; empty if they are all defaults."""
        given = (self.origins[key] for key in keys if self.origins[key] != "default")
        return ", ".join(dict.fromkeys(given))


def _begins(where: str) -> str:
    """How an error begins that tells where a value came from: one origin, several, or none."""
    return _SPOKEN.get(where, f"{where}: " if where else "")


def _read_toml(file: Path) -> dict[str, Any]:
    """Raises: ConfigError, also for a file that sets nothing: it was hardly meant."""
    how = "`ddl init` writes one"
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not file.suffix:  # a run's name, rather
            how = f"Give a run.toml: {how}, and a run that exists has the one it was created with"
        raise ConfigError(f"{file} does not exist", hint=how) from None
    except IsADirectoryError:
        how = "Give the run.toml in it"
        if (file / "run.json").is_file():
            how = f"It is a run in a store: {file.resolve().as_uri()}"
        raise ConfigError(f"{file} is a folder", hint=how) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text file", hint=f"A run.toml is; {how}") from None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}", hint="Check who may read it"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{file} is not valid TOML: {error}", hint='Texts stand in quotes: key = "text"'
        ) from error
    if not raw:
        raise ConfigError(f"{file} sets nothing", hint=how)
    return raw


@cache
def _variables() -> dict[str, str]:
    """Variable of the environment -> key."""
    return {f"DDL_{key.upper().replace('.', '_')}": key for key in all_keys()} | ENVIRONMENT


def _read_text(kind: Any, text: str) -> Any:
    """The value that was typed for a setting of this kind; `text` itself if it is none."""
    with suppress(ValueError, KeyError):
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind is int:
            number = read_count(text)
            return int(text) if number is None else number
        if kind is float:
            return float(text)
        if kind == dict[str, Scalar]:
            return tomllib.loads(f"x = {text}")["x"]
    return text


def _wrong_type(kind: Any, value: Any) -> str:
    """What a value must be that is not of this kind; empty if it is."""
    if choices := get_args(kind) if get_origin(kind) is Literal else ():
        return "" if value in choices else f"one of {', '.join(choices)}"
    if kind == dict[str, Scalar]:
        good = isinstance(value, dict) and all(isinstance(v, Scalar) for v in value.values())
        return "" if good else 'a table such as {size = 3, data = "text"}'
    if kind is float and type(value) is int:
        return ""  # whole numbers are welcome
    return "" if type(value) is kind else _KINDS[kind]


_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@cache
def _kind(key: str) -> Any:
    section, _, name = key.partition(".")
    return get_type_hints(_section(section))[name]


@cache
def _section(name: str) -> type[Section]:
    kind = get_type_hints(Settings)[name]
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    return kind
