"""`--metrics-port` and `--log`: real processes serve and write what their run is."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.processes import Fleet
from tests.unit.test_metrics_log import scalars


def read(port: int) -> dict[str, float]:
    """Samples without a further label, by name."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.keys() <= {"run", "learner"}
    }


def port_in(log: str) -> int | None:
    found = re.search(r"/metrics is at port (\d+)", log)
    return int(found[1]) if found else None


def test_a_coordinator_and_a_learner_are_read(tmp_path: Path, redis_url: str) -> None:
    """Both tell of the same run, and of more of it as it goes on. A learner whose port is taken never
    joins."""
    with Fleet(tmp_path, redis_url) as fleet:
        fleet.write_run()
        curves = f"tensorboard:{tmp_path / 'curves'}"
        fleet.coordinator("--metrics-port", "0", "--log", curves)
        of_run = fleet.until(lambda: port_in(fleet.log(1)), "the coordinator's port")
        fleet.until(fleet.snapshot, "the run in Redis")
        learner = fleet.learner("a", "--metrics-port", "0", "--log", curves)
        of_one = fleet.until(lambda: port_in(fleet.log(2)), "the learner's port")
        fleet.until_version(2)
        run, one = read(of_run), read(of_one)
        assert run["ddl_up"] == one["ddl_up"] == 1.0
        assert run["ddl_global_version"] >= 2
        assert one["ddl_steps_total"] > 0
        assert one["ddl_tokens_total"] > 0
        fleet.until(lambda: read(of_one)["ddl_steps_total"] > one["ddl_steps_total"], "more steps")
        fleet.until(
            lambda: read(of_run)["ddl_global_version"] > run["ddl_global_version"], "a version"
        )
        taken = fleet.learner("b", "--metrics-port", str(of_one))
        assert taken.wait(60) == 2
        assert f"--metrics-port {of_one}" in fleet.log(3)
        shown = fleet.snapshot()
        assert shown is not None
        assert [row.id for row in shown.learners] == ["a"]
        learner.send_signal(signal.SIGTERM)
        learner.wait(60)
        last = scalars(tmp_path / "curves" / "walk" / "a")["ddl_steps_total"][-1]
        assert last[1] >= one["ddl_steps_total"]
        fleet.until(lambda: "ddl_loss" in scalars(tmp_path / "curves" / "walk"), "the run's curve")
