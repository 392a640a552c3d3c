"""The settings of `ddl simulate`: presets, files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddl.errors import ConfigError
from ddl.simulate.settings import PRESETS, file_text, preset, preset_text, read

TOML = """
learners = [2]
[times]
step_s = 1
down_s = 0
up_s = 0
restart_s = 0
[[machines]]
chips = 8
slice_chips = 8
mtbi_s = 3600
return_scale_s = 60
"""


def test_what_is_left_out_has_a_default() -> None:
    study = read(TOML, where="it")
    assert study.methods == ("data-parallel", "data-parallel-elastic", "decoupled")
    assert study.machines[0].return_exponent == 1.0
    assert study.protocol.settings.round.every_steps == 24


@pytest.mark.parametrize("name", PRESETS)
def test_presets_can_be_simulated(name: str) -> None:
    """Each of them has machines for its learners at its smallest size."""
    study = preset(name)
    slices = sum(kind.chips // kind.slice_chips for kind in study.machines)
    assert max(study.learners) <= slices * min(study.sizes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("learners", "lerners", "unknown key 'lerners'. Did you mean 'learners'?"),
        ("down_s", "dwn_s", "unknown key 'times.dwn_s'. Did you mean 'down_s'?"),
        ("slice_chips", "slice_chip", "unknown key 'machines.slice_chip'. Did you mean"),
        ("mtbi_s", "zzz", "unknown key 'machines.zzz'. Known keys: name, chips"),
        ("mtbi_s = 3600", "", "machines.mtbi_s is missing"),
        ("step_s = 1", 'step_s = "1"', "times.step_s = '1': Expected `float`, got `str`"),
        ("[times]", "times = 3\n[other]", "times = 3: must be a table [times]"),
        ("[[machines]]", "[machines]", "must be tables [[machines]]"),
        ("[2]", "[0]", "learners = 0: must be a finite number above 0"),
        ("[2]", "[]", "learners is empty"),
        ("up_s = 0", "up_s = -1", "times.up_s = -1.0: must be a finite number, 0 or more"),
        ("up_s = 0", "up_s = inf", "times.up_s = inf: must be a finite number, 0 or more"),
        ("chips = 8", "chips = nan", "Expected `int`, got `float`"),
        ("learners = [2]", 'learners = [2]\nmethods = ["ddp"]', "Invalid enum value 'ddp'"),
        ("[times]", "[times", "is not valid TOML"),
        ("[times]", "[protocol]\nup_mbits = 1\n[times]", "Did you mean 'up_mbit'"),
        ("[times]", "protocol.settings.round.quorun = 1\n[times]", "Did you mean 'quorum'"),
        (
            "[times]",
            "protocol.settings.round.quorum = 0\n[times]",
            "protocol.settings: round.quorum = 0",
        ),
        ("[times]", "[protocol]\nup_mbit = 0\n[times]", "protocol.up_mbit = 0.0: must be"),
    ],
)
def test_what_cannot_be_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(TOML.replace(old, new, 1), where="it")
    assert str(refused.value).startswith("it")
    assert message in str(refused.value)


def test_all_mistakes_are_told_at_once() -> None:
    """What is missing, misspelt and of a wrong type; then, what cannot work."""
    text = TOML.replace("down_s = 0\nup_s = 0", "").replace("chips = 8\n", "chps = 8\n", 1)
    with pytest.raises(ConfigError) as refused:
        read(text.replace("[2]", '["two"]'), where="it")
    first, *told = str(refused.value).splitlines()
    assert first == "it: 5 things are wrong:"
    for mistake in ("learners = ['two']", "times.down_s is missing", "times.up_s is missing"):
        assert any(mistake in line for line in told)
    assert "  unknown key 'machines.chps'. Did you mean 'chips'?" in told
    assert "  machines.chips is missing" in told
    with pytest.raises(ConfigError, match="3 things are wrong") as refused:
        read(TOML.replace("[2]", "[0, -1]").replace("mtbi_s = 3600", "mtbi_s = 0"), where="it")
    assert "machines.mtbi_s = 0.0: must be a finite number above 0" in str(refused.value)


def test_a_file_or_preset_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no preset 'tpu'.*paper-table1, paper-table5, spot, lab"
    ):
        preset_text("tpu")
    with pytest.raises(ConfigError, match="cannot be read"):
        file_text(tmp_path / "study.toml")
