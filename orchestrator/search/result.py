"""Results: the data of a trial that ended which a search needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.records import (
    FinishedTrial,
    Goal,
    Status,
    Study,
    TrialKey,
    Value,
)
from orchestrator.search.proposer import is_adaptive
from orchestrator.search.race import Bounds, joined


@dataclass(frozen=True, kw_only=True)
class Result:
    """The data of a trial that ended which a search needs."""

    key: TrialKey
    status: Status
    steps: int
    died: bool
    """Whether it failed because its process was lost."""
    params: Mapping[str, Value]
    passed: Mapping[Goal, int]
    """Goal -> step at which the trial passed it."""
    shown: Mapping[Goal, tuple[tuple[int, float], ...]]
    """Goal -> (step, value of its metric) at each measurement for an adaptive search, else at the
    last measurement only."""


def result_of(finished: FinishedTrial) -> Result:
    trial, outcome = finished.trial, finished.outcome
    passed: dict[Goal, int] = {}
    shown: dict[Goal, tuple[tuple[int, float], ...]] = {}
    for goal in trial.study.goals:
        curve = [
            (measurement.step, measurement.metrics[goal.metric])
            for measurement in finished.measurements
            if goal.metric in measurement.metrics
        ]
        first = next((step for step, value in curve if goal.passed(value)), None)
        if first is not None:
            passed[goal] = first
        shown[goal] = tuple(curve if is_adaptive(trial.study.search.algorithm) else curve[-1:])
    return Result(
        key=trial.key,
        status=outcome.status,
        steps=outcome.steps,
        died=outcome.died,
        params=trial.params,
        passed=passed,
        shown=shown,
    )


def bounds_after(bounds: Bounds, study: Study, result: Result) -> Bounds:
    """Returns the bounds of a study after a trial of its search ended with `result`."""
    if result.key.repeat or result.status == "failed" or not result.passed:
        return bounds
    return tuple(
        joined((ranking, ((result.passed[goal], result.key.index),)), study.keep)
        if goal in result.passed
        else ranking
        for goal, ranking in zip(study.goals, bounds, strict=True)
    )


def shortfall(goal: Goal, value: float) -> float:
    """Returns the distance of a metric from its goal, relative to the goal's bound. It is infinite
    for a value that is not finite."""
    if not math.isfinite(value):
        return math.inf
    if goal.passed(value):
        return 0.0
    return abs(value - goal.bound) / (abs(goal.bound) or 1.0)
