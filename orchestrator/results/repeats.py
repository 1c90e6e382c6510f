"""The results of the best points of a study with other seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import STAYS, Goal, Study, Value, best_by_median
from orchestrator.records.cooling import first_held
from orchestrator.records.stages import TRUNK
from orchestrator.results.counting import Columns, columns, next_possible, reached, where_measured
from orchestrator.results.store import RunFiles
from orchestrator.results.tables import numbers

Draw = tuple[float, int]
"""Steps to goal, infinite for a training that never reached it, and their resolution."""

Curves = dict[int, tuple[dict[str, Any], Columns]]
"""Number of a repeat -> its row, and the trials, steps and values of its measurements."""


@dataclass(frozen=True, kw_only=True)
class WinnerRepeats:
    """The repeats of a winner. The training that won is not among them, because it was chosen for
    its luck. If a study has nothing to search, nothing was chosen, and trial 0 is one of them.

    If several of the best trials are repeated, half as many repeats of each choose the point with
    the lowest median. These are its other repeats, which had no part in the choice."""

    trial: int | None = None
    """Index of the trial whose point was repeated."""
    params: Mapping[str, Value] | None = None

    count: int
    reached: int
    median: float | None
    """Median of the steps to goal; None if at least half of the repeats did not reach it."""
    low: int | None
    """Lower end of the interval of the true median, one of the ordered steps to goal."""
    high: int | None
    """Upper end of that interval, likewise."""
    confidence: float
    """Probability that the interval holds the true median, for any distribution."""
    resolution: int
    """Steps since the previous measurement, of the repeats in the middle."""
    steps: tuple[int, ...] = ()
    """Steps to goal of each repeat that reached it, fewest first."""
    medians: tuple[tuple[int, float, int], ...] = ()
    """(trial, median steps of all its repeats, their number) of each repeated point that has a
    median."""
    lost: int | None = None
    """How many of those that reached the goal lost it again before it had held for `HELD_FOR`
    measurements; None if they did not all stay to show it."""
    held: WinnerRepeats | None = None
    """The same with the goal that holds; those that lost it and did not come back within `STAYS`
    times their steps count as if they never did. None if `lost` is."""


def repeats_of(
    run: RunFiles, study: Study, goal: Goal, trials: Sequence[int]
) -> tuple[WinnerRepeats | None, bool]:
    """The repeats of the best point among those of `trials`, best first, at `goal`. None if there
    are none, or if one was ended before it could pass this goal. And whether all were trained that
    choose this point and measure it."""
    curves, of_trials = _curves(run, study, goal), {}
    for trial in trials:
        mine = curves.get(trial, {}).items()
        # None for a repeat that was ended before it could pass the goal.
        draws = {number: _draw(study, goal, *of_repeat) for number, of_repeat in mine}
        if draws and all(draw is not None for draw in draws.values()):
            of_trials[trial] = {number: draw for number, draw in draws.items() if draw is not None}
    again = Counter(run.repeats.trials(study.key)["trial"].to_pylist())
    half, best = study.choosing, next(iter(of_trials), None)
    are_there = all(again[one] >= (half or study.repeats) for one in trials)
    if half:
        choosing = {
            one: [steps for number, (steps, _) in draws.items() if number <= half]
            for one, draws in of_trials.items()
        }
        judging = {
            one: [steps for number, (steps, _) in draws.items() if number > half]
            for one, draws in of_trials.items()
            if again[one] >= study.repeats
        }
        judged = {one: choosing[one] for one, draws in of_trials.items() if max(draws) > half}
        # For other goals than its own, a study has judged no points.
        among = choosing if goal in study.goals else judged
        wanted = best_by_median(among, judging)
        are_there = are_there and (wanted is None or again[wanted] >= study.repeats)
        best = best_by_median(among, {})
        if best in judged:  # until one in its place has been judged, those that have been must do
            best = best_by_median(judged, judging)
    of_best = {} if best is None else of_trials[best]
    draws_of = {number: draw for number, draw in of_best.items() if number > half or not half}
    if best is None or not draws_of:
        return None, are_there
    row, _ = next(iter(curves[best].values()))
    params = json.loads(row["params"])
    repeats = repeats_from([*draws_of.values()], best, params)
    medians = (
        (trial, float(statistics.median(step for step, _ in draws.values())), len(draws))
        for trial, draws in of_trials.items()
    )
    repeats = replace(repeats, medians=tuple(one for one in medians if math.isfinite(one[1])))
    held = None if goal.holds else _held(study, goal, curves[best], draws_of)
    if held is None:
        return repeats, are_there
    lost = sum(held[number][0] > steps for number, (steps, _) in draws_of.items())
    # How the other points scatter is known from the first passage alone.
    of_held = replace(repeats_from([*held.values()], best, params), medians=repeats.medians)
    return replace(repeats, lost=lost, held=of_held), are_there


def _held(
    study: Study, goal: Goal, curves: Curves, draws_of: Mapping[int, Draw]
) -> dict[int, Draw] | None:
    """The same repeats' draws for the goal that holds. None unless each stayed long enough."""
    if goal.metric.startswith(TRUNK):
        return None
    found: dict[int, Draw] = {}
    for number in draws_of:
        row, (of, step, value) = curves[number]
        if study.cooldown is not None:
            starts = map(study.cooldown.start, step.tolist())
            held, unknown = first_held(study, dict(zip(starts, value.tolist(), strict=True)), goal)
            if unknown is not None:
                return None
            end = math.inf if held is None else study.cooldown.end(held)
            found[number] = _draw_at(end, step)
        else:
            # Others may have trained on for another goal, which must not matter.
            until = STAYS * draws_of[number][0]
            within = np.where(
                step <= step[step >= until].min(initial=study.budget_steps), value, math.nan
            )
            draw = _draw(study, goal.held, row, (of, step, within))
            stayed = row["steps"] >= min(until, study.budget_steps)
            if draw is None and not stayed:
                return None
            found[number] = draw or (math.inf, 0)
    return found


def repeats_from(
    draws: Sequence[Draw], trial: int | None = None, params: Mapping[str, Value] | None = None
) -> WinnerRepeats:
    ordered = sorted(draws)
    steps = [step for step, _ in ordered]
    low, high, confidence = median_interval(len(steps))
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    median = float(statistics.median(steps))
    return WinnerRepeats(
        trial=trial,
        params=params,
        count=len(steps),
        reached=sum(map(math.isfinite, steps)),
        median=median if math.isfinite(median) else None,
        low=int(steps[low]) if math.isfinite(steps[low]) else None,
        high=int(steps[high]) if math.isfinite(steps[high]) else None,
        confidence=confidence,
        resolution=max(resolution for _, resolution in middle),
        steps=tuple(int(step) for step in steps if math.isfinite(step)),
    )


def _curves(run: RunFiles, study: Study, goal: Goal) -> dict[int, Curves]:
    """Trial -> its repeats that did not fail. If the study has a single point, the trial is one of
    them."""
    found: dict[int, Curves] = {}
    for source in (run.repeats, run) if study.is_one_point else (run.repeats,):
        measurements = source.measurements(study.key, {goal.metric})
        of, step, value = columns(measurements, goal.metric)
        for row in source.trials(study.key).to_pylist():
            if row["status"] != "failed":
                mine = of == row["trial"]
                if "repeat" in row:
                    mine &= numbers(measurements["repeat"]) == row["repeat"]
                curve = row, where_measured((of[mine], step[mine], value[mine]))
                found.setdefault(row["trial"], {})[row.get("repeat", 0)] = curve
    return found


def _draw(study: Study, goal: Goal, row: Mapping[str, Any], measured_at: Columns) -> Draw | None:
    if (first := reached(study, goal, measured_at).first) is not None:
        return _draw_at(first, measured_at[1])
    if goal.metric.startswith(TRUNK) or next_possible(study, row) is not None:
        return None  # it may have been passed later
    return _draw_at(math.inf, measured_at[1])


def _draw_at(first: float, step: NDArray[np.int64]) -> Draw:
    """The draw that reached the goal at one of these steps, or never, which is at infinity."""
    if math.isinf(first):
        return first, 0
    return first, int(first - step[step < first].max(initial=0))


def median_interval(count: int) -> tuple[int, int, float]:
    """Which two of `count` ordered draws enclose the median of their distribution, and with which
    probability: the narrowest pair with at least 90 %, else the outermost pair."""
    best = (0, count - 1, 1 - 2 * 0.5**count)
    below = 0.5**count
    for position in range(1, count // 2):
        below += math.comb(count, position) * 0.5**count
        if 1 - 2 * below < 0.9:
            break
        best = (position, count - 1 - position, 1 - 2 * below)
    return best
