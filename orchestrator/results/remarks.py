"""Warnings that a reader of a frontier should see beside its steps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.records import Goal, Range, Study, cut, near_bounds
from orchestrator.results.store import RunFiles

UNKNOWN = (
    "These runs were trained elsewhere. How their points were chosen, and in which ranges, is "
    "unknown, and batch sizes may have different points. So nothing is said about what more or "
    "fewer trials would have found, and a batch size that was tuned less looks worse than it is."
)

NEAR_END = re.compile(r"(.+) \S+ is near the (upper|lower) end")  # as `near_ends` says it


def unknown_of(run: RunFiles) -> str | None:
    """What a run can't say because its runs were trained elsewhere; None if a sweep made it, or if
    it is an archive, whose designs are known."""
    if "mapping" not in run.sweep():
        return None
    fixed = [(s.recipe, *(f"{k} {v}" for k, v in s.space.items())) for s in run.studies()
             if s.is_one_point]  # fmt: skip
    which = cut("; ".join(map(", ".join, dict.fromkeys(fixed))), 300)
    untuned = f" Not tuned at any batch size, so it may scale further if it is: {which}."
    return UNKNOWN + untuned * bool(fixed)


def of_study(study: Study, trials: pa.Table) -> tuple[str, ...]:
    """Warnings about a study in which fewer trials count than were asked for."""
    warnings = []
    statuses = trials["status"].to_pylist()
    if len(statuses) < study.trials:
        warnings.append(f"{len(statuses)} of {study.trials} trials have finished")
    lasting = len(statuses) - statuses.count("diverged")
    if not study.is_one_point and lasting < study.trials and len(statuses) >= study.launches:
        warnings.append(
            f"{study.trials} trials that do not diverge were asked for, but of {len(statuses)} "
            f"trainings only {lasting} did not diverge"
        )
    if failed := statuses.count("failed"):
        last = last_line(trials["error"][statuses.index("failed")].as_py())
        of = max(study.trials, len(statuses))  # some replace those that diverged
        warnings.append(f"{failed} of {of} trials failed: {last or 'no reason given'}")
    return tuple(warnings)


def last_line(error: str | None) -> str | None:
    """The last line of an error, which says what happened; None if it has no text."""
    *_, last = [None, *(error or "").strip().splitlines()]
    return last


def best_short_of(
    study: Study, goal: Goal, values: NDArray[np.float64], last: int
) -> tuple[str, ...]:
    """A warning that no trial passed the goal, with the best value up to the `last` step."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ()
    best = finite.min() if goal.direction == "<" else finite.max()
    verb = "held" if goal.passed(best) else "passed"
    short = study.program is not None and last < study.budget_steps
    until = f"; the last report was at step {last:,} of {study.budget_steps:,}" if short else ""
    return (f"no trial {verb} {goal}; the best measured value is {best:.6g}{until}",)


def near_ends(study: Study, trials: pa.Table, best_places: Sequence[int]) -> tuple[str, ...]:
    """Warnings about ranges near whose ends the best trial lies. If no trial was ended early, the
    median of the best three is used instead, which a single lucky trial can't move."""
    params, space, of = trials["params"], study.space, "its range"
    warnings = []
    count = 1 if study.stop_dominated else 3
    if study.search.algorithm == "unknown":  # the ranges are over all batch sizes
        points, count, of = [*map(json.loads, params.to_pylist())], 1, "those tried here"
        for name, entry in space.items():
            if isinstance(entry, Range) and (tried := [p[name] for p in points if name in p]):
                space = {**space, name: replace(entry, low=min(tried), high=max(tried))}
    best = [json.loads(params[row].as_py()) for row in best_places[:count]]
    typical = {
        name: median_low(point[name] for point in best)
        for name in best[0]
        if isinstance(space.get(name), Range) and all(name in point for point in best)
    }
    for name, side in near_bounds(space, typical):
        entry = space[name]
        assert isinstance(entry, Range)
        end = f"lower end, {entry.low:g}" if side == "low" else f"upper end, {entry.high:g}"
        warnings.append(f"{name} {typical[name]:.4g} is near the {end}, of {of}")
    return tuple(warnings)


def starved(study: Study, needed: Mapping[int, int]) -> tuple[str, ...]:
    """A warning for a study that did not reach its goal, if its budget has fewer examples than
    every larger batch size needed. `needed` holds these numbers of examples by batch size."""
    larger = [(examples, size) for size, examples in needed.items() if size > study.batch_size]
    examples, size = min(larger, default=(0, 0))
    budget = study.budget_examples
    if budget >= examples:
        return ()
    unit = "examples" if study.train_size is None else "epochs"
    return (
        f"its budget of {budget:,} examples is less than the {examples:,} that batch size {size:,} "
        f"needed: raise budget.{unit}",
    )
