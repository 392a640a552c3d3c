"""`ddl doctor` as a command: where it looks, what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ddl.embedded import EmbeddedRedis
from ddl_cli.app import app

LEVELS = {"ok", "warn", "fail"}


@pytest.fixture(autouse=True)
def _spool_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))


def doctor(*arguments: str | Path) -> Result:
    """Run the command in this process, without its look at torch."""
    return CliRunner().invoke(app, ["doctor", "--no-torch", *map(str, arguments)])


@pytest.fixture
def run_toml(tmp_path: Path) -> Path:
    """Settings whose Redis is nowhere and whose store is a directory of the test."""
    path = tmp_path / "run.toml"
    store = (tmp_path / "store").as_uri()
    path.write_text(
        f'[run]\nname = "demo"\n[redis]\nurl = "redis://:sesame@127.0.0.1:1/0"\n'
        f'[store]\nurl = "{store}"\n'
    )
    (tmp_path / "task.py").write_text("def build(ctx): ...\n")
    return path


def test_a_failed_check_ends_with_1_and_shows_its_cure(run_toml: Path) -> None:
    """Each line has its level; the cure stands below; the password is nowhere."""
    result = doctor(run_toml)
    lines = result.stdout.splitlines()
    failed = next(number for number, line in enumerate(lines) if line.startswith("fail"))
    assert lines[failed].split()[1] == "redis.reach"
    assert lines[failed + 1].startswith("     -> Check that it runs")
    assert all(line.split()[0] in {*LEVELS, "->"} for line in lines[:-2])
    assert lines[-1].endswith("0 warnings, 1 failed")
    assert "sesame" not in result.output
    assert result.exit_code == 1


def test_warnings_end_with_0(tmp_path: Path) -> None:
    """Here: no Redis is named."""
    result = doctor("--store", (tmp_path / "store").as_uri())
    assert result.stdout.splitlines()[-1].endswith("1 warning, 0 failed")
    assert result.exit_code == 0


def test_json_is_one_document(run_toml: Path, tmp_path: Path) -> None:
    """With a schema, the worst level, and a record for each check; flags stand above the file."""
    with EmbeddedRedis(tmp_path / "redis") as server:
        result = doctor(run_toml, "--json", "--redis", server.url)
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert document["status"] == "ok"
    assert {check["status"] for check in document["checks"]} == {"ok"}
    assert {"name", "status", "text", "cure"} == set(document["checks"][0])
    assert result.exit_code == 0


@pytest.mark.parametrize("by", ["flag", "setting", "environment"])
def test_places_can_be_named_without_a_run(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --redis and --store, by --set, or by the variables that other commands read."""
    store = (tmp_path / "store").as_uri()
    with EmbeddedRedis(tmp_path / "redis") as server:
        if by == "flag":
            result = doctor("--redis", server.url, "--store", store)
        elif by == "setting":
            result = doctor("--set", f"redis.url={server.url}", "--set", f"store.url={store}")
        else:
            monkeypatch.setenv("DDL_REDIS", server.url)
            monkeypatch.setenv("DDL_STORE", store)
            result = doctor()
    assert store in result.stdout
    assert result.stdout.splitlines()[-1].endswith("0 warnings, 0 failed")


def test_torch_is_never_imported_here(tmp_path: Path) -> None:
    """It is asked in a process of its own, so that a broken driver takes nothing else with it."""
    store = (tmp_path / "store").as_uri()
    code = (
        "import sys; from typer.testing import CliRunner; from ddl_cli.app import app; "
        f"done = CliRunner().invoke(app, ['doctor', '--store', {store!r}]); "
        "assert 'torch.version' in done.stdout, done; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_settings_that_cannot_be_read_are_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is checked then: exit code 2, and one sentence that names the file."""
    from ddl_cli.app import main

    monkeypatch.setattr(sys, "argv", ["ddl", "doctor", str(tmp_path / "run.toml")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "run.toml does not exist" in capsys.readouterr().err


def test_settings_can_be_tried_out(run_toml: Path, tmp_path: Path) -> None:
    """A flag stands above the file, as for the coordinator."""
    elsewhere = (tmp_path / "elsewhere").as_uri()
    with EmbeddedRedis(tmp_path / "redis") as server:
        flags = ("--set", f"redis.url={server.url}", "--set", f"store.url={elsewhere}")
        result = doctor(str(run_toml), *flags)
    assert result.exit_code == 0, result.stdout
    assert elsewhere in result.stdout
