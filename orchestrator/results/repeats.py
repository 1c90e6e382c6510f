"""How one point does with several seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import Goal, Study
from orchestrator.results.counting import columns, past, stopped_early
from orchestrator.results.store import Run
from orchestrator.results.tables import numbers


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """A winner's repeats. The run that won is not among them: it was chosen for its luck. Where a
    study has nothing to search, nothing was chosen, and trial 0 is one of them."""

    count: int
    reached: int
    median: float | None
    """Steps to goal; None where half of them or more did not reach it."""
    low: int | None
    high: int | None
    """Order statistics between which the true median lies ..."""
    confidence: float
    """... with this probability, whatever the distribution."""
    resolution: int
    """Steps since the measurement before, of those in the middle."""
    steps: tuple[int, ...] = ()
    """Steps to goal of each repeat that reached it, fewest first."""


def repeats_of(
    run: Run, study: Study, goal: Goal, trial: int, *, last: int | None = None
) -> Repeats | None:
    """How the point of a trial did at `goal`, up to step `last` of its budget. None if there are no
    repeats, or one was ended (at another goal) before it could tell."""
    draws = [*_draws(run.repeats, study, goal, trial, last)]
    if study.is_one_point:
        draws += _draws(run, study, goal, trial, last)
    if not draws or None in draws:
        return None
    ordered = sorted(draw for draw in draws if draw is not None)
    steps = [step for step, _ in ordered]
    low, high, confidence = median_interval(len(steps))
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    median = (middle[0][0] + middle[1][0]) / 2
    return Repeats(
        count=len(steps),
        reached=sum(map(math.isfinite, steps)),
        median=median if math.isfinite(median) else None,
        low=int(steps[low]) if math.isfinite(steps[low]) else None,
        high=int(steps[high]) if math.isfinite(steps[high]) else None,
        confidence=confidence,
        resolution=max(resolution for _, resolution in middle),
        steps=tuple(int(step) for step in steps if math.isfinite(step)),
    )


def _draws(
    run: Run, study: Study, goal: Goal, trial: int, last: int | None
) -> Iterator[tuple[float, int] | None]:
    """(steps to goal, resolution) of each training of a point that did not fail: infinite for one
    that never reached it, None for one that was ended before it could."""
    rows = [
        row
        for row in run.trials(study.key).to_pylist()
        if row["trial"] == trial and row["status"] != "failed"
    ]
    if not rows:
        return
    measurements = run.measurements(study.key)
    of, step, value = columns(measurements, goal.metric)
    for row in rows:
        mine = of == trial
        if "repeat" in row:
            mine &= numbers(measurements["repeat"]) == row["repeat"]
        yield _draw(study, goal, row, step[mine], past(goal, value[mine]), last)


def _draw(
    study: Study,
    goal: Goal,
    row: Mapping[str, Any],
    step: NDArray[np.int64],
    passed: NDArray[np.bool_],
    last: int | None,
) -> tuple[float, int] | None:
    first = int(step[passed].min()) if passed.any() else None
    if first is not None and (last is None or first <= last):
        return float(first), first - int(step[step < first].max(initial=0))
    ended = first is None and stopped_early(study, row)
    if ended and (last is None or study.following(row["steps"]) <= last):
        return None
    return math.inf, 0


def median_interval(count: int) -> tuple[int, int, float]:
    """Which of `count` ordered draws enclose the median of their distribution, and how surely: the
    narrowest pair with at least 90 %, else the outermost."""
    best = (0, count - 1, 1 - 2 * 0.5**count)
    below = 0.5**count
    for place in range(1, count // 2):
        below += math.comb(count, place) * 0.5**count
        if 1 - 2 * below < 0.9:
            break
        best = (place, count - 1 - place, 1 - 2 * below)
    return best
