"""The curves of a report that show the winners while they train: a metric, learning rates and
distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.records import Study, StudyKey
from orchestrator.records.lr_schedules import SCHEDULE_SETTINGS, schedule_of
from orchestrator.report.figures.course import Curve
from orchestrator.report.figures.style import evenly, rounded
from orchestrator.results import FrontierRow, Run
from orchestrator.results.counting import columns

MOST_POINTS = 160
"""The most points of a training curve that are drawn; the frontier always uses all points."""


MOST_LOSERS = 30
"""The most trials of a recipe that are drawn behind its winners."""

POINTS_OF_LOSER = 40


def curves_of_winners(run: Run, metric: str, rows: Sequence[FrontierRow]) -> dict[str, list[Curve]]:
    """Maps each recipe to a metric of the best trial of each batch size, as far as it was
    measured."""
    found: dict[str, list[Curve]] = {}
    curves = run.in_parallel(
        lambda row: None if row.trial is None else _curve(run, metric, row.key, row.trial), rows
    )
    for row, curve in zip(rows, curves, strict=True):
        if curve is not None:
            found.setdefault(row.recipe, []).append(curve)
    return found


def curves_of_losers(
    run: Run, metric: str, rows: Sequence[FrontierRow], trials: Mapping[StudyKey, Sequence[int]]
) -> dict[str, list[Curve]]:
    """Maps each recipe to the same metric of those of the `trials` that did not win. If there are
    too many, they are chosen evenly over batch sizes and trials."""
    found: dict[str, list[Curve]] = {}
    by_recipe: dict[str, list[FrontierRow]] = {}
    for row in rows:
        by_recipe.setdefault(row.recipe, []).append(row)
    asked = [
        (row.key, trial)
        for mine in by_recipe.values()
        for row in evenly(mine, MOST_LOSERS)
        for trial in evenly(
            [trial for trial in trials[row.key] if trial != row.trial],
            max(MOST_LOSERS // len(mine), 1),
        )
    ]
    curves = run.in_parallel(lambda one: _curve(run, metric, *one, most=POINTS_OF_LOSER), asked)
    for (key, _), curve in zip(asked, curves, strict=True):
        if curve is not None:
            found.setdefault(key.recipe, []).append(curve)
    return found


def _curve(
    run: Run, metric: str, key: StudyKey, trial: int, most: int = MOST_POINTS
) -> Curve | None:
    _, step, value = columns(run.curve(key, trial), metric)
    # The axis is logarithmic.
    drawn = np.isfinite(value) & (step > 0)
    step, value = step[drawn], value[drawn]
    if not len(step):
        return None
    # Evenly in the logarithm, as it is drawn.
    wanted = np.geomspace(1, len(step), most).astype(int) - 1
    shown = np.unique(wanted[wanted < len(step)]) if len(step) > most else np.arange(len(step))
    return Curve(
        recipe=key.recipe,
        batch_size=key.batch_size,
        trial=trial,
        steps=step[shown].tolist(),
        values=[rounded(each, 6) for each in value[shown].tolist()],
    )


def schedules_of(
    rows: Sequence[FrontierRow], studies: Mapping[StudyKey, Study], at: int | None
) -> list[Curve]:
    """Returns the factors on the winners' learning rates, for all recipes at one batch size: `at`,
    or the largest batch size at which most recipes have a winner. Returns None if no rate ever
    changes."""
    winners = [row for row in rows if row.params is not None and row.trial is not None]
    if not any(SCHEDULE_SETTINGS & (row.params or {}).keys() for row in winners):
        return []
    sizes = [row.batch_size for row in winners]
    chosen = at if at in sizes else max(sizes, key=lambda size: (sizes.count(size), size))
    found = []
    for row in winners:
        if row.batch_size == chosen and (study := studies[row.key]).budget_steps:
            factor = schedule_of(study, row.params or {}, study.train_size) or (lambda step: 1.0)
            last = study.budget_steps - 1
            steps = np.unique(np.linspace(0, last, 4 * MOST_POINTS).astype(int)).tolist()
            found.append(
                Curve(
                    recipe=row.recipe,
                    batch_size=row.batch_size,
                    trial=row.trial or 0,
                    steps=steps,
                    values=[rounded(factor(step)) for step in steps],
                )
            )
    return found
