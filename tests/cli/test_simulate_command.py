"""`ddl simulate`: tables, documents, plots and tapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ddl.errors import ConfigError
from ddl_cli.app import app


def ddl_simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def document(*arguments: str) -> Any:
    result = ddl_simulate(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_paper_s_table() -> None:
    """All 30 cells; those that the paper is known for are within the bounds of issue 7."""
    shown = document("--preset", "paper-table1")
    cells = {(cell["method"], cell["learners"], cell["chips"]): cell for cell in shown["cells"]}
    assert len(cells) == len(shown["cells"]) == 30
    assert shown["mean_abs_error_goodput"] <= 2.0
    assert shown["seconds"] < 30
    names = {"method", "learners", "chips", "goodput", "uptime", "paper_goodput", "paper_uptime"}
    assert all(set(cell) == names for cell in cells.values())
    goodputs = {
        ("decoupled", 8): (86, 90),
        ("data-parallel-elastic", 1): (55, 60),
        ("data-parallel", 1): (25, 29),
    }
    for (method, learners), (low, high) in goodputs.items():
        assert low <= cells[method, learners, 1_200_000]["goodput"] <= high


def test_people_see_ours_above_the_paper_s() -> None:
    lines = ddl_simulate(
        "--preset=paper-table1", "--chips=150k", "--chips=1.2M", "--method=data-parallel"
    ).stdout.splitlines()
    rows = {line[:34].strip(): line[34:].split() for line in lines}
    assert rows["chips"] == ["150k", "1.2M"]
    assert rows["the paper"] == ["72", "/", "72", "27", "/", "27"]
    ours = [float(text) for text in rows["data-parallel"] if text != "/"]
    differences = [float(text) for text in rows["goodput, difference"]]
    assert [ours[0] - 72, ours[2] - 27] == pytest.approx(differences, abs=0.6)
    assert "over 2 cells" in lines[-1]


def test_a_preset_is_a_file_to_change(tmp_path: Path) -> None:
    """As it is, it gives the same cells, but nothing stands beside them."""
    study = tmp_path / "study.toml"
    study.write_text(ddl_simulate("--preset=lab", "--toml").stdout)
    shown = document(str(study))
    assert shown["cells"] == document("--preset=lab")["cells"]
    assert shown["mean_abs_error_goodput"] is None
    assert "the paper" not in ddl_simulate(str(study)).stdout


def test_a_tape_is_written_and_had_again(tmp_path: Path) -> None:
    """Its learners and length count; the title names it."""
    file = tmp_path / "tape.json"
    fleet = ("--preset=spot", "--learners=4", "--chips=512")
    assert ddl_simulate(*fleet, "--method=decoupled", f"--save-tape={file}").exit_code == 0
    tape = json.loads(file.read_text())
    assert tape["learners"] == 4
    assert {fault["learner"] for fault in tape["faults"]} == {0, 1, 2, 3}
    assert {fault["kind"] for fault in tape["faults"]} == {"kill"}
    again = ddl_simulate(*fleet, f"--tape={file}")
    assert again.exit_code == 0
    assert f"failures of {file}" in again.stdout


SMALL = """
learners = [2]
[times]
step_s = 1
down_s = 0
up_s = 0
restart_s = 0
[[machines]]
chips = 2
slice_chips = 1
mtbi_s = 1e15
return_scale_s = 1
[protocol]
parameters = 1_000_000
horizon_s = 60
settings.round.every_steps = 4
"""


def test_runs_under_every_value_of_some_settings(tmp_path: Path) -> None:
    """`--sweep` takes several, as words of their own; the study stands before or after it."""
    study = tmp_path / "study.toml"
    study.write_text(SMALL)
    sweep = ("--sweep", "round.quorum=1,2", "round.grace_ratio=0,0.5")
    shown = document(str(study), *sweep)
    assert shown["schema"] == 1
    assert [run["settings"] for run in shown["runs"]] == [
        {"round.quorum": quorum, "round.grace_ratio": grace}
        for quorum in (1, 2)
        for grace in (0.0, 0.5)
    ]
    names = [line[:34].strip() for line in ddl_simulate(*sweep, str(study)).stdout.splitlines()]
    assert "2 / 2, quorum=2, grace_ratio=0.5" in names
    plot = tmp_path / "runs.png"
    assert ddl_simulate(str(study), *sweep, f"--plot={plot}").exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_run_is_told_in_detail(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(SMALL)
    tape = tmp_path / "tape.json"
    shown = ddl_simulate(str(study), "--protocol", f"--save-tape={tape}").stdout
    assert json.loads(tape.read_text())["horizon_s"] == 60
    assert shown.startswith("runs of 1m00s; ")
    rows = {line[:34].strip(): line[34:] for line in shown.splitlines()}
    assert rows["shares, %"] == "50.0 50.0"
    assert rows["fates"].endswith(" merged")
    assert rows["learners' processes"].startswith("2, stepping ")
    assert rows["coordinators' processes"] == "1"


@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("p.SVG", b"<?xml")])
def test_plots(name: str, begins: bytes, tmp_path: Path) -> None:
    """A curve over sizes beside the paper's, or bars for one size."""
    for arguments in (["--preset=lab"], ["--preset=paper-table1", "--method=data-parallel"]):
        file = tmp_path / name
        assert ddl_simulate(*arguments, f"--plot={file}").exit_code == 0
        assert file.read_bytes().startswith(begins)
        file.unlink()


def test_plots_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = ddl_simulate("--preset=lab", f"--plot={tmp_path / 'p.png'}")
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'decoupled-diloco[plot]'" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "not said"),
        (["study.toml", "--preset=lab"], "said twice"),
        (["--preset=lab", "--plot=p.pdf"], r"p\.pdf is no plot"),
        (["--preset=lab", "--plot=nowhere/p.png"], r"nowhere/p\.png cannot be written"),
        (["--preset=lab", "--method=ddp"], "--method 'ddp' is unknown"),
        (["--preset=lab", "--chips=some"], "--chips 'some' is not a count"),
        (["--preset=lab", "--learners=11"], "11 learners cannot share 10 slices"),
        (["--preset=lab", "--save-tape=tape.json"], "the study has 3"),
        (["--preset=lab", "--sweep=round.quorun=1"], "Did you mean 'round.quorum'"),
        (["--preset=lab", "--sweep=round.quorum=one"], "must be a whole number"),
        (["--preset=lab", "--sweep=round.quorum"], "is not KEY=VALUE"),
        (["--preset=lab", "--protocol", "--method=data-parallel"], "Leave --method out"),
    ],
)
def test_what_cannot_be_simulated_is_said(arguments: list[str], message: str) -> None:
    result = ddl_simulate(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message.replace("\\", "") in str(result.exception)
