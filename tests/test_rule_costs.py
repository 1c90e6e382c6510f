"""What rules cost, held against planted costs and on a run."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import called
from test_compare import SIZES, curve
from test_papers import RUN

from orchestrator.analysis.pairs import Answers
from orchestrator.analysis.tuned import costs_of, ruled_recipes, tables_of_rules
from orchestrator.api.run import Run
from orchestrator.results import FrontierRow

pytestmark = pytest.mark.dear


def costs(*curves: list[FrontierRow], ruled: set[str]) -> Any:
    rows = [row for rows in curves for row in rows]
    return costs_of(Answers(rows=rows, budgets={row.key: 50_000 for row in rows}), ruled)


def never(row: FrontierRow) -> FrontierRow:
    assert row.repeats is not None
    again = replace(row.repeats, median=None, high=None, reached=0, steps=())
    return replace(row, reached=False, steps=None, repeats=again)


def untrained(rows: list[FrontierRow]) -> list[FrontierRow]:
    """The rows of a recipe that has nothing to search."""
    return [replace(row, trials_used=1, leaders=()) for row in rows]


def test_planted_costs_lie_within_their_intervals() -> None:
    inside, means = [], []
    for seed in range(12):
        by_rule = untrained(curve("rule", times=1.4, noise=0.1, seed=1000 + seed))
        found = costs(curve("tuned", noise=0.1, seed=seed), by_rule, ruled={"rule"})
        assert [cost.batch_size for cost in found] == SIZES
        inside += [cost.ratio.low <= 1.4 <= cost.ratio.high for cost in found]
        means.append(found[0].mean)
    assert 0.83 <= sum(inside) / len(inside) <= 0.99
    assert sum(mean.low <= 1.4 <= mean.high for mean in means) >= 9
    widths = [mean.high / mean.low for mean in means]
    assert max(widths) < 1.4  # ten batch sizes tell more than one


def test_rules_are_ranked_by_their_mean_cost() -> None:
    rules = {"dear": 2.0, "free": 1.0, "cheap": 1.3}
    curves = [untrained(curve(name, times=times, seed=3)) for name, times in rules.items()]
    found = costs(curve("tuned"), *curves, ruled={*rules})
    assert [cost.recipe for cost in found[:: len(SIZES)]] == ["free", "cheap", "dear"]
    assert found[-1].mean.value == pytest.approx(2.0, rel=0.03)


def test_where_a_rule_never_reached_the_goal_its_cost_has_no_upper_end() -> None:
    tuned, by_rule = curve("tuned"), untrained(curve("rule", times=1.2, seed=1))
    by_rule[3] = never(by_rule[3])
    found = costs(tuned, by_rule, ruled={"rule"})
    cost = found[3]
    assert cost.ratio.value == pytest.approx(50_000 / tuned[3].repeats.median)  # type: ignore
    assert cost.ratio.high == cost.mean.high == math.inf
    ((_, heads, (cells,)),) = tables_of_rules(found)
    assert dict(zip(heads, cells, strict=True))["at 8"].endswith(" or more)")
    tuned[3] = never(tuned[3])
    found = costs(tuned, by_rule, ruled={"rule"})
    assert found[3].ratio is None
    assert "minima" not in tables_of_rules(found)[0][0], "there are no steps at all"
    by_rule[3] = untrained(curve("rule"))[3]
    assert costs(tuned, by_rule, ruled={"rule"})[3].ratio.low == 0


def test_means_are_over_the_batch_sizes_that_all_rules_have() -> None:
    half, whole = (untrained(curve(name, times=1.5, seed=3)) for name in ("half", "whole"))
    half[5:] = [replace(row, finished=False) for row in half[5:]]
    whole[5:] = [never(row) for row in whole[5:]]
    found = costs(curve("tuned"), half, whole, ruled={"half", "whole"})
    assert all(cost.mean.high < math.inf for cost in found)
    assert found[0].mean.value == pytest.approx(found[-1].mean.value)


def test_only_a_recipe_of_the_same_optimizer_that_was_tuned_stands_beside_a_rule() -> None:
    rule = untrained(curve("rule"))
    assert costs(untrained(curve("fixed")), rule, ruled={"rule"}) == []
    other = [replace(row, optimizer="adam") for row in curve("other")]
    assert costs(other, rule, ruled={"rule"}) == []
    assert costs(curve("tuned"), ruled={"gone"}) == []


def test_minima_are_compared_with_minima_and_said_to_be() -> None:
    alone = [replace(row, repeats=None) for row in untrained(curve("rule"))]
    found = costs(curve("tuned"), alone, ruled={"rule"})
    assert not any(cost.of_medians for cost in found)
    assert "minima" in tables_of_rules(found)[0][0]


@pytest.mark.parametrize(
    ("recipe", "follows"),
    [
        ({"space": {"learning_rate": {"rule": "sqrt"}}}, True),
        ({"space": {"only": {"learning_rate": {"rule": "sqrt"}}}}, True),
        ({"space": {}, "schedule": {"warmup_steps": {"rule": "linear"}}}, True),
        ({"space": {"learning_rate": {"low": 1}}}, False),
        ({}, False),
    ],
)
def test_recipes_that_follow_a_rule_are_known_by_the_sweep(recipe: Any, follows: bool) -> None:
    assert bool(ruled_recipes({"recipes": [{"name": "r", **recipe}]})) == follows
    assert ruled_recipes({}) == set()


def test_the_command_python_and_the_page_say_the_same(tmp_path: Path) -> None:
    run, about = Run(str(RUN)), "steps of each rule over those of tuned"
    said = json.loads(called("frontier", RUN, "--rules", "--json"))
    assert [cost["recipe"] for cost in said] == [cost.recipe for cost in run.rules()]
    assert [cost["of_medians"] for cost in said] == [True] * 15
    assert about in called("frontier", RUN, "--rules")
    assert about in Path(run.report(tmp_path / "page.html")).read_text()
