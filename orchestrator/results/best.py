"""The best value of one metric in each study, within a budget.

Unlike steps to goal, the best value may still improve after the goal. So the answer is certain only
for studies whose trials were not ended early; for others it is marked as `censored`.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial

import numpy as np
import pyarrow as pa

from orchestrator.records import Study, Value
from orchestrator.results.counting import Counted, Within, columns
from orchestrator.results.frontier import measurement_at, metrics_of, refuse_unmeasured
from orchestrator.results.store import RunFiles, refuse_branches, refuse_compact


@dataclass(frozen=True, kw_only=True)
class BestRow:
    """The answer of one study within one budget. If nothing was measured, it has no winner."""

    workload: str
    recipe: str
    optimizer: str
    batch_size: int
    metric: str
    within: str | None
    """The budget that was asked about, such as `steps=500`; None for the study's budget."""
    trained_enough: bool
    """Whether the study's budget is at least as large as `within`."""
    censored: bool
    """Trials that stopped early could have changed this answer."""
    value: float | None = None
    step: int | None = None
    """The first step at which the trial had that value."""
    trial: int | None = None
    seed: int | None = None
    params: Mapping[str, Value] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics of that measurement."""
    trials_used: int


def best_of(
    run: RunFiles,
    metric: str,
    *,
    maximise: bool | None = None,
    within: Sequence[Within | None] = (None,),
) -> list[BestRow]:
    """The best value in each study of `run` for each budget. Of equal values the one with the
    fewest steps wins, then the lowest index. If `maximise` is None, the highest value is best if a
    goal asks for more of the metric."""
    refuse_branches(run)
    studies = run.studies()
    rows = best_of_studies(run, studies, metric, maximise=maximise, within=within)
    if all(row.value is None for row in rows):
        refuse_unmeasured(run, studies, metric)
    return rows


def sign_of(studies: Sequence[Study], metric: str, maximise: bool | None = None) -> float:
    """The factor by which the best value becomes the lowest. If `maximise` is None, the highest
    value is best if a goal asks for more of the metric."""
    if maximise is None:
        goals = {goal for study in studies for goal in study.goals if goal.metric == metric}
        maximise = any(goal.direction == ">" for goal in goals)
    return -1.0 if maximise else 1.0


def best_of_studies(
    run: RunFiles,
    studies: Sequence[Study],
    metric: str,
    *,
    maximise: bool | None = None,
    within: Sequence[Within | None] = (None,),
) -> list[BestRow]:
    """The same as `best_of` for the given studies, even if none measured the metric."""
    sign = sign_of(studies, metric, maximise)
    if run.is_compact and any(within):
        _refuse_unless_kept(run, studies, metric, maximise=sign < 0)
    work = partial(_rows_of, run, metric, sign, within)
    return [row for of_study in run.in_parallel(work, studies) for row in of_study]


def _refuse_unless_kept(
    run: RunFiles, studies: Sequence[Study], metric: str, *, maximise: bool
) -> None:
    """Raises `BadInput` for best values within a budget that a compact run lacks. It has those
    among all trials of each study, of the metrics of its goals in their direction."""
    asked = (metric, ">" if maximise else "<")
    for study in studies:
        if asked not in {(goal.metric, goal.direction) for goal in study.goals}:
            what = f"{'highest' if maximise else 'lowest'} {metric} within a budget"
            refuse_compact(run, f"the {what} of {study.key}, which is none of its goals")


def _rows_of(
    run: RunFiles, metric: str, sign: float, within: Sequence[Within | None], study: Study
) -> list[BestRow]:
    trials = run.trials(study.key)
    counted = Counted(study, trials)
    measurements = run.measurements(study.key, {metric})
    trial, step, value = columns(measurements, metric)
    usable = np.isin(trial, [*counted.row_of]) & np.isfinite(value)
    trial, step, value = trial[usable], step[usable], sign * value[usable]
    rows = []
    curve_of = cache(partial(run.curve, study.key))  # often one trial is best within several
    for asked in within:
        enough, censored = reaches(study, trials, counted, asked)
        row = BestRow(
            **asdict(study.key),
            optimizer=study.optimizer,
            metric=metric,
            within=None if asked is None else str(asked),
            trained_enough=enough,
            censored=censored,
            trials_used=len(counted.row_of),
        )
        granted = np.full(len(step), True) if asked is None else step <= asked.steps(study)
        if granted.any():
            lowest = value[granted].min()
            best_at = np.flatnonzero(granted & (value == lowest))
            at, index = min(zip(step[best_at].tolist(), trial[best_at].tolist(), strict=True))
            best = float(sign * lowest)
            winner = trials.slice(counted.row_of[index], 1).to_pylist()[0]
            row = replace(
                row,
                value=best,
                step=at,
                trial=index,
                seed=winner["seed"],
                params=json.loads(winner["params"]),
                metrics=metrics_of(
                    measurement_at(curve_of(index), at, metric, partial(operator.eq, best))
                ),
            )
        rows.append(row)
    return rows


def reaches(
    study: Study, trials: pa.Table, counted: Counted, asked: Within | None
) -> tuple[bool, bool]:
    """Whether a study was trained for as long as was asked, and whether trials that stopped early
    may have come to a better value within that."""
    stopped = counted.next_steps(())
    budget = study.budget_steps or min(trials["steps"].to_pylist(), default=0)
    last = budget if asked is None else asked.steps(study)
    return budget >= last, any(upcoming <= last for upcoming, _ in stopped)
