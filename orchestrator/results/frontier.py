"""The frontier: for each study and goal, the trial with the fewest steps to the goal.

It is computed from the files of a run alone. A trial that stopped early (because it had reached its
goals, or could no longer win) does not show what it would have done later. If that could change the
answer, the answer is marked as `censored` instead of being wrong.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.records import (
    BadInput,
    BatchSchedule,
    Goal,
    Study,
    StudyKey,
    Value,
    point_text,
    searched,
    unknown,
)
from orchestrator.records.stages import TRUNK, Cooldown
from orchestrator.results.counting import (
    Counted,
    columns,
    first_steps,
    has_finished,
    reached,
    where_measured,
)
from orchestrator.results.remarks import best_short_of, near_ends, of_study, starved
from orchestrator.results.repeats import WinnerRepeats, repeats_of
from orchestrator.results.store import RunFiles, refuse_branches, refuse_compact
from orchestrator.results.tables import is_metric, numbers

MOST_LEADERS = 100


@dataclass(frozen=True, kw_only=True)
class Leader:
    """One of the trials that passed a goal first."""

    trial: int
    steps: int
    resolution: int
    """Steps since its previous measurement; it passed the goal somewhere between the two."""


@dataclass(frozen=True, kw_only=True)
class FrontierRow:
    """The answer of one study to one goal. If no trial passed it, the winner's fields are None."""

    workload: str
    recipe: str
    optimizer: str
    batch_size: int
    batch_schedule: BatchSchedule | None = None
    """The schedule of a study whose batch size grows along its trainings; such a row belongs to no
    curve. None for a constant batch size."""
    cooldown: Cooldown | None = None
    """How the trainings are cooled down whose steps these are; None if they are not."""
    goal: str
    reached: bool
    censored: bool
    """Trials that stopped early could have changed this answer."""
    finished: bool = True
    """Whether all trials were trained that this answer depends on."""
    steps: int | None = None
    examples: int | None = None
    resolution: int | None = None
    """Steps since the winner's previous measurement; it passed the goal between the two."""
    trial: int | None = None
    seed: int | None = None
    params: Mapping[str, Value] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The winner's metrics at that step."""
    seconds: float | None = None
    """The winner's training time up to that step, in seconds."""
    ranks: int | None = None
    """Number of processes that trained the winner."""
    trials: Mapping[str, int]
    """Number of finished trials by status."""
    trials_used: int
    """Number of trials from which the best was taken; diverged ones count, failed ones don't."""
    leaders: tuple[Leader, ...] = ()
    """The trials that passed the goal first, best first, as far as their ranks are certain because
    no other trial can still come before them. They are at least the best `Study.keep` trials once
    the study has finished and so many passed the goal."""
    searched: int | None = None
    """Number of metaparameters that a design varied. None if something else chose the points, so
    that they are no even sample of the space."""
    train_size: int | None = None
    """Number of examples of the training set, which no batch exceeds. None if not known."""
    repeats: WinnerRepeats | None = None
    warnings: tuple[str, ...]

    @property
    def key(self) -> StudyKey:
        return StudyKey(workload=self.workload, recipe=self.recipe, batch_size=self.batch_size)

    @property
    def answering(self) -> tuple[int | None, Mapping[str, Value] | None]:
        """The trial whose point the answer is of, and its metaparameters: of several points that
        are repeated, the one with the lowest median need not be the winner's."""
        again = self.repeats
        if again is None or again.params is None:
            return self.trial, self.params
        return again.trial, again.params

    @property
    def steps_answered(self) -> float | None:
        """The steps of the answer: the median of repeats, where there are any."""
        again = self.repeats
        return self.steps if again is None or again.median is None else again.median

    def remarks(self) -> list[str]:
        """Sentences that a reader of its steps should know."""
        again = self.repeats
        if again is None:
            return [*self.warnings]
        said = []
        if self.trial is not None and self.answering[0] not in (None, self.trial):
            point = point_text(self.params or {})
            said.append(f"the fewest steps are of trial {self.trial}, by luck: {point}")
        if again.reached < again.count:
            said.append(f"{again.reached} of {again.count} repeats reached it")
        return [*said, *self.warnings]


@dataclass(frozen=True, kw_only=True)
class GoalOf:
    """A goal that is asked of the workloads that match a pattern."""

    goal: Goal
    workloads: str = "*"
    """A pattern of workload names, in the syntax of file name patterns."""

    @classmethod
    def parse(cls, text: str) -> GoalOf:
        # The name of a workload may contain a colon, as in FILE.py:CLASS.
        workloads, colon, goal = text.rpartition(":")
        return cls(goal=Goal.parse(goal), workloads=workloads.strip() if colon else "*")

    def asked_of(self, study: Study) -> bool:
        return fnmatchcase(study.workload, self.workloads) or study.workload == self.workloads


def frontier_of(run: RunFiles, goals: Sequence[Goal | GoalOf] = ()) -> list[FrontierRow]:
    """The frontier of every study of `run`. `goals` replaces each study's goals."""
    refuse_branches(run)
    studies = run.studies()
    if not goals and not any(study.goals for study in studies):
        metrics = sorted(_measured(run, studies))
        likely = min(metrics, key=lambda name: "val" not in name, default="val/error")
        raise BadInput(
            f'{run.place} was imported and names no goals: give --goal, such as "{likely}<0.1". '
            f"It has {', '.join(metrics) or 'no metrics'}.",
            code="missing-option",
        )
    asked = tuple(goal if isinstance(goal, GoalOf) else GoalOf(goal=goal) for goal in goals)
    pairs = [(study, one.goal) for study in studies for one in asked if one.asked_of(study)]
    if others := [(study, goal) for study, goal in pairs if goal not in study.goals]:
        study, goal = others[0]
        known = " and ".join(map(str, study.goals))
        refuse_compact(run, f"steps to other goals than {known} (asked for: {goal})")
    work = partial(_rows_of, run, asked)
    rows = [row for of_study in run.in_parallel(work, studies) for row in of_study]
    for one in asked:
        of = [study for study in studies if one.asked_of(study)]
        if not of:
            raise unknown("workload", one.workloads, {study.workload for study in studies})
        keys = {study.key for study in of}
        if not any(row.reached for row in rows if row.key in keys and row.goal == str(one.goal)):
            refuse_unmeasured(run, of, one.goal.metric)
    return rows if asked else _beside_others(studies, rows)


def _beside_others(studies: Sequence[Study], rows: Sequence[FrontierRow]) -> list[FrontierRow]:
    """The rows with the warnings that follow from a comparison with other batch sizes."""
    needed: defaultdict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
    for row in rows:
        if row.steps is not None:
            needed[row.workload, row.recipe, row.goal][row.batch_size] = row.examples or 0
    of_key = {study.key: study for study in studies}
    return [
        row
        if row.reached or not row.finished or not row.trials_used
        else replace(
            row,
            warnings=row.warnings
            + starved(of_key[row.key], needed[row.workload, row.recipe, row.goal]),
        )
        for row in rows
    ]


def refuse_unmeasured(run: RunFiles, studies: Iterable[Study], metric: str) -> None:
    """Raises `BadInput` if the run has measurements but none of this metric."""
    measured = _measured(run, studies)
    if measured and metric not in measured:
        raise unknown("metric", metric, measured)


def _measured(run: RunFiles, studies: Iterable[Study]) -> set[str]:
    return set().union(*run.in_parallel(lambda study: run.metrics(study.key), studies))


def _rows_of(run: RunFiles, asked: Sequence[GoalOf], study: Study) -> list[FrontierRow]:
    """The rows of a study for the goals that are asked of it, or, if none are asked, its own."""
    goals = [one.goal for one in asked if one.asked_of(study)] if asked else study.goals
    if not goals:
        return []
    trials = run.trials(study.key)
    measurements = run.measurements(study.key, {goal.metric for goal in goals})
    rows: dict[Goal, FrontierRow] = {}
    own = (goal for goal in study.goals if goal in goals or any(map(goal.implies, goals)))
    among = [*dict.fromkeys([*own, *goals])]
    # A goal that implies others comes before them.
    for goal in sorted(among, key=lambda goal: sum(map(goal.implies, among)), reverse=True):
        stricter = (row.repeats for other, row in rows.items() if other.implies(goal))
        answers = {
            again.trial: again.median or math.inf
            for again in stricter
            if study.choosing and again and again.trial is not None
        }
        rows[goal] = _row(run, study, goal, trials, measurements, answers)
    return [rows[goal] for goal in dict.fromkeys(goals)]


def _row(
    run: RunFiles,
    study: Study,
    goal: Goal,
    trials: pa.Table,
    measurements: pa.Table,
    of_stricter: Mapping[int, float],
) -> FrontierRow:
    """`of_stricter`: the trials whose repeats are the answers to goals that imply this one, and the
    medians of their steps."""
    trial, step, value = where_measured(columns(measurements, goal.metric))
    counted = Counted(study, trials)
    found = reached(study, goal, (trial, step, value))
    firsts = first_steps(counted, found)
    best = firsts[0] if firsts else None
    crossed = {index for _, index in firsts}
    as_searched = goal in study.goals and "archive_status" not in trials.column_names
    # (step, index) at which each trial that was ended early without having crossed the goal might
    # have reached it: at its next measurement, or where the run begins that it ended in.
    on_trunk = goal.metric.startswith(TRUNK)
    open_at = sorted(
        (found.begun.get(index, upcoming), index)
        for upcoming, index in counted.next_steps(crossed, (trial, step) if on_trunk else None)
    )
    certain = [pair for pair in firsts[:MOST_LEADERS] if not open_at or pair < open_at[0]]
    all_kept = len(certain) >= min(study.keep, MOST_LEADERS) or not open_at
    repeated = [index for _, index in certain[: study.repeat_best]]
    if not repeated and (best or study.is_one_point):
        repeated = [best[1] if best else 0]
    repeats, are_there = None, True
    if study.repeats and repeated:
        repeats, are_there = _repeats(run, study, goal, repeated, of_stricter)
    row = FrontierRow(
        **asdict(study.key),
        optimizer=study.optimizer,
        batch_schedule=study.batch_schedule,
        cooldown=study.cooldown,
        goal=str(goal),
        reached=best is not None,
        finished=has_finished(study, trials) and (not as_searched or (all_kept and are_there)),
        censored=bool(open_at) and (best is None or open_at[0] < best),
        trials=dict(Counter(sorted(trials["status"].to_pylist()))),
        trials_used=len(counted.row_of),
        searched=len(searched(study.space)) if study.search.is_even_sample else None,
        train_size=study.train_size,
        repeats=repeats,
        warnings=(*of_study(study, trials), *run.left_out(study.key)),
    )
    if best is None:
        kept = np.isin(trial, [*counted.row_of])
        short = best_short_of(study, goal, value[kept], step[kept].max(initial=0))
        return replace(row, warnings=row.warnings + short)
    steps, index = best
    rows = [counted.row_of[index] for _, index in firsts[:3]]
    winner = trials.slice(rows[0], 1).to_pylist()[0]
    measurement = measurement_at(run.curve(row.key, index), steps, goal.metric, goal.passed)
    won = replace(
        row,
        steps=steps,
        examples=study.examples(steps),
        resolution=_leader(best, trial, step).resolution,
        trial=index,
        seed=winner["seed"],
        params=json.loads(winner["params"]),
        metrics=metrics_of(measurement),
        seconds=measurement["seconds"],
        ranks=winner["ranks"],
        leaders=tuple(_leader(pair, trial, step) for pair in certain),
    )
    chosen, _ = won.answering
    if row.repeats is not None and chosen in counted.row_of:
        rows = [counted.row_of[chosen]]
    return replace(won, warnings=row.warnings + near_ends(study, trials, rows))


def _repeats(
    run: RunFiles,
    study: Study,
    goal: Goal,
    repeated: Sequence[int],
    of_stricter: Mapping[int, float],
) -> tuple[WinnerRepeats | None, bool]:
    """As `repeats_of`, where the answers to stricter goals are candidates, too. One that comes
    sooner than the chosen one takes its place: nothing passes a stricter goal before a looser one.
    """
    among = [*dict.fromkeys([*of_stricter, *repeated])]
    repeats, are_there = repeats_of(run, study, goal, among)
    soonest = min(of_stricter, key=of_stricter.__getitem__, default=0)
    if repeats and of_stricter and of_stricter[soonest] < (repeats.median or math.inf):
        of_soonest, _ = repeats_of(run, study, goal, [soonest])
        repeats = of_soonest and replace(of_soonest, medians=repeats.medians)
    return repeats, are_there


def _leader(first: tuple[int, int], trial: NDArray[np.int64], step: NDArray[np.int64]) -> Leader:
    """The leader whose (steps, index) are `first`. The measurements are in order of trial."""
    steps, index = first
    begin, end = np.searchsorted(trial, [index, index + 1])
    earlier = step[begin:end][step[begin:end] < steps]
    return Leader(trial=index, steps=steps, resolution=steps - int(earlier.max(initial=0)))


def measurement_at(
    curve: pa.Table, step: int, metric: str, wanted: Callable[[float | None], bool]
) -> dict[str, Any]:
    """The measurement at `step` whose value is wanted; a published trial may have several there."""
    here = np.flatnonzero(numbers(curve["step"]) == step).tolist()
    rows: Iterator[dict[str, Any]] = (curve.slice(row, 1).to_pylist()[0] for row in here)
    return next(row for row in rows if wanted(row[metric]))


def metrics_of(measurement: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that were measured, as far as they are finite."""
    found = {name: value for name, value in measurement.items() if is_metric(name)}
    return {k: v for k, v in found.items() if v is not None and math.isfinite(v)}


def parse_goals(texts: Iterable[str]) -> list[GoalOf]:
    """Goals given on the command line, each once: METRIC<VALUE, or WORKLOADS: METRIC<VALUE."""
    goals = [GoalOf.parse(text) for text in texts]
    if len(set(goals)) < len(goals):
        raise BadInput("The same goal is given twice. Give each goal once.", code="given-twice")
    return goals
