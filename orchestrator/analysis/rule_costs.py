"""What a rule costs: the steps of a recipe whose metaparameters follow a rule, over those of a
recipe that was tuned at each batch size."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from scipy.special import ndtri

from orchestrator.analysis.estimates import CONFIDENCE, Estimate
from orchestrator.analysis.pairs import Answers, Error, Side, StudyPair, sides_of, study_pair
from orchestrator.analysis.points import OfCurve, has_medians
from orchestrator.analysis.scaling import scalings
from orchestrator.analysis.words import factor_in_words
from orchestrator.results import FrontierRow, Run

Bound = Literal["", "at least", "at most"]
"""`at least` where the rule never reached the goal, `at most` where the tuned recipe did not."""


@dataclass(frozen=True, kw_only=True)
class RuleCost(OfCurve):
    """What a recipe's rules cost at one batch size, and over all batch sizes."""

    tuned: str
    """The tuned recipe, which has the same optimizer."""
    batch_size: int
    steps: Estimate | None
    """Steps to goal under the rule; None where it never reached the goal."""
    tuned_steps: Estimate | None
    ratio: Estimate | None
    """Steps under the rule over steps tuned; None if neither reached the goal, or if one of the two
    has not finished."""
    bound: Bound = ""
    """Whether the ratio is only a bound, which the budget sets."""
    of_medians: bool
    """Whether the steps are medians of repeats. The minimum over many trials is too low by luck, so
    a ratio to it is too high."""
    mean: Estimate | None = None
    """Geometric mean of the ratio over the batch sizes at which all rules have one. The luck of a
    search is taken to be the same at all of them."""
    mean_bound: Bound = ""
    rank: int = 0
    """Place among all rules beside the same tuned recipe, the cheapest first."""


def rule_costs(run: Run, rows: Sequence[FrontierRow]) -> list[RuleCost]:
    """What the rules of the run's recipes cost, the cheapest first. `rows` is its frontier."""
    budgets = {study.key: study.budget_steps for study in run.studies()}
    return costs_of(Answers(rows=rows, budgets=budgets), ruled_recipes(run.sweep()))


def costs_of(answers: Answers, ruled: Collection[str]) -> list[RuleCost]:
    """What it costs that these recipes follow rules."""
    curves = answers.curves()
    found = []
    for names, tuned in curves.items():
        if names[1] in ruled or all(row.trials_used < 2 for row in tuned):
            continue
        others = {
            other: curve
            for other, curve in curves.items()
            if other[1] in ruled
            and (other[0], other[2]) == (names[0], names[2])
            and curve[0].optimizer == tuned[0].optimizer
        }
        found += _ranked([_costs(answers, tuned, curve) for curve in others.values()])
    return found


def ruled_recipes(sweep: Mapping[str, Any]) -> set[str]:
    """The recipes of a sweep of which any metaparameter follows a rule."""
    found = set()
    for recipe in sweep.get("recipes") or ():
        space = recipe.get("space") or {}
        entries = [*(space.get("only") or space).values(), *recipe.get("schedule", {}).values()]
        if recipe.get("rules") or any(isinstance(one, dict) and "rule" in one for one in entries):
            found.add(str(recipe["name"]))
    return found


Known = list[tuple[RuleCost, Side, Side]]
"""The cost at each batch size, with both studies."""


def _costs(answers: Answers, tuned: Sequence[FrontierRow], ruled: Sequence[FrontierRow]) -> Known:
    rows = [*tuned, *ruled]
    if has_medians(tuned) != has_medians(ruled):
        rows = [replace(row, repeats=None) for row in rows]
    sides = sides_of(replace(answers, rows=rows), {one.names: one for one in scalings(rows)})
    of_tuned = {row.batch_size: sides[row.key, row.goal] for row in tuned}
    found = []
    for row in ruled:
        if (a := of_tuned.get(row.batch_size)) is None:
            continue
        b = sides[row.key, row.goal]
        if row.trials_used == 1 and b.point is not None and b.point.is_median:
            b = replace(b, few_trials=Error(0.0))  # nothing was chosen
        pair = study_pair(a, b, alike=False)
        found.append((_cost(pair, a, b), a, b))
    return found


def _cost(pair: StudyPair, a: Side, b: Side) -> RuleCost:
    bound: Bound = ""
    if pair.ratio is not None and not (a.point and b.point):
        bound = "at most" if a.point is None else "at least"
    return RuleCost(
        workload=pair.workload, recipe=b.row.recipe, goal=pair.goal, tuned=a.row.recipe,
        batch_size=pair.batch_size, steps=pair.b, tuned_steps=pair.a, ratio=pair.ratio,
        bound=bound, of_medians=pair.of_medians,
    )  # fmt: skip


def _ranked(rules: Sequence[Known]) -> list[RuleCost]:
    """The costs of all rules beside one tuned recipe, with their means and ranks."""
    sizes = [{cost.batch_size for cost, *_ in rule if cost.ratio is not None} for rule in rules]
    common = set.intersection(*filter(None, sizes)) if any(sizes) else set()
    found = []
    for rule in rules:
        used = [known for known in rule if known[0].batch_size in common and known[0].ratio]
        mean = _mean(used) if used else None
        bounds = {cost.bound for cost, *_ in used} - {""}
        bound: Bound = bounds.pop() if len(bounds) == 1 else ""
        if bounds:
            mean = None  # bounds from both sides say nothing of their mean
        found += [replace(cost, mean=mean, mean_bound=bound) for cost, *_ in rule]
    found.sort(key=lambda cost: (math.inf if cost.mean is None else cost.mean.value, cost.recipe))
    return [
        replace(cost, rank=rank)
        for rank, (_, costs) in enumerate(groupby(found, lambda cost: cost.recipe), start=1)
        for cost in costs
    ]


def _mean(used: Known) -> Estimate:
    """The geometric mean of ratios. Errors of seeds and of the distance between measurements are
    independent; what other points would have found moves all batch sizes alike."""
    logs = [math.log2(cost.ratio.value) for cost, *_ in used if cost.ratio]
    variance = 0.0
    for sides in zip(*((a, b) for _, a, b in used), strict=True):
        variance += sum(error.variance for side in sides for error in side.own)
        variance += sum(math.sqrt(s.few_trials.variance) for s in sides if s.few_trials) ** 2
    middle = sum(logs) / len(logs)
    reach = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(variance) / len(logs)
    bounds = {cost.bound for cost, *_ in used}
    return Estimate(
        value=2**middle,
        low=0.0 if "at most" in bounds else 2 ** (middle - reach),
        high=math.inf if "at least" in bounds else 2 ** (middle + reach),
    )


NO_RULES = (
    "No recipe whose metaparameters follow a rule stands beside one of the same optimizer that was "
    "tuned at each batch size."
)


def tables_of_rules(costs: Sequence[RuleCost]) -> list[tuple[str, list[str], list[list[str]]]]:
    """What rules cost, as tables: what each is about, its headings, and its rows."""
    found = []
    for (workload, goal, tuned), some in groupby(costs, lambda c: (c.workload, c.goal, c.tuned)):
        mine = [*some]
        sizes = sorted({cost.batch_size for cost in mine})
        cells = []
        for recipe, group in groupby(mine, lambda cost: cost.recipe):
            by_size = {cost.batch_size: cost for cost in group}
            one = next(iter(by_size.values()))
            at = [by_size.get(size) for size in sizes]
            cells.append(
                [recipe, _said(one.mean, one.mean_bound)]
                + ["" if cost is None else _said(cost.ratio, cost.bound) for cost in at]
            )
        lucky = "" if all(cost.of_medians for cost in mine) else LUCKY
        about = (
            f"{workload}, until {goal}: steps of each rule over those of {tuned}, which was tuned "
            f"at each batch size, with 90 % intervals. The cheapest rule comes first.{lucky}"
        )
        found.append((about, ["Rule", "Mean", *(f"at {size:,}" for size in sizes)], cells))
    return found


LUCKY = (
    " Some are minima: the best of many trials was lucky, so ratios to it are too high. `repeats` "
    "give medians."
)


def _said(ratio: Estimate | None, bound: Bound) -> str:
    if ratio is None:
        return ""
    end = {"at least": ratio.low, "at most": ratio.high}.get(bound)
    if end is None:
        return factor_in_words(ratio)
    return f"{bound} {factor_in_words(Estimate(value=end))}"
