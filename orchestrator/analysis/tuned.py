"""How the best metaparameters change with the batch size, and what rules for them cost: the steps
of a recipe that follows a rule, over those of a recipe that was tuned at each batch size."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from orchestrator.analysis.estimates import Estimate, reach_of
from orchestrator.analysis.pairs import Answers, Error, Side, StudyPair, sides_of, study_pair
from orchestrator.analysis.points import ENOUGH_STEPS, OfCurve, curves_of, has_medians
from orchestrator.analysis.scaling import scalings
from orchestrator.analysis.words import factor_in_words
from orchestrator.records import ENOUGH_SIZES, Value, plain
from orchestrator.results import FrontierRow, RunFiles

EFFECTIVE = "effective learning rate"
"""The learning rate over 1 - momentum: the total distance by which a gradient moves the weights."""

AVERAGING = ("muon", "shampoo", "schedulefreesgd")
"""Optimizers whose `momentum` averages gradients or weights, so that it lengthens no step."""

DECAYS = ("momentum", "beta1", "beta2", "decay_rate")


@dataclass(frozen=True, kw_only=True)
class Tuned(OfCurve):
    """The best values of one metaparameter for one workload, recipe and goal."""

    name: str
    points: tuple[tuple[int, float], ...]
    """(batch size, value), from the smallest batch size up, without batch sizes where it is 0."""
    exponent: Estimate | None
    """Exponent of the power of the batch size that the values follow: 1 is the linear rule, 0.5 the
    square root rule. Its interval comes from the scatter of the points about the power law. None if
    there are too few points, or if a value is 0."""

    @property
    def is_rate(self) -> bool:
        """Whether it is a learning rate, to which the usual rules apply."""
        return self.name in ("learning_rate", EFFECTIVE)

    def rule(self, exponent: float) -> tuple[tuple[int, float], ...]:
        """The values that a scaling rule derives from the first point."""
        first, value = self.points[0]
        return tuple((size, value * (size / first) ** exponent) for size, _ in self.points)


def tuned(rows: Sequence[FrontierRow]) -> list[Tuned]:
    """For each workload, recipe and goal: every metaparameter that was searched and is a positive
    number, the effective learning rate first."""
    known = [row for row in rows if row.params is not None and not row.censored]
    found = []
    for (workload, recipe, goal), curve in curves_of(known).items():
        best = {row.batch_size: row.answering[1] or {} for row in curve}
        values = {size: _numbers(params, curve[0].optimizer) for size, params in best.items()}
        steps = {row.batch_size: row.steps or 0 for row in curve if row.finished}
        names = dict.fromkeys(name for numbers in values.values() for name in numbers)
        for name in sorted(names, key=lambda name: name != EFFECTIVE):
            points = [(size, numbers[name]) for size, numbers in values.items() if name in numbers]
            if len({value for _, value in points}) < 2:
                continue
            known_all = all(params.get(name) != 0 for params in best.values())
            telling = [point for point in points if steps.get(point[0], 0) >= ENOUGH_STEPS]
            found.append(
                Tuned(
                    workload=workload,
                    recipe=recipe,
                    goal=goal,
                    name=name,
                    points=tuple(points),
                    exponent=_power(telling) if known_all else None,
                )
            )
    return found


def _numbers(params: Mapping[str, Value], optimizer: str) -> dict[str, float]:
    numbers = {
        name: float(value)
        for name, value in params.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    # The decay of a moving average acts by its distance from 1.
    for name in [name for name in numbers if name in DECAYS and numbers[name] < 1]:
        numbers[f"1 - {name}"] = 1 - numbers.pop(name)
    if {"learning_rate", "1 - momentum"} <= {*numbers} and plain(optimizer) not in AVERAGING:
        numbers[EFFECTIVE] = numbers["learning_rate"] / numbers["1 - momentum"]
    return {name: value for name, value in numbers.items() if value > 0}


def _power(points: Sequence[tuple[int, float]]) -> Estimate | None:
    """The slope of log value against log batch size; none without scatter, which is its error."""
    if len(points) < ENOUGH_SIZES or len({value for _, value in points}) < 2:
        return None
    sizes, values = np.log2(np.array(points, dtype=np.float64)).T
    (slope, _), covariance = np.polyfit(sizes, values, 1, cov=True)
    reach = float(np.sqrt(covariance[0, 0])) * reach_of(len(points) - 2)
    return Estimate(value=float(slope), low=float(slope - reach), high=float(slope + reach))


Known = tuple[StudyPair, Side, Side]
"""The steps tuned and under a rule at one batch size, with both studies."""


@dataclass(frozen=True, kw_only=True)
class RuleCost(OfCurve):
    """What a recipe's rules cost at one batch size, and over all batch sizes."""

    tuned: str
    """The tuned recipe, which has the same optimizer."""
    batch_size: int
    ratio: Estimate | None
    """Steps under the rule over steps tuned; None if neither reached the goal, or if one of the two
    has not finished. If one did not reach it, this is the bound that its budget sets: the interval
    goes up to infinity where the rule did not, and begins at 0 where the tuned recipe did not."""
    of_medians: bool
    """Whether steps are medians. A minimum of many is lucky, and ratios to it too high."""
    mean: Estimate | None
    """Geometric mean of the ratio over the batch sizes at which all rules have one. The luck of a
    search is taken to be the same at all of them."""


def rule_costs(run: RunFiles, rows: Sequence[FrontierRow]) -> list[RuleCost]:
    """What the rules of the run's recipes cost, the cheapest first. `rows` is its frontier."""
    budgets = {study.key: study.budget_steps for study in run.studies()}
    return costs_of(Answers(rows=rows, budgets=budgets), ruled_recipes(run.sweep()))


def costs_of(answers: Answers, ruled: Collection[str]) -> list[RuleCost]:
    curves = answers.curves()
    found = []
    for names, tuned in curves.items():
        if names[1] in ruled or all(row.trials_used < 2 for row in tuned):
            continue
        rules = [
            _beside(answers, tuned, curve)
            for other, curve in curves.items()
            if other[1] in ruled
            and (other[0], other[2]) == (names[0], names[2])
            and curve[0].optimizer == tuned[0].optimizer
        ]
        sizes = [{pair.batch_size for pair, *_ in rule if pair.ratio} for rule in rules]
        common = set.intersection(*filter(None, sizes)) if any(sizes) else set()
        costs = [
            RuleCost(
                workload=pair.workload, recipe=b.row.recipe, goal=pair.goal, tuned=names[1],
                batch_size=pair.batch_size, ratio=pair.ratio, of_medians=pair.of_medians,
                mean=mean,
            )
            for rule in rules
            for mean in [_mean([known for known in rule if known[0].batch_size in common])]
            for pair, _, b in rule
        ]  # fmt: skip
        found += sorted(costs, key=lambda c: (c.mean.value if c.mean else math.inf, c.recipe))
    return found


def ruled_recipes(sweep: Mapping[str, Any]) -> set[str]:
    """The recipes of a sweep of which any metaparameter follows a rule."""
    found = set()
    for recipe in sweep.get("recipes") or ():
        space = recipe.get("space") or {}
        entries = [*(space.get("only") or space).values(), *recipe.get("schedule", {}).values()]
        if any(isinstance(one, dict) and "rule" in one for one in entries):
            found.add(str(recipe["name"]))
    return found


def _beside(
    answers: Answers, tuned: Sequence[FrontierRow], ruled: Sequence[FrontierRow]
) -> list[Known]:
    rows = [*tuned, *ruled]
    if has_medians(tuned) != has_medians(ruled):
        rows = [replace(row, repeats=None) for row in rows]
    sides = sides_of(replace(answers, rows=rows), {one.names: one for one in scalings(rows)})
    of_tuned = {row.batch_size: sides[row.key, row.goal] for row in tuned}
    found = []
    for row in ruled:
        if (a := of_tuned.get(row.batch_size)) is not None:
            b = sides[row.key, row.goal]
            if row.trials_used == 1 and len(b.own) > 1:
                b = replace(b, few_trials=Error(0.0))  # nothing was chosen, and seeds are known
            found.append((study_pair(a, b), a, b))
    return found


def _mean(rule: Sequence[Known]) -> Estimate | None:
    """The geometric mean of ratios. Errors of seeds and of the distance between measurements are
    independent; what other points would have found moves all batch sizes alike. None if there are
    no ratios, or bounds from both sides, which say nothing of their mean."""
    used = [(pair.ratio, a, b) for pair, a, b in rule if pair.ratio]
    from_zero = any(ratio.low == 0 for ratio, *_ in used)
    endless = any(ratio.high == math.inf for ratio, *_ in used)
    if not used or (from_zero and endless):
        return None
    variance = 0.0
    for sides in zip(*((a, b) for _, a, b in used), strict=True):
        variance += sum(error.variance for side in sides for error in side.own)
        variance += sum(math.sqrt(s.few_trials.variance) for s in sides if s.few_trials) ** 2
    middle = sum(math.log2(ratio.value) for ratio, *_ in used) / len(used)
    reach = reach_of(math.inf) * math.sqrt(variance) / len(used)
    return Estimate(
        value=2**middle,
        low=0.0 if from_zero else 2 ** (middle - reach),
        high=math.inf if endless else 2 ** (middle + reach),
    )


def tables_of_rules(costs: Sequence[RuleCost]) -> list[tuple[str, list[str], list[list[str]]]]:
    """What rules cost, as tables: what each is about, its headings, and its rows."""
    found = []
    for (workload, goal, tuned), some in groupby(costs, lambda c: (c.workload, c.goal, c.tuned)):
        mine = [*some]
        sizes = sorted({cost.batch_size for cost in mine})
        cells = []
        for recipe, group in groupby(mine, lambda cost: cost.recipe):
            of_rule = [*group]
            by_size = {cost.batch_size: cost.ratio for cost in of_rule}
            said = [of_rule[0].mean, *map(by_size.get, sizes)]
            cells.append([recipe, *("" if one is None else factor_in_words(one) for one in said)])
        about = (
            f"{workload}, until {goal}: steps of each rule over those of {tuned}, which was tuned "
            f"at each batch size, with 90 % intervals. The cheapest rule comes first."
        )
        if not all(cost.of_medians for cost in mine if cost.ratio):
            about += (
                " Some are minima: the best of many trials was lucky, so ratios to it are too "
                "high. `repeats` give medians."
            )
        found.append((about, ["Rule", "Mean", *(f"at {size:,}" for size in sizes)], cells))
    return found
