"""The example dashboard, loaded by Grafana's own schema and its expressions by a PromQL parser: it asks
for numbers that are told, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from ddl.core.snapshot import snapshot
from ddl.metrics.families import Family, of_learner, of_run
from tests.views import learner, view

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
UNKNOWN_TO_THE_SCHEMA = {"definition"}
"""A variable's query once more, as the settings page of older Grafanas shows it."""


def families() -> dict[str, Family]:
    shown = snapshot(view())
    assert shown is not None
    return {family.name: family for family in (*of_run(shown), *of_learner(learner("anna")))}


def expressions() -> list[tuple[str, str]]:
    """Each panel's expressions with the legend of each."""
    return [
        (target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


def selectors(text: str) -> list[promql_parser.VectorSelector]:
    """What an expression reads. Raises: ValueError: it is no PromQL, by grammar or by type."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        return True

    promql_parser.walk(promql_parser.parse(text), visit)
    return found


def sources(of: Any) -> list[Any]:
    """Every `datasource` at any depth."""
    if isinstance(of, list):
        return [found for one in of for found in sources(one)]
    if not isinstance(of, dict):
        return []
    below = sources([value for key, value in of.items() if key != "datasource"])
    return [of["datasource"], *below] if "datasource" in of else below


def test_grafana_s_schema_knows_all_of_it() -> None:
    """Nothing is lost when it is loaded and written again; a key with a slip of the pen would be."""
    register_default_plugins()
    loaded = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    lost = [*differences(DASHBOARD, loaded)]
    assert {path.rpartition(".")[2] for path in lost} == UNKNOWN_TO_THE_SCHEMA


def differences(ours: Any, loaded: Any, path: str = "") -> Iterator[str]:
    """Where the second, which may have more, has not what the first has."""
    if isinstance(ours, dict) and isinstance(loaded, dict):
        for key, value in ours.items():
            yield from differences(value, loaded.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(loaded, list) and len(ours) == len(loaded):
        for index, value in enumerate(ours):
            yield from differences(value, loaded[index], f"{path}[{index}]")
    elif ours != loaded:
        yield path


def test_every_variable_that_is_used_is_there() -> None:
    """The Prometheus to ask, and the run: each panel and each list names them as they are called."""
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    text = json.dumps([DASHBOARD["panels"], DASHBOARD["templating"]])
    assert set(re.findall(r"\$\{?(\w+)", text)) == set(names) == {"source", "run"}
    (by_kind,) = (one for one in DASHBOARD["templating"]["list"] if one["type"] == "datasource")
    assert by_kind["query"] == "prometheus"
    asked_there = [{"type": "prometheus", "uid": "${source}"}]
    assert sources(DASHBOARD) == asked_there * (len(DASHBOARD["panels"]) + 1)
    (asked,) = (one for one in DASHBOARD["templating"]["list"] if one["type"] == "query")
    found = re.fullmatch(r"label_values\((\w+), run\)", asked["query"]["query"])
    assert found is not None
    assert found[1] in families()
    assert asked["definition"] == asked["query"]["query"]


def test_every_number_that_a_panel_shows_is_told() -> None:
    """With the labels by which it is chosen and named, and of the run that is looked at."""
    told = families()
    assert len(expressions()) >= 15
    for text, legend in expressions():
        asked = selectors(text)
        assert asked, text
        labels = {"run", "learner"}
        for selector in asked:
            assert selector.name in told, text
            matched = {one.name: one.value for one in selector.matchers.matchers}
            labels |= set(told[selector.name].labels)
            assert matched["run"] == "$run", text
            assert matched.keys() <= labels, text
        assert set(re.findall(r"{{(\w+)}}", legend)) <= labels


def test_panels_fill_the_page_without_overlap() -> None:
    """Row by row, without a hole; each has an id of its own, and each query of a panel a letter."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
    bottom = max(y for _, y in taken) + 1
    assert taken == {(x, y) for x in range(24) for y in range(bottom)}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_readme_s_configuration_is_the_file_s() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert yaml.safe_load(shown) == yaml.safe_load((FOLDER / "prometheus.yml").read_text())
