"""`/metrics`: what Prometheus reads is what the records say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from urllib.request import urlopen

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddl.core.snapshot import snapshot
from ddl.errors import ConfigError, RegistryError
from ddl.metrics.families import Family, of_learner, of_run
from ddl.metrics.serve import serving
from ddl.protocol.records import FATES, RunSnapshot
from tests.views import learner, view


def shown() -> RunSnapshot:
    found = snapshot(view())
    assert found is not None
    return found


SHOWN = shown()


def read(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and by the values of their labels, in the order of the labels' names."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_a_run_is_told_as_it_is_shown() -> None:
    with serving(0, lambda: of_run(SHOWN), label={"run": "demo"}) as port:
        told = read(port)
    assert told["ddl_up"] == {("demo",): 1.0}
    assert told["ddl_global_version"] == {("demo",): SHOWN.run.global_version}
    assert told["ddl_ledger_tokens"] == {
        (fate, "demo"): getattr(SHOWN.ledger, fate) for fate in FATES
    }
    assert told["ddl_run_state"]["demo", "running"] == 1.0
    assert sum(told["ddl_run_state"].values()) == 1.0
    assert sum(told["ddl_learners"].values()) == len(SHOWN.learners)
    steps = {(one.id, "demo"): float(one.step) for one in SHOWN.learners}
    assert told["ddl_learner_step"] == steps
    assert len(steps) >= 2


def test_a_learner_tells_of_itself() -> None:
    record = learner("anna", up_bytes=1_000)
    label = {"run": "demo", "learner": "anna"}
    with serving(0, lambda: of_learner(record), label=label) as port:
        told = read(port)
    assert told["ddl_steps_total"] == {("anna", "demo"): 200.0}
    assert told["ddl_up_bytes_total"] == {("anna", "demo"): 1_000.0}
    assert told["ddl_lr"] == {("anna", "demo"): pytest.approx(1e-3)}
    without = msgspec.structs.replace(record, loss=None)
    with serving(0, lambda: of_learner(without), label=label) as port:
        assert "ddl_loss" not in read(port)


def test_who_cannot_tell_says_so() -> None:
    def away() -> Iterator[Family]:
        raise RegistryError("Redis does not answer")

    with serving(0, away, label={"run": "demo"}) as port:
        assert read(port) == {"ddl_up": {("demo",): 0.0}}


def test_names_are_unique_and_follow_the_customs_of_prometheus() -> None:
    for families in (list(of_run(SHOWN)), list(of_learner(learner("anna")))):
        names = [family.name for family in families]
        assert len(set(names)) == len(names)
        for family in families:
            assert family.name.startswith("ddl_")
            assert family.name.endswith("_total") == (family.kind == "counter")
            assert family.help.endswith(".")
            for labels, _ in family.rows:
                assert len(labels) == len(family.labels)


def test_a_port_that_is_taken_is_named_and_one_that_was_served_is_free_again() -> None:
    before = threading.active_count()
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"--metrics-port {port}"),
            serving(port, lambda: of_run(SHOWN), label={}),
        ):
            pass
    for _ in range(2):
        with serving(port, lambda: of_run(SHOWN), label={"run": "demo"}):
            assert read(port)["ddl_up"] == {("demo",): 1.0}
    assert threading.active_count() == before
