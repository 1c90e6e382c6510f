"""What a report shows of the winners while they train: a metric, learning rates, distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.records import Study, StudyKey
from orchestrator.records.lr_schedules import SCHEDULE_SETTINGS, schedule_of
from orchestrator.report.figures import Curve
from orchestrator.results import FrontierRow, Run
from orchestrator.results.counting import columns

MOST_POINTS = 160
"""Of a training curve; the frontier is never thinned out."""


def curves_of_winners(run: Run, metric: str, rows: Sequence[FrontierRow]) -> dict[str, list[Curve]]:
    """Recipe -> a metric of the best trial of each batch size, as far as it was measured."""
    found: dict[str, list[Curve]] = {}
    curves = run.in_parallel(lambda row: _curve(run, metric, row), rows)
    for row, curve in zip(rows, curves, strict=True):
        if curve is not None:
            found.setdefault(row.recipe, []).append(curve)
    return found


def _curve(run: Run, metric: str, row: FrontierRow) -> Curve | None:
    if row.trial is None:
        return None
    _, step, value = columns(run.curve(row.key, row.trial), metric)
    # The axis is logarithmic.
    drawn = np.isfinite(value) & (step > 0)
    step, value = step[drawn], value[drawn]
    if not len(step):
        return None
    # Evenly in the logarithm, as it is drawn.
    wanted = np.geomspace(1, len(step), MOST_POINTS).astype(int) - 1
    kept = (
        np.unique(wanted[wanted < len(step)]) if len(step) > MOST_POINTS else np.arange(len(step))
    )
    return Curve(
        recipe=row.recipe,
        batch_size=row.batch_size,
        trial=row.trial,
        steps=step[kept].tolist(),
        values=[float(f"{each:.6g}") for each in value[kept].tolist()],
    )


def schedules_of(
    rows: Sequence[FrontierRow], studies: Mapping[StudyKey, Study], at: int | None
) -> list[Curve]:
    """What the winners' learning rates were multiplied with, of all recipes at one batch size:
    `at`, or the largest that most of them have a winner at. None where no rate ever changes."""
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
                    values=[float(f"{factor(step):.4g}") for step in steps],
                )
            )
    return found
