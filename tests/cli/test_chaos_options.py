"""Options of `ddl chaos` that contradict each other are refused before anything is started."""

from __future__ import annotations

import sys

import pytest

from ddl_cli import app


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "--fault 3:kill:1:2 --mtbf 4",
            "--mtbf is about faults that are drawn, and --fault says which there are",
        ),
        (
            "--tape t.json --seed 0",
            "--seed is about faults that are drawn, and --tape says which there are",
        ),
        ("--tape t.json --fault 3:kill:1:2", "--tape and --fault both say what fails"),
        ("--s3 --store file:///x", "--s3 and --store both say where objects go"),
        ("--against horovod", "--against 'horovod' is unknown"),
    ],
)
def test_what_contradicts_is_named(
    options: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ddl", "chaos", *options.split()])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
