"""The Grafana dashboard draws what Prometheus is told: all of it, and nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.metrics import ExportedMetrics
from orchestrator.records import STATUSES

# isort: split
from ray.util.metrics import Counter, Metric

BOARD = json.loads((Path(__file__).parent.parent / "dashboards" / "grafana.json").read_text())
PANELS = BOARD["panels"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Metric -> its labels."""
    told = [each for each in vars(ExportedMetrics("any", 1)).values() if isinstance(each, Metric)]
    return {
        f"ray_{metric.info['name']}{'_total' * isinstance(metric, Counter)}": set(
            metric.info["tag_keys"]
        )
        for metric in told
    }


def selectors(expression: str) -> list[tuple[str, dict[str, str]]]:
    """The metrics it selects, and by what."""
    return [
        (name, dict(re.findall(r'(\w+)=~?"(.*?)"', matchers)))
        for name, matchers in re.findall(r"(\w+)\{(.*?)\}", expression)
    ]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])
def test_a_query_is_of_one_sweep_and_of_what_is_exported(
    target: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    expression = target["expr"]
    by = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \((.*?)\)", expression))))
    selected = selectors(expression)
    assert len(selected) == expression.count("orchestrate") > 0
    for name, matchers in selected:
        assert matchers["sweep"] == "$sweep"
        assert matchers.keys() | by <= exported[name]
        assert set(re.findall(r"\w+", matchers.get("status", ""))) <= set(STATUSES)
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= by
    assert set(re.findall(r"\$([a-z]\w*)", expression)) <= VARIABLES.keys()


def test_every_metric_is_drawn(exported: dict[str, set[str]]) -> None:
    drawn = {name for target in TARGETS for name, _ in selectors(target["expr"])}
    assert drawn == exported.keys()


def test_choices_are_labels_of_what_is_exported(exported: dict[str, set[str]]) -> None:
    queries = [one["query"]["query"] for one in VARIABLES.values() if one["type"] == "query"]
    assert queries
    for query in queries:
        asked = re.fullmatch(r"label_values\((\w+)(?:\{(\w+)=.*\})?, (\w+)\)", query)
        assert asked
        assert {asked[2] or "sweep", asked[3]} <= exported[asked[1]]
