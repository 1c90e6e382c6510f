"""What a report shows, gathered from a run: answers, and the data of each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orchestrator.analysis import Advice, Cost, Scaling, Tuned, advice, costs, scalings, tuned
from orchestrator.records import Goal, Range, Study
from orchestrator.report.figures import Curve, Span
from orchestrator.results import FrontierRow, Run, outcomes_of
from orchestrator.results.counting import columns

MOST_POINTS = 160
"""Of a training curve; the frontier is never thinned out."""

MOST_SPANS = 4000
"""Trials in the timeline, the longest ones where there are more."""

MOST_OUTCOMES = 400
"""Trials of a batch size whose metaparameters are shown, the first ones where there are more."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One workload and goal."""

    workload: str
    goal: Goal
    rows: Sequence[FrontierRow]
    curves: Mapping[str, Sequence[Curve]]
    """Recipe -> the best trial of each batch size."""
    tried: Mapping[str, Tried]
    """Recipe -> every trial, where two metaparameters were searched."""

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(row.recipe for row in self.rows))

    @property
    def scalings(self) -> list[Scaling]:
        return scalings(self.rows)

    @property
    def advice(self) -> Advice | None:
        found = advice(self.rows)
        return found[0] if found else None

    @property
    def costs(self) -> list[Cost]:
        return costs(self.rows)

    @property
    def tuned(self) -> list[Tuned]:
        return tuned(self.rows)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """All trials of a recipe by two of its metaparameters."""

    x: str
    y: str
    y_from_one: bool
    """Whether 1 - y is what was searched evenly."""
    outcomes: Sequence[tuple[int, pa.Table]]
    """(batch size, trials)."""


def panels_of(run: Run, rows: Sequence[FrontierRow]) -> list[Panel]:
    """A panel for each workload and goal of a frontier, in its order."""
    studies = {study.key: study for study in run.studies()}
    grouped: dict[tuple[str, str], list[FrontierRow]] = {}
    for row in rows:
        grouped.setdefault((row.workload, row.goal), []).append(row)
    found = []
    for (workload, text), group in grouped.items():
        goal = Goal.parse(text)
        found.append(
            Panel(
                workload=workload,
                goal=goal,
                rows=group,
                curves=_curves(run, goal, group),
                tried=_tried(run, goal, [studies[row.key] for row in group]),
            )
        )
    return found


def _curves(run: Run, goal: Goal, rows: Sequence[FrontierRow]) -> dict[str, list[Curve]]:
    found: dict[str, list[Curve]] = {}
    for row, curve in zip(
        rows, run.in_parallel(lambda row: _curve(run, goal, row), rows), strict=True
    ):
        if curve is not None:
            found.setdefault(row.recipe, []).append(curve)
    return found


def _curve(run: Run, goal: Goal, row: FrontierRow) -> Curve | None:
    if row.trial is None:
        return None
    _, step, value = columns(run.curve(row.key, row.trial), goal.metric)
    finite = np.isfinite(value)
    step, value = step[finite], value[finite]
    # Evenly in the logarithm, as it is drawn.
    wanted = np.geomspace(1, max(len(step), 1), MOST_POINTS).astype(int) - 1
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


def _tried(run: Run, goal: Goal, studies: Sequence[Study]) -> dict[str, Tried]:
    found = {}
    for recipe in dict.fromkeys(study.recipe for study in studies):
        mine = sorted(
            (study for study in studies if study.recipe == recipe),
            key=lambda study: study.batch_size,
        )
        ranges = {
            name: entry
            for name, entry in mine[0].space.items()
            if isinstance(entry, Range) and entry.scale in ("log", "reverse_log")
        }
        if len(ranges) < 2:
            continue
        x, y = [*ranges][:2]
        tables = run.in_parallel(lambda study: outcomes_of(run, study, goal), mine)
        found[recipe] = Tried(
            x=x,
            y=y,
            y_from_one=ranges[y].scale == "reverse_log",
            outcomes=[
                (study.batch_size, table.select(_shown(table, x, y)).slice(0, MOST_OUTCOMES))
                for study, table in zip(mine, tables, strict=True)
                if x in table.column_names and y in table.column_names
            ],
        )
    return {recipe: tried for recipe, tried in found.items() if tried.outcomes}


def _shown(table: pa.Table, x: str, y: str) -> list[str]:
    return ["trial", "status", "counted", "steps", "steps_to_goal", x, y]


def spans_of(run: Run) -> list[Span]:
    """When each trial was trained, as far as that is known."""
    found = []
    for study, trials in _with_trials(run):
        for row in trials.to_pylist():
            if row["started"] is not None and row["seconds"] is not None:
                evaluating = row["evaluation_seconds"] or 0.0
                found.append((row["started"], row["seconds"] + evaluating, str(study.key), row))
    first = min((started for started, *_ in found), default=0.0)
    longest = sorted(found, key=lambda one: -one[1])[:MOST_SPANS]
    return [
        Span(
            study=study,
            trial=row["trial"],
            status=row["status"],
            started=round(started - first, 3),
            seconds=round(seconds, 3),
        )
        for started, seconds, study, row in sorted(longest, key=lambda one: one[0])
    ]


def _with_trials(run: Run) -> list[tuple[Study, pa.Table]]:
    studies = run.studies()
    return list(
        zip(studies, run.in_parallel(lambda study: run.trials(study.key), studies), strict=True)
    )
