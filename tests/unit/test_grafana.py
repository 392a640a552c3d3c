"""The example dashboard asks for numbers that are told, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from ddl.core.snapshot import snapshot
from ddl.metrics.families import Family, of_learner, of_run
from tests.views import learner, view

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
WORDS = {"sum", "deriv", "time", "vector", "or"}


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


def test_every_number_that_a_panel_shows_is_told() -> None:
    told = families()
    assert len(expressions()) >= 15
    for text, legend in expressions():
        asked = re.findall(r"\bddl_\w+", text)
        assert asked, text
        assert set(asked) <= told.keys(), text
        labels = {"run", "learner"}.union(*(told[name].labels for name in asked))
        assert set(re.findall(r"(\w+)=\"", text)) <= labels
        assert set(re.findall(r"{{(\w+)}}", legend)) <= labels
        assert text.count("(") == text.count(")")
        assert set(re.findall(r"\b([a-z]+)\(", text)) <= WORDS


def test_panels_fill_the_page_without_overlap() -> None:
    """And each has an id of its own."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_readme_s_configuration_is_the_file_s() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert yaml.safe_load(shown) == yaml.safe_load((FOLDER / "prometheus.yml").read_text())
