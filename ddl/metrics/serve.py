"""`/metrics` on a port of this process, in threads of its own. Needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddl.errors import ConfigError, DdlError

if TYPE_CHECKING:
    from prometheus_client import Metric

    from ddl.metrics.families import Family

Collect = Callable[[], Iterable["Family"]]


@contextmanager
def serving(port: int, collect: Collect, *, label: dict[str, str]) -> Iterator[int]:
    """Serve what `collect` gives at each look, for as long as the block lasts; gives the port.

    A look at which `collect` raises a DdlError has `ddl_up 0` and nothing else.
    Args:
        port: 0 takes any free one.
        label: stands on every row: the run, and the learner.
    Raises: ConfigError: the extra is not installed, or the port cannot be had.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise ConfigError(
            "--metrics-port needs prometheus-client, which is not installed",
            hint="Install the extra: pip install 'decoupled-diloco[metrics]'",
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(collect, label))
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"--metrics-port {port}: cannot listen on it: {error.strerror}",
            hint="Another process may have it; choose another, or 0 for any free one",
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """What the client library asks at each look."""

    def __init__(self, collect: Collect, label: dict[str, str]) -> None:
        self._collect = collect
        self._names, self._values = tuple(label), tuple(label.values())

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        up = GaugeMetricFamily(
            "ddl_up", "1 if this process could tell what follows.", labels=self._names
        )
        try:
            families = list(self._collect())
        except DdlError:
            up.add_metric(self._values, 0.0)
            yield up
            return
        up.add_metric(self._values, 1.0)
        yield up
        for family in families:
            yield self._metric(family)

    def _metric(self, family: Family) -> Metric:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = kind(family.name, family.help, labels=(*self._names, *family.labels))
        for labels, value in family.rows:
            metric.add_metric((*self._values, *labels), value)
        return metric
