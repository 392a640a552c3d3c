"""`ddl plan`: figures for people and for programs, from a count or from a task's model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ddl.errors import ConfigError
from ddl.plan import Plan
from ddl.protocol.wire import parse
from ddl_cli.app import app
from tests.coordinating import write_run


def ddl_plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def planned(*arguments: str) -> Plan:
    result = ddl_plan(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return parse(result.stdout, Plan, what="the plan")


def test_people_are_told_whether_it_fits() -> None:
    """The sentence names tau; a price is told only if there is one (14,400 rounds, 16 gets each)."""
    slow = ddl_plan("--parameters", "1.3B", "--learners", "8")
    assert slow.exit_code == 0
    assert slow.stdout.startswith("1.3G parameters in 24 fragments, 8 learners")
    assert "each fragment every 24 steps, at 1.0 s a step (--step-s)\n" in slow.stdout
    assert (
        "links: 100Mbit/s up (--up-mbit) and 100Mbit/s down (--down-mbit) a learner, 1.0Gbit/s the "
        "coordinator (--coordinator-mbit)\n"
    ) in slow.stdout
    assert "more often in the first 460 steps, as far as links bear it" in slow.stdout
    assert "each learner's upload takes 17 s a round; 1.7Gbit/s would do (--up-mbit)" in slow.stdout
    fast = ddl_plan("--parameters", "10M", "--up-mbit", "1000", "--down-mbit", "1000")
    assert "within tau = 2" in fast.stdout
    steady = ddl_plan("--parameters", "10M", "--set", "outer.preset=fixed")
    assert "more often" not in steady.stdout
    assert "TOO SLOW" not in fast.stdout
    assert "price" not in fast.stdout
    assert "price 0.46 a day" in ddl_plan("--parameters=10M", "--price-per-1000-gets=0.002").stdout


def test_people_are_told_which_link_is_too_slow_and_what_to_change() -> None:
    """A coordinator's of 10 Mbit/s: 8 x 21 MB to fetch and 41 MB to publish in each second's round."""
    links = ("--up-mbit=1000", "--down-mbit=1000", "--coordinator-mbit=10")
    told = ddl_plan("--parameters=124M", "--learners=8", *links).stdout
    assert "rounds will come every 33 s to 2m12s, the latter with every learner in all" in told
    assert "the coordinator's fetching of all hand-ins takes 2m12s a round; 1.3Gbit/s" in told
    assert "(--coordinator-mbit), or codec.up = int4" in told
    assert "the coordinator's merging and publishing takes 33 s a round; 345Mbit/s" in told
    assert "round.every_steps = 3175 asks for no more than they bear" in told
    assert "Bytes, with rounds as often as asked for" in told
    borne = ddl_plan("--parameters=124M", *links, "--set=round.every_steps=3175").stdout
    assert "TOO SLOW" not in borne


@pytest.mark.parametrize(
    ("text", "count"), [("124M", 124_000_000), ("1.3B", 1_300_000_000), ("7000", 7_000)]
)
def test_counts_are_read_as_people_write_them(text: str, count: int) -> None:
    assert planned("--parameters", text).parameters == count


def test_the_task_s_model_is_counted_fragment_by_fragment(tmp_path: Path) -> None:
    """4 x 3 weights, a bias of 3 and 3 x 4 tied weights; what is not trained does not travel."""
    toml = write_run(tmp_path, redis_url="redis://host/0")
    made = planned(str(toml), "--task", str(tmp_path / "task.py"))
    assert (made.parameters, made.num_fragments) == (27, 2)
    assert made.every_steps == 4, "from run.toml"
    assert planned(str(toml)) == made, "the file names its task itself"


def test_settings_and_links_count() -> None:
    """Compressed publication takes the bytes down to those of int4."""
    made = planned("--parameters=24M", "--set=codec.down=int4-step", "--set=codec.up=int4")
    assert made.traffic.up_bytes == made.traffic.down_bytes
    faster = planned("--parameters=24M", "--up-mbit=200")
    assert faster.hand_in.up_s == pytest.approx(planned("--parameters=24M").hand_in.up_s / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the size of the model is not known"),
        (["--parameters=1M", "--task=task.py"], "said twice"),
        (["--parameters=many"], "'many' is not a count"),
        (["--parameters=3", "--set=fragments.num=4"], "has no 4 fragments"),
    ],
)
def test_what_cannot_be_planned_is_said(arguments: list[str], message: str) -> None:
    result = ddl_plan(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_the_document_has_a_schema() -> None:
    assert json.loads(ddl_plan("--parameters=1M", "--json").stdout)["schema"] == 1
