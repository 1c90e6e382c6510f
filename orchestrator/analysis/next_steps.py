"""What to train next: the additions to a sweep that narrow its answers most for their price.

An addition is judged by the data that it is expected to bring. The points lie on the curve in the
middle of those that the points of today allow, with today's errors, of which the addition makes one
smaller, or with one point more. The interval of the fifth-more batch size that follows is compared
with the one that today's errors give in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import mul
from typing import Any, Literal

import numpy as np

from orchestrator.analysis.curve import curves_through
from orchestrator.analysis.errors import Errors
from orchestrator.analysis.estimates import Floats
from orchestrator.analysis.points import OfCurve
from orchestrator.analysis.scaling import CRITICAL_TOLERANCE, Scaling
from orchestrator.analysis.words import ends_of
from orchestrator.records import Study, grouped
from orchestrator.results import MeanCost

StepKind = Literal["trials", "repeats", "batch size"]

MOST_STEPS = 3

WORTH = 0.05
"""An addition must be expected to take this share off the width of one interval."""

GAP = 2.5
"""Ratio of neighbouring batch sizes above which one between them is considered."""

BY_TWICE_THE_TRIALS = 2 ** (-4 / 3)
"""Share of the best's variance that twice the trials leave, if three metaparameters matter."""


@dataclass(frozen=True, kw_only=True)
class Effect(OfCurve):
    """The width of the interval of one curve, in doublings, today and after an addition."""

    before: float
    after: float

    @property
    def is_worth_it(self) -> bool:
        return self.after < (1 - WORTH) * self.before


@dataclass(frozen=True, kw_only=True)
class Step:
    """An addition to a sweep, with its expected effects and its price."""

    kind: StepKind
    workloads: tuple[str, ...]
    recipes: tuple[str, ...]
    totals: tuple[tuple[int, int], ...]
    """(batch size, number of trials or repeats after the addition)"""
    effects: tuple[Effect, ...] = ()
    trainings: float = 0
    examples: float = 0
    seconds: float | None = None
    """Device-seconds; None if not known."""

    @property
    def batch_sizes(self) -> list[int]:
        return [size for size, _ in self.totals]

    @property
    def narrowing(self) -> float:
        return sum(effect.before - effect.after for effect in self.effects)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "narrowing": self.narrowing}


def next_steps(
    scalings: Sequence[Scaling], studies: Sequence[Study], paid: Sequence[MeanCost]
) -> list[Step]:
    """At most three additions, the one that narrows most for its price first, given what trainings
    have `paid`."""
    known = [one for one in scalings if one.curves is not None]
    widths = [_width(one, None) for one in known]
    steps = [
        with_price(replace(step, effects=tuple(_effects(step, known, widths))), studies, paid)
        for step in _candidates(known, studies)
    ]
    worth = [step for step in steps if any(effect.is_worth_it for effect in step.effects)]
    by_seconds = all(step.seconds is not None for step in worth)

    def order(step: Step) -> float:
        return -step.narrowing / max((step.seconds if by_seconds else step.examples) or 0, 1e-9)

    return sorted(worth, key=order)[:MOST_STEPS]


def _candidates(scalings: Sequence[Scaling], studies: Sequence[Study]) -> Iterator[Step]:
    for names in dict.fromkeys((one.workload, one.recipe) for one in scalings):
        of_recipe = [s for s in studies if (s.workload, s.recipe) == names and not s.batch_schedule]
        # No trials can be added to points that are listed.
        listed = any(s.is_one_point or s.search.algorithm == "points" for s in of_recipe)
        enlarged: list[tuple[StepKind, dict[int, int]]] = [
            ("repeats", {s.batch_size: 2 * s.repeats for s in of_recipe if s.repeats}),
            ("trials", {s.batch_size: 2 * s.trials for s in of_recipe if not listed}),
        ]
        for kind, totals in enlarged:
            if totals:
                whole = tuple(sorted(totals.items()))
                yield Step(kind=kind, workloads=names[:1], recipes=names[1:], totals=whole)
    workloads = tuple(dict.fromkeys(study.workload for study in studies))
    recipes = tuple(dict.fromkeys(study.recipe for study in studies))
    trials = min((study.trials for study in studies), default=1)
    for size in _new_sizes(scalings, studies):
        one = ((size, trials),)
        yield Step(kind="batch size", workloads=workloads, recipes=recipes, totals=one)


def _new_sizes(scalings: Sequence[Scaling], studies: Sequence[Study]) -> list[int]:
    """Batch sizes that were not tested, in the gap that is nearest to the fifth-more batch size."""
    sizes = sorted({s.batch_size for s in studies if s.batch_schedule is None})
    most = min((s.train_size for s in studies if s.train_size is not None), default=math.inf)
    found: dict[int, None] = {}
    for one in scalings:
        fifth = one.critical_by_examples
        gaps = [(low, high) for low, high in pairwise(sizes) if GAP * low < high <= most]
        if gaps and fifth is not None:
            at = math.log(fifth.value)
            low, high = min(gaps, key=lambda gap: abs(math.log(gap[0] * gap[1]) / 2 - at))
            found[round(math.sqrt(low * high))] = None
    return [*found]


def _effects(
    step: Step, scalings: Sequence[Scaling], widths: Sequence[float | None]
) -> Iterator[Effect]:
    for one, before in zip(scalings, widths, strict=True):
        if one.workload in step.workloads and one.recipe in step.recipes:
            after = _width(one, step)
            if after is not None and before is not None:
                yield Effect(
                    workload=one.workload, recipe=one.recipe, goal=one.goal,
                    before=before, after=min(before, after),
                )  # fmt: skip


def _width(scaling: Scaling, step: Step | None) -> float | None:
    """The width of the interval of the fifth-more batch size, in doublings, for points on the curve
    in the middle of all; None if the step changes nothing that is known."""
    curves, errors = scaling.curves, scaling.errors
    assert curves is not None
    assert errors is not None
    sizes, covariance = curves.log_sizes, _after(errors, step)
    if covariance is None:
        return None
    if step is not None and step.kind == "batch size":
        position = int(np.searchsorted(sizes, math.log2(step.batch_sizes[0])))
        sizes = np.insert(sizes, position, math.log2(step.batch_sizes[0]))
        typical = float(np.diag(covariance).mean())
        for axis in (0, 1):
            covariance = np.insert(covariance, position, 0.0, axis=axis)
        covariance[position, position] = typical
    covariance = covariance + float(np.median(curves.scatter)) ** 2 * np.eye(len(sizes))
    middle = np.median(curves.log_steps(sizes), axis=0)
    low, high = curves_through(sizes, middle, covariance).examples_within(CRITICAL_TOLERANCE).ends
    return math.log2(high / low)


def _after(errors: Errors, step: Step | None) -> Floats | None:
    if step is None or step.kind == "batch size":
        return errors.covariance
    if step.kind == "repeats":
        fewer = None if errors.seeds is None else replace(errors, seeds=errors.seeds / 2)
    else:
        few = errors.few_trials
        fewer = None if few is None else replace(errors, few_trials=BY_TWICE_THE_TRIALS * few)
    return None if fewer is None else fewer.covariance


def with_price(step: Step, studies: Sequence[Study], taken: Sequence[MeanCost]) -> Step:
    """The step with the price of its trainings, for all its workloads and recipes together."""
    ordered = sorted(taken, key=lambda one: one.key.batch_size)
    of_recipes = grouped(ordered, lambda one: (one.key.workload, one.key.recipe))
    added = [
        (trials, repeats, *_price_at(of_recipes[names], size))
        for names, size, trials, repeats in _added(step, studies)
        if names in of_recipes
    ]
    examples = [trials * trial + repeats * again for trials, repeats, trial, again, _ in added]
    known = [rate for *_, rate in added if rate is not None]
    return replace(
        step,
        trainings=sum(trials + repeats for trials, repeats, *_ in added),
        examples=sum(examples),
        seconds=sum(map(mul, known, examples)) if known and len(known) == len(added) else None,
    )


def _added(
    step: Step, studies: Sequence[Study]
) -> Iterator[tuple[tuple[str, str], int, float, float]]:
    """((workload, recipe), batch size, trials, repeats) that the step adds."""
    totals, seen = dict(step.totals), set()
    for study in studies:
        names, repeats = (study.workload, study.recipe), _repeats(study, study.repeats)
        if study.workload not in step.workloads or study.recipe not in step.recipes:
            continue
        if step.kind == "batch size":
            if names not in seen:
                own = [s.trials for s in studies if (s.workload, s.recipe) == names]
                yield names, step.batch_sizes[0], min(own), repeats
            seen.add(names)
        elif (total := totals.get(study.batch_size)) is not None and not study.batch_schedule:
            if step.kind == "repeats":
                yield names, study.batch_size, 0, _repeats(study, total) - repeats
            else:
                # If half of the best points are new ones, their repeats are trained as well.
                yield names, study.batch_size, total - study.trials, repeats / 2


def _repeats(study: Study, count: int) -> int:
    """How many trainings it takes to repeat the best trials of one goal so often."""
    return replace(study, repeats=count, goals=study.goals[:1]).most_repeats


def _price_at(known: Sequence[MeanCost], batch_size: int) -> tuple[float, float, float | None]:
    """Examples of a trial and of a repeat at a batch size, and seconds per example, interpolated
    between those that were trained."""
    sizes = np.log2([one.key.batch_size for one in known])
    rates = [one.seconds_per_example for one in known if one.seconds_per_example is not None]

    def at(amounts: Sequence[float]) -> float:
        logs = [math.log2(amount or 1) for amount in amounts]
        return float(2 ** np.interp(math.log2(batch_size), sizes, logs))

    return (
        at([one.trial_examples for one in known]),
        at([one.repeat_examples for one in known]),
        at(rates) if len(rates) == len(known) else None,
    )


def step_in_words(step: Step) -> str:
    of = ", ".join(step.recipes)
    if step.kind == "batch size":
        return f"one more batch size, {step.batch_sizes[0]:,}, for {of}"
    return f"{ends_of([number for _, number in step.totals])} {step.kind} for {of}"


def effect_in_words(effect: Effect) -> str:
    """Says how the interval of one curve would change: its upper end over its lower end."""
    return f"x{2**effect.before:.3g} -> x{2**effect.after:.3g}"
