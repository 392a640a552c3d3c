"""The files of `examples/two_machines` fit the command, its settings, and the tools they are for."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from ddl import config
from ddl.protocol.address import check_redis_url
from ddl_cli.app import app
from ddl_cli.exits import Exit

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_machines"
UNITS = sorted(EXAMPLE.glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


def commands() -> Iterator[list[str]]:
    """The words after `ddl` of every command that a reader would copy, or a service starts."""
    readme = (EXAMPLE / "README.md").read_text()
    for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["ddl"]:
                yield words[1:]
    for path in UNITS:
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program.endswith("/ddl")
        yield words
    for service in COMPOSE["services"].values():
        if service["command"][0] == "ddl":
            yield service["command"][1:]


COMMANDS = list(commands())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_can_be_typed(words: list[str]) -> None:
    """There is such a command, with these options; a mistake in the example would be an error."""
    node: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(node, "commands"):
        node = node.commands[rest.pop(0)]
    node.make_context(node.name, rest)


def test_there_are_commands_for_all_that_one_does() -> None:
    """On the coordinator's machine, on a learner's, and from anywhere."""
    assert {words[0] for words in COMMANDS} >= {
        *("doctor", "coordinator", "learner", "status"),
        *("verify", "evaluate", "export", "stop"),
    }


def test_settings_can_be_read() -> None:
    """The run.toml is one; the environment names what ddl reads, and a Redis it could reach."""
    loaded = config.load(EXAMPLE / "run.toml")
    assert loaded.settings.store.url.startswith("s3://")
    assert (EXAMPLE / loaded.settings.task.file).is_file()
    lines = (EXAMPLE / "ddl.env.example").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert values.keys() == {"DDL_REDIS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    check_redis_url(values["DDL_REDIS"])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_start_again_what_can_go_on(path: Path) -> None:
    """Drained and unreachable come back by themselves; refused ones do not, nor a coordinator with
    unusable settings (a learner's run may only not be there yet); a drain has the time it may take."""
    service = unit(path)["Service"]
    held = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert service["Restart"] == "on-failure"
    assert Exit.REFUSED in held
    assert (Exit.USAGE in held) == ("coordinator" in path.name)
    assert held.isdisjoint({Exit.START_AGAIN, Exit.UNREACHABLE, Exit.FAILED})
    assert int(service["TimeoutStopSec"]) > config.LivenessSettings().drain_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_units_are_such_to_systemd(tmp_path: Path) -> None:
    """Verified by systemd itself, with a program and a user that this machine has."""
    copies = []
    for path in UNITS:
        text = path.read_text().replace("/opt/ddl/bin/ddl", "/bin/true").replace("User=ddl\n", "")
        copy = tmp_path / path.name.replace("@", "@0")
        copy.write_text(text)
        copies.append(str(copy))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in verified.stderr.splitlines() if str(tmp_path) in line]
    assert (verified.returncode, told) == (0, []), verified.stderr


def test_compose_names_what_is_there() -> None:
    """Files it mounts and builds from exist, secrets come from outside, and a drain has its time."""
    services = COMPOSE["services"]
    assert services.keys() == {"redis", "coordinator", "learner"}
    for name in ("coordinator", "learner"):
        build = services[name]["build"]
        context = EXAMPLE / build["context"]
        dockerfile = context / build["dockerfile"]
        copied = re.findall(r"^COPY (.+) \S+$", dockerfile.read_text(), re.MULTILINE)
        assert copied
        assert all((context / source).exists() for line in copied for source in line.split())
        assert services[name]["env_file"] == "ddl.env"
        assert "PASSWORD" not in str(services[name])
    assert services["redis"]["environment"]["REDIS_PASSWORD"] == "${REDIS_PASSWORD:-}"
    grace_s = int(services["learner"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > config.LivenessSettings().drain_s


@pytest.mark.parametrize("password", ["sesame", ""])
def test_only_the_redis_service_asks_for_the_password(tmp_path: Path, password: str) -> None:
    """A variable that compose itself demands is demanded for every service of the file."""
    text = (EXAMPLE / "compose.yaml").read_text()
    assert not re.search(r"(?<!\$)\$\{\w+:\?", text)
    shell, option, script = COMPOSE["services"]["redis"]["command"]
    server = tmp_path / "valkey-server"
    server.write_text("#!/bin/sh\nexec cat\n")  # shows the settings that it is given
    server.chmod(0o755)
    started = subprocess.run(
        [shell, option, script.replace("$$", "$")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "REDIS_PASSWORD": password},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (started.returncode == 0) == bool(password)
    assert ("requirepass sesame" in started.stdout) == bool(password)
    assert ("REDIS_PASSWORD: set it" in started.stderr) != bool(password)
