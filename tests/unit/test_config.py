"""Settings: where they come from, which cannot work, and what a mistake is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddl import config
from ddl.config import FIXED, LIVE, LOCAL, OuterSettings, Settings, all_keys, load
from ddl.core.log import HISTORY
from ddl.errors import ConfigError
from ddl.limits import LIMITS, STALENESS_LIMIT
from ddl.protocol.wire import canonical, parse


def written(folder: Path, text: str) -> Path:
    file = folder / "run.toml"
    file.write_text(text, encoding="utf-8")
    return file


def error_of(**sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**sources)
    return str(caught.value)


# ---- sources ----------------------------------------------------------------------------------


def test_defaults_are_the_documented_ones() -> None:
    """The table of design 9, and every value of it can be used as it is."""
    loaded = load()
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert tuple(loaded.origins) == all_keys()
    assert loaded.settings.round.every_steps == 24
    assert loaded.settings.outer.lr == 0.6
    assert loaded.settings.adopt.mode == "carry"


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    """Quorum from all sources at once; each step away shows the next; the origin is remembered."""
    file = written(tmp_path, "[round]\nquorum = 2\nevery_steps = 12\n")
    environment = {"DDL_ROUND_QUORUM": "3", "PATH": "/bin"}
    flags = {"round.quorum": "4"}
    sources: list[tuple[dict[str, Any], int, str]] = [
        ({"file": file, "environment": environment, "flags": flags}, 4, "flag"),
        ({"file": file, "environment": environment}, 3, "environment DDL_ROUND_QUORUM"),
        ({"file": file}, 2, str(file)),
        ({}, 1, "default"),
    ]
    for given, quorum, origin in sources:
        loaded = load(**given)
        assert loaded.settings.round.quorum == quorum
        assert loaded.origins["round.quorum"] == origin
    assert load(file=file).origins["round.every_steps"] == str(file)
    assert load(file=file).origins["round.in_flight"] == "default"


def test_short_names_in_the_environment() -> None:
    """DDL_REDIS and DDL_STORE; an empty variable is as none."""
    environment = {"DDL_REDIS": "redis://h/1", "DDL_STORE": "file:///x", "DDL_ROUND_QUORUM": ""}
    loaded = load(environment=environment)
    assert (loaded.settings.redis.url, loaded.settings.store.url) == ("redis://h/1", "file:///x")
    assert loaded.settings.round.quorum == 1


def test_text_becomes_the_type_of_its_setting() -> None:
    """Numbers, words and a table of task arguments."""
    flags = {
        "round.every_steps": "1_000",
        "outer.lr": "1e-1",
        "merge.method": "mean",
        "run.name": "a-b",
        "task.args": '{size = 3, data = "x", deep = true}',
    }
    settings = load(flags=flags).settings
    assert settings.round.every_steps == 1000
    assert settings.outer.lr == 0.1
    assert settings.merge.method == "mean"
    assert settings.run.name == "a-b"
    assert settings.task.args == {"size": 3, "data": "x", "deep": True}


def test_what_the_run_chooses_cannot_be_given_as_well() -> None:
    """It would have no effect; wherever the two were said, and with what to do."""
    flags = {"outer.preset": "auto", "outer.momentum": "0.9"}
    assert error_of(flags=flags) == (
        'command line: outer.momentum is chosen by outer.preset = "auto". '
        'Leave it out, or set outer.preset = "fixed"'
    )
    assert load(flags=flags | {"outer.preset": "fixed"}).settings.outer.momentum == 0.9
    assert load(flags={"outer.preset": "auto"}).settings.outer.preset == "auto"


def test_an_outer_step_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    """lr or momentum alone mean the fixed preset, and `config show` tells where that comes from."""
    assert load().settings.outer.preset == "auto"
    loaded = load(written(tmp_path, "[outer]\nlr = 0.5\n"), flags={"round.quorum": "2"})
    assert loaded.settings.outer == OuterSettings(preset="fixed", lr=0.5)
    assert (
        loaded.origins["outer.preset"] == loaded.origins["outer.lr"] == str(tmp_path / "run.toml")
    )
    assert config.read_changes({"outer.momentum": "0.5"}) == {
        "outer.momentum": 0.5,
        "outer.preset": "fixed",
    }
    both = {"outer.momentum": "0.5", "outer.preset": "auto"}
    assert config.read_changes(both) == {"outer.momentum": 0.5, "outer.preset": "auto"}
    assert config.read_changes({"round.quorum": "3"}) == {"round.quorum": 3}


def test_a_setting_of_another_mode_is_no_use() -> None:
    """It would be taken for one that does something."""
    with pytest.raises(
        ConfigError, match=r"command line: adopt.alpha is for blending\. Leave it out, or set"
    ):
        config.load(flags={"adopt.alpha": "0.7"})
    blending = config.load(flags={"adopt.alpha": "0.7", "adopt.mode": "blend"})
    assert blending.settings.adopt.alpha == 0.7


def test_one_argument_of_the_task(tmp_path: Path) -> None:
    """By its own key, beside those of the file; a number or a truth where it reads as one."""
    file = tmp_path / "run.toml"
    file.write_text('[task]\nargs = { model = "conv", width = 3 }\n')
    flags = {"task.args.model": "plain", "task.args.deep": "true", "task.args.base": "a/b.c"}
    loaded = config.load(file, flags=flags)
    assert loaded.settings.task.args == {
        "model": "plain",
        "width": 3,
        "deep": True,
        "base": "a/b.c",
    }
    assert loaded.origins["task.args"] == "flag"
    with pytest.raises(ConfigError, match="must be a table such as"):
        config.load(file, flags={"task.args.model": "[1, 2]"})


def test_whole_numbers_are_welcome_where_a_float_is_meant(tmp_path: Path) -> None:
    """`lr = 1` is 1.0; the other way round is an error."""
    assert load(written(tmp_path, "[outer]\nlr = 1\n")).settings.outer.lr == 1.0
    message = error_of(file=written(tmp_path, "[round]\nquorum = 1.5\n"))
    assert "round.quorum = 1.5: must be a whole number" in message


# ---- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[round]\nquorun = 2\n", "unknown setting 'round.quorun'. Did you mean 'round.quorum'?"),
        ("[merge]\nquorum = 2\n", "unknown setting 'merge.quorum'. Did you mean 'round.quorum'?"),
        ("[store]\nuri = 'x'\n", "unknown setting 'store.uri'. Did you mean 'store.url'?"),
        ("[round]\nzzzzzzzz = 2\n", "See `ddl config show`"),
        ("[rounds]\nquorum = 2\n", "unknown table [rounds]. Did you mean [round]?"),
        ("[zzz]\nquorum = 2\n", "unknown table [zzz]. Known tables: run, task, redis"),
        ("round = 3\n", "round must be a table [round], got 3"),
        ("[round\n", "is not valid TOML"),
        ("[merge]\nmethod = 'median'\n", "merge.method = 'median': must be one of rda, mean"),
        ("[merge]\nmethod = 3\n", "merge.method = 3: must be one of rda, mean"),
        ("[outer]\nlr = true\n", "outer.lr = True: must be a number"),
        ("[run]\nname = 3\n", "run.name = 3: must be a text"),
        ("[task]\nargs = {a = [1]}\n", "must be a table such as {size = 3"),
        ("[round]\nquorum = '2'\n", "round.quorum = '2': must be a whole number"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, expected: str) -> None:
    """The file is named, the thing, the value, and the nearest right one."""
    file = written(tmp_path, text)
    message = error_of(file=file)
    assert expected in message
    assert str(file) in message


def test_a_file_that_is_not_there() -> None:
    """It says how to get one."""
    message = error_of(file=Path("nowhere.toml"))
    assert message == "nowhere.toml does not exist. `ddl init` writes one"


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are an error with the file's name."""
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xff\xfe")
    assert error_of(file=file).startswith(f"{file} is not a text file. A run.toml is")
    assert error_of(file=tmp_path) == f"{tmp_path} is a folder. Give the run.toml in it"


@pytest.mark.parametrize("text", ["", "# [run]\n# name = 'x'\n"])
def test_a_file_that_sets_nothing(tmp_path: Path, text: str) -> None:
    """It is not taken for a run of nothing but defaults."""
    assert "run.toml sets nothing. `ddl init` writes one" in error_of(file=written(tmp_path, text))
    assert error_of(file=Path("/dev/null")).startswith("/dev/null sets nothing")


@pytest.mark.parametrize(
    ("key", "text", "mistake"),
    [
        ("round.quorum", "two", "round.quorum = 'two': must be a whole number"),
        ("outer.lr", "fast", "outer.lr = 'fast': must be a number"),
        ("codec.up", "int3", "codec.up = 'int3': must be one of fp32, bf16, int8, int4"),
        ("round.quorum", "0", "round.quorum = 0: must be at least 1"),
        ("outer.momentum", "1.5", "outer.momentum = 1.5: must be at least 0 and below 1"),
        ("run.name", "Demo", "run name 'Demo' is not usable"),
    ],
)
def test_a_mistake_is_told_in_the_same_words_wherever_it_was_made(
    tmp_path: Path, key: str, text: str, mistake: str
) -> None:
    """The place stands before it: the file, the variable, or that it was a flag."""
    table, _, name = key.partition(".")
    value = text if text[0].isdigit() else f"'{text}'"
    file = written(tmp_path, f"[{table}]\n{name} = {value}\n")
    variable = f"DDL_{table}_{name}".upper()
    assert error_of(file=file).startswith(f"{file}: {mistake}")
    assert error_of(environment={variable: text}).startswith(f"environment {variable}: {mistake}")
    assert error_of(flags={key: text}).startswith(f"command line: {mistake}")
    with pytest.raises(ConfigError):
        config.amend(Settings(), dict(config.read_changes({key: text})))


def test_a_misspelt_variable_of_a_known_table_is_not_passed_over() -> None:
    """Others are none of ours."""
    assert (
        error_of(environment={"DDL_ROUND_QUORUN": "2"})
        == "environment DDL_ROUND_QUORUN: unknown setting. Did you mean DDL_ROUND_QUORUM?"
    )
    assert load(environment={"DDL_SPOOL": "/x", "DDL_DEBUG": "1"}).settings == Settings()


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """A line each, with its place and its cure; nothing is said of settings that are right."""
    file = written(tmp_path, "[round]\nquorum = 0\nquorun = 2\n[outer]\nlr = '1'\n[stor]\nx = 1\n")
    message = error_of(
        file=file, environment={"DDL_KEEP_VERSIONS": "none"}, flags={"liveness.gone_s": "-1"}
    )
    assert message.splitlines() == [
        "6 settings cannot be used:",
        f"  {file}: unknown setting 'round.quorun'. Did you mean 'round.quorum'?",
        f"  {file}: outer.lr = '1': must be a number",
        f"  {file}: unknown table [stor]. Did you mean [store]?",
        "  environment DDL_KEEP_VERSIONS: keep.versions = 'none': must be a whole number",
        f"  {file}: round.quorum = 0: must be at least 1",
        "  command line: liveness.gone_s = -1.0: must be from 0.01 s to a year (31,536,000 s)",
    ]


def test_every_limit_is_one_of_a_setting() -> None:
    """And no default is beyond its own."""
    for key, judge in LIMITS.items():
        assert judge(config.get(Settings(), key)) == ""


# ---- values that cannot work ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("round.quorum", "0", "round.quorum = 0: must be at least 1"),
        ("round.every_steps", "0", "must be at least 1"),
        ("round.deadline_s", "-1", "must be from 0 s to a year (31,536,000 s)"),
        ("round.deadline_s", "inf", "must be from 0 s to a year"),
        ("liveness.beat_s", "1e-9", "must be from 0.01 s to a year"),
        ("liveness.lease_s", "0.9", "must be from 1 s to a year"),
        ("liveness.lease_s", "1e300", "must be from 1 s to a year"),
        ("liveness.max_offline_s", "nan", "must be from 0.01 s to a year"),
        ("round.grace_ratio", "1", "must be at least 0 and below 1"),
        ("round.staleness_decay", "1.1", "must be at least 0 and at most 1"),
        ("round.staleness_max", "31", "must be at least 0 and at most 30"),
        ("adopt.alpha", "1.5", "must be at least 0 and at most 1"),
        ("outer.lr", "0", "must be above 0 and at most 1000"),
        ("outer.lr", "nan", "must be above 0 and at most 1000"),
        ("outer.lr", "1e308", "must be above 0 and at most 1000"),
        ("outer.lr", "inf", "must be above 0 and at most 1000"),
        ("outer.momentum", "1", "must be at least 0 and below 1"),
        ("outer.momentum", "nan", "must be at least 0 and below 1"),
        ("gate.norm_factor", "1", "must be a finite number above 1"),
        ("gate.refusals_max", "0", "must be at least 1"),
        ("keep.versions", "0", "must be at least 1"),
        ("store.part_bytes", "1024", "must be at least 5,242,880"),
        ("run.name", "Demo", "run name 'Demo' is not usable"),
        ("run.seed", "-1", "must be at least 0"),
    ],
)
def test_values_out_of_range(key: str, value: str, expected: str) -> None:
    """Each is refused with what would do."""
    assert expected in error_of(flags={key: value})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"round.every_steps": "10", "round.overlap_steps": "10"},
            "round.overlap_steps (10) must be less than round.every_steps (10). Use at most 9",
        ),
        (
            {"fragments.num": "2", "round.in_flight": "3"},
            "round.in_flight (3) is more than fragments.num (2): a fragment has one open round at "
            "most. Use round.in_flight = 2",
        ),
        (
            {"fragments.num": "12", "round.every_steps": "10"},
            "fragments.num (12) is more than round.every_steps (10): a learner would hand in "
            "fragments with no step on them. Use fragments.num = 10 or fewer",
        ),
        (
            {"liveness.suspect_s": "2"},
            "must satisfy 3 * beat_s <= suspect_s <= gone_s. Use suspect_s = 3 or more",
        ),
        ({"liveness.gone_s": "4"}, "must satisfy 3 * beat_s <= suspect_s <= gone_s"),
        ({"liveness.lease_s": "2"}, "is less than 3 beats of 1 s. Use lease_s = 3 or more"),
    ],
)
def test_values_that_cannot_work_together(flags: dict[str, str], expected: str) -> None:
    """Both numbers are named, and the nearest that would do."""
    message = error_of(flags=flags)
    assert message.startswith("command line: ")
    assert expected in message


def test_values_that_cannot_work_together_name_both_places(tmp_path: Path) -> None:
    """The one may stand in the file and the other in the environment."""
    message = error_of(
        file=written(tmp_path, "[round]\nevery_steps = 8\n"),
        environment={"DDL_ROUND_OVERLAP_STEPS": "9"},
    )
    assert message.startswith(
        f"environment DDL_ROUND_OVERLAP_STEPS, {tmp_path / 'run.toml'}: round."
    )


# ---- changes during a run ---------------------------------------------------------------------


def test_every_table_is_fixed_live_or_local() -> None:
    """Nothing is left open, nothing is two things."""
    tables = [*FIXED, *LIVE, *LOCAL]
    assert sorted(tables) == sorted(Settings.__struct_fields__)


def test_amend_takes_what_may_change_and_checks_the_whole() -> None:
    """Alone a value may be right and together with the others wrong."""
    changed = config.amend(Settings(), {"round.quorum": 3, "outer.lr": 0.5})
    assert (changed.round.quorum, changed.outer.lr) == (3, 0.5)
    for changes, expected in (
        ({"codec.up": "int4"}, "codec.up is fixed at genesis and cannot change during a run"),
        ({"redis.url": "redis://x"}, "redis.url belongs to one machine"),
        ({"round.overlap_steps": 24}, "must be less than round.every_steps"),
        ({"round.quorum": "3"}, "must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=expected):
            config.amend(Settings(), changes)


def test_no_allowed_staleness_outlives_the_log_s_memory() -> None:
    """The log remembers the hashes of every version that a contribution may still be based on."""
    assert HISTORY > STALENESS_LIMIT + 1


def test_settings_travel() -> None:
    """Through JSON and back they are the same."""
    settings = load(flags={"task.args": "{a = 1}", "round.quorum": "7"}).settings
    assert parse(canonical(settings), Settings, what="settings") == settings
