"""`ddl init` writes files that run and explain themselves; `ddl config show` tells what holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tomllib
from itertools import islice
from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner, Result

from ddl import config
from ddl.config import Settings
from ddl.embedded import EmbeddedRedis
from ddl.errors import ConfigError
from ddl.protocol.address import join_address
from ddl.task import load_task
from ddl_cli.app import app
from ddl_cli.settings_text import settings_text
from tests.contexts import context

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0
COMMENTED = re.compile(r"^#(\w+ = )", re.MULTILINE)


def ddl(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> str:
    """The one sentence with which the command refuses."""
    result = ddl(*arguments)
    assert isinstance(result.exception, ConfigError)
    return str(result.exception)


# ---- init ---------------------------------------------------------------------------------------


def test_every_default_that_is_shown_is_the_default() -> None:
    """All settings stand there as comments; with these taken away, nothing changes."""
    shown = tomllib.loads(COMMENTED.sub(r"\1", settings_text({})))
    assert msgspec.convert(shown, Settings) == Settings()
    assert tuple(f"{table}.{key}" for table in shown for key in shown[table]) == config.all_keys()


def test_every_setting_is_explained_and_who_may_change_it() -> None:
    """Above each stands what it means, above each table who may change it; no line is long."""
    lines = settings_text({"run.name": "x"}).splitlines()
    for number, line in enumerate(lines):
        if match := COMMENTED.match(line):
            assert lines[number - 1].startswith(f"# {match[1].partition(' ')[0]}: ")
        if line.startswith("["):
            assert re.search("Fixed|May change|this machine only", lines[number - 1])
    assert max(map(len, lines)) <= 100


def test_it_writes_what_was_chosen(tmp_path: Path) -> None:
    """Name, Redis and store stand in the file; all else is left to the defaults."""
    folder = tmp_path / "new" / "My Run"
    store = "s3://bucket/prefix"
    assert ddl("init", folder, "--store", store, "--redis", "rediss://host:7000/2").exit_code == 0
    loaded = config.load(folder / "run.toml")
    assert loaded.settings.run.name == "my-run"
    assert loaded.settings.store.url == store
    assert loaded.settings.redis.url == "rediss://host:7000/2"
    chosen = {key for key, origin in loaded.origins.items() if origin != "default"}
    assert chosen == {"run.name", "store.url", "redis.url", "stop.tokens"}


def test_it_replaces_nothing(tmp_path: Path) -> None:
    """One of the two files is there: it is named, and neither is written, unless by --force."""
    (tmp_path / "task.py").write_text("mine")
    said = refused("init", tmp_path)
    assert "task.py is there already" in said
    assert "--force" in said
    assert [file.name for file in tmp_path.iterdir()] == ["task.py"]
    assert ddl("init", tmp_path, "--force").exit_code == 0
    assert (tmp_path / "task.py").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "My Run"], "run name 'My Run' is not usable"),
        (["--store", "/data"], "not the address of a store"),
        (["--store", "s3://"], "names no bucket"),
        (["--store", "file://data/x"], "has a host"),
        (["--redis", "host:6379"], "not the address of a Redis"),
        (["--redis", "redis://:sesame@host/0"], "set DDL_REDIS"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    """Before anything is written; a password is neither written nor shown."""
    refusal = refused("init", tmp_path / "run", *arguments)
    assert said in refusal
    assert "sesame" not in refusal
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file stands in its place: named, without a traceback."""
    (tmp_path / "file").touch()
    assert "Not a directory" in refused("init", tmp_path / "file" / "run")


def test_its_task_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From about ln 256 = 5.5 nats per byte to well under that in thirty steps."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    ddl("init", tmp_path)
    (tmp_path / "text").write_bytes(b"def f(x):\n    return x + 10\n\n" * 400)
    ctx = context(seed=3, args={"data": str(tmp_path / "text")})
    task = load_task(tmp_path / "task.py", ctx)
    assert task.loss is not None
    assert task.batches is not None
    assert task.optimizer is not None
    assert task.evaluate is not None
    before = task.evaluate(task.model)["loss"]
    for batch in islice(task.batches, 30):
        task.optimizer.zero_grad()
        torch.autograd.backward(task.loss(task.model, batch))
        task.optimizer.step()
    assert 5.0 < before < 6.0
    assert task.evaluate(task.model)["loss"] < 2.5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_two_files_run_as_they_are(tmp_path: Path) -> None:
    """A coordinator and a learner are started as it says, and end well when the budget is used."""
    folder, log = tmp_path / "first", tmp_path / "coordinator.log"
    command = [sys.executable, "-m", "ddl_cli"]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}", "DDL_SPOOL": str(tmp_path / "spool")}
    environment |= {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    with EmbeddedRedis(tmp_path / "redis") as server, log.open("wb") as written:
        address = join_address(server.url, "first")
        assert ddl("init", folder, "--redis", server.url).exit_code == 0
        coordinator = subprocess.Popen(
            [*command, "coordinator", "start", "run.toml", "--set", "stop.tokens=30_000"],
            cwd=folder,
            env=environment,
            stderr=written,
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while "run.entered" not in log.read_text():
                assert coordinator.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            learner = subprocess.run(
                [*command, "learner", "join", address, "--task", "task.py", "--max-steps", "400"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert learner.returncode == 0, learner.stderr
            assert coordinator.wait(PATIENCE_S) == 0, log.read_text()
            assert "version.published" in log.read_text()
        finally:
            coordinator.kill()
            coordinator.wait()


# ---- config show --------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Settings of which every source sets one more than the next."""
    path = tmp_path / "run.toml"
    path.write_text(
        "[round]\nquorum = 2\nin_flight = 1\ndeadline_s = 7\n"
        '[task.args]\nname = "a \\"b\\""\nwidth = 64\nbig = true\n'
    )
    return path


def test_each_value_stands_with_its_origin(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag above the environment, that above the file, that above the default."""
    monkeypatch.setenv("DDL_ROUND_QUORUM", "3")
    monkeypatch.setenv("DDL_ROUND_IN_FLIGHT", "4")
    shown = ddl("config", "show", file, "--set", "round.in_flight=5").stdout
    for value, origin in {
        "quorum = 3": "environment DDL_ROUND_QUORUM",
        "in_flight = 5": "flag",
        "deadline_s = 7.0": str(file),
        "staleness_max = 4": "default",
    }.items():
        assert re.search(rf"^{value} +# {re.escape(origin)}$", shown, re.MULTILINE)


def test_what_is_shown_can_be_used(file: Path) -> None:
    """It is TOML, and means the same settings, with every kind of value in it."""
    shown = tomllib.loads(ddl("config", "show", file).stdout)
    assert msgspec.convert(shown, Settings) == config.load(file).settings
    assert shown["task"]["args"] == {"name": 'a "b"', "width": 64, "big": True}
    assert "#" not in ddl("config", "show", file, "--no-origin").stdout


def test_json_has_values_and_origins(file: Path) -> None:
    """One object, with its schema."""
    shown = json.loads(ddl("config", "show", file, "--json", "--set", "outer.lr=0.5").stdout)
    assert shown["schema"] == 1
    assert shown["settings"]["outer"]["lr"] == 0.5
    assert shown["settings"]["round"]["quorum"] == 2
    assert shown["origins"]["outer.lr"] == "flag"
    assert set(shown["origins"]) == set(config.all_keys())


@pytest.mark.parametrize("option", ["--origin", "--json"])
def test_passwords_are_masked(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """That of Redis, wherever it came from."""
    monkeypatch.setenv("DDL_REDIS", "redis://:sesame@host:6379/0")
    shown = ddl("config", "show", option).stdout
    assert "sesame" not in shown
    assert "redis://:***@host:6379/0" in shown


def test_a_misspelt_setting_is_named_with_the_nearest(tmp_path: Path) -> None:
    """In the file and as a flag."""
    assert "'round.quorum'" in refused("config", "show", "--set", "round.qorum=2")
    (tmp_path / "run.toml").write_text("[outer]\nlearning_rate = 1\n")
    assert "unknown setting 'outer.learning_rate'" in refused(
        "config", "show", tmp_path / "run.toml"
    )


def test_settings_of_a_run_that_redis_knows(published: str) -> None:
    """Those in force, which tables may change, and the address by which it was reached."""
    shown = ddl("config", "show", published)
    assert shown.exit_code == 0, shown.output
    found = msgspec.convert(tomllib.loads(shown.stdout), Settings)
    assert found.run.name == "demo"
    assert published.startswith(found.redis.url)
    assert re.search(r"^quorum = 2 +# run$", shown.stdout, re.MULTILINE)
    assert "[round]  # may change during a run, by `ddl set`\n" in shown.stdout
    assert "[codec]  # fixed when a run is created\n" in shown.stdout
    document = json.loads(ddl("config", "show", published, "--json").stdout)
    assert document["may_change"] == list(config.LIVE)
    assert document["origins"]["round.quorum"] == "run"
    assert "`ddl set " in refused("config", "show", published, "--set", "round.quorum=3")
