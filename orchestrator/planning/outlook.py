"""Estimates of a sweep before it starts: trials, time, cost, and what fits into memory."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise, takewhile
from operator import mul
from pathlib import Path
from statistics import median
from typing import NamedTuple

from orchestrator.planning.cooldowns import most_steps
from orchestrator.planning.doubts import dear_evaluations
from orchestrator.planning.rehearsal import point_at
from orchestrator.programs.starting import Devices
from orchestrator.programs.trials import train_alone
from orchestrator.records import EvaluationGrid, SearchPlan, Study, StudyKey, Trial
from orchestrator.results import RunFiles
from orchestrator.training.stackable import Costs, best_width
from orchestrator.workloads import load_workload, splits_of

CALIBRATION_STEPS, CALIBRATION_SECONDS = 40, 0.5
"""Calibration times this many steps, or more if these take less than this many seconds."""

CALIBRATION_PARTS = 8
"""Number of parts that the timed steps are split into. An evaluation follows each part."""

TIMED_REPORTS = 4
"""Reports of a program that are waited for to time its steps."""

TRIAL_SECONDS = (0.01, 0.1)
"""Seconds that a trial takes besides training and evaluation, in the quick and in the slow case."""

STARTING_SECONDS = (5.0, 60.0)
"""Seconds before a sweep's first trial and after its last, in the quick and slow case."""

STEP_SECONDS, OPERATIONS_PER_SECOND = 1e-3, 5e9
"""Seconds that a core takes at most for a step or an evaluation of a small model, besides its
operations, and operations that it does in a second at least."""


class Between(NamedTuple):
    """An amount that is not known yet: the smallest and the largest that it may turn out to be."""

    low: float
    high: float

    def mapped(self, change: Callable[[float], float]) -> Between:
        return Between(change(self.low), change(self.high))


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Measured times of one trial; a stacked one has its share of the stack's time."""

    step_seconds: float
    evaluation_seconds: float
    micro_batch: int | None = None
    """Examples that a rank can put through the model at once; None if its whole slice fits."""
    memory: int | None = None
    """Peak memory of a rank in bytes."""


@dataclass(frozen=True, kw_only=True)
class StudyOutlook(StudyKey):
    """The outlook of one study."""

    ranks: int
    trials: int
    """Repeats included."""
    repeats: int
    budget_steps: int
    steps: Between
    """Steps of all its trials together. The lowest number holds if the first trial reaches its
    goals at once, and the others end there, too. The highest holds if all train to their budget."""
    fits: bool | None = None
    """Whether a trial fits into memory; None if that wasn't tried."""
    speed: Speed | None = None
    rank_seconds: Between | None = None
    """Seconds for these steps, times the number of ranks; None if speeds aren't known."""
    dear: str | None = None
    """A sentence about its evaluations, if they take much of that time."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The outlook of a sweep."""

    studies: tuple[StudyOutlook, ...]
    trials: int
    device_hours: Between | None
    seconds: Mapping[int, Between]
    """Number of ranks that train at once -> seconds from start to end; empty if not known."""
    money: Between | None


def outlook(
    studies: Iterable[Study],
    ranks: Callable[[int], int],
    *,
    speeds: Mapping[StudyKey, Speed | None] | None = None,
    slots: Iterable[int] = (),
    price_per_device_hour: float | None = None,
) -> Outlook:
    """The outlook of `studies`. `ranks` gives the number of ranks of a batch size. `speeds` holds
    the studies that were timed, with None for those that did not fit into memory."""
    studies = [*studies]
    found = [_of_study(study, ranks, speeds or {}) for study in studies]
    known = [of_study.rank_seconds for of_study in found if of_study.rank_seconds is not None]
    whole = Between(*map(sum, zip(*known, strict=True))) if 0 < len(known) == len(found) else None
    hours = None if whole is None else whole.mapped(lambda seconds: seconds / 3600)
    price, (quick, slow) = price_per_device_hour, STARTING_SECONDS
    seconds = {}
    if whole is not None:
        # The longest trial may train alone at the end, and its repeats follow one another's choice.
        alone = [high / s.trials / s.ranks for s, (_, high) in zip(found, known, strict=True)]
        rounds = [1 + bool(study.repeats) + bool(study.choosing) for study in studies]
        last = slow + max(map(mul, alone, rounds))
        for n in slots:
            # Slots that are too few for one more trial stay empty.
            filled = [max(n - n % of_study.ranks, of_study.ranks) for of_study in found]
            worst = sum(high / each for (_, high), each in zip(known, filled, strict=True))
            seconds[n] = Between(whole.low / n + quick, worst + last)
    return Outlook(
        studies=tuple(found),
        trials=sum(of_study.trials for of_study in found),
        device_hours=hours,
        seconds=seconds,
        money=None if hours is None or price is None else hours.mapped(lambda h: h * price),
    )


def _of_study(
    study: Study, ranks: Callable[[int], int], speeds: Mapping[StudyKey, Speed | None]
) -> StudyOutlook:
    trials = study.trials + study.most_repeats
    budget = most_steps(study)
    least = study.following(0)
    if study.cooldown is not None:
        least = study.cooldown.end(least)
    each = Between(least if study.stop_at_goal else budget, budget)
    count, speed = ranks(study.batch_size), speeds.get(study.key)
    seconds = dear = None
    if speed is not None:
        pace, look = speed.step_seconds, speed.evaluation_seconds
        low, high = (
            trials * count * (steps * pace + evaluations(study, int(steps)) * look + besides)
            for steps, besides in zip(each, TRIAL_SECONDS, strict=True)
        )
        seconds = Between(low, high)
        dear = dear_evaluations(
            examples=study.examples(budget),
            evaluations=(looks := evaluations(study, budget)),
            training=budget * pace,
            evaluating=looks * look,
        )
    return StudyOutlook(
        **asdict(study.key),
        ranks=count,
        trials=trials,
        repeats=study.most_repeats,
        budget_steps=study.budget_steps,
        steps=each.mapped(lambda steps: trials * steps),
        fits=speed is not None if study.key in speeds else None,
        speed=speed,
        rank_seconds=seconds,
        dear=dear,
    )


def seconds_at_most(studies: Iterable[Study], data_dir: Path | None) -> float:
    """Seconds that one core takes if each trial goes on to its budget, counted from steps and
    operations, so that they are the same at each call. Infinite for programs and for models that
    are too large to be stacked, which can't be counted quickly."""
    costs: Costs = {}
    seconds = 0.0
    for study in studies:
        if study.program is not None:
            return math.inf
        trial = Trial(study=study, index=0, seed=0, params=point_at(study.space, 0.5))
        try:
            best_width(trial, "cpu", data_dir, costs)
        except Exception:  # an error in the workload's code is reported when it is trained
            return math.inf
        _, flops, _ = costs[study.workload, trial.params.get("precision")]
        splits = splits_of(load_workload(study.workload), data_dir)
        seen = sum(data.size or 0 for name, data in splits.items() if name != "train")
        looks = evaluations(study, study.budget_steps)
        # Without gradients, a model takes a third of the operations.
        steps = most_steps(study)
        examples = study.examples(steps) + looks * seen / 3
        each = (steps + looks) * STEP_SECONDS + examples * flops / OPERATIONS_PER_SECOND
        seconds += (study.trials + study.most_repeats) * (each if flops else math.inf)
    return seconds


def evaluations(study: Study, steps: int) -> int:
    """Number of evaluations of a trial with so many steps."""
    return 1 + sum(1 for _ in takewhile(lambda at: at[0] < steps, pairwise(study.measured())))


def calibration_of(
    studies: Sequence[Study],
    speeds: Mapping[StudyKey, Speed | None] | None = None,
    widths: Mapping[StudyKey, int] | None = None,
) -> list[Study]:
    """Studies that time a few dozen steps of each study, at the middle of its space. If `speeds` of
    such a first timing are given: only the studies whose steps are too quick to be timed by so few,
    with more steps. Evaluations lie between the steps as in real trials, because quick steps are
    slower for a while after an evaluation. `widths` says how many trials are trained together."""
    found = []
    for study in studies:
        steps, width = CALIBRATION_STEPS, (widths or {}).get(study.key, 1)
        if speeds is not None:
            speed = speeds[study.key]
            # Trials of a stack measure their shares of the time of its steps.
            steps = 0 if speed is None else int(CALIBRATION_SECONDS / speed.step_seconds / width)
            if steps <= CALIBRATION_STEPS:
                continue
        apart = steps // CALIBRATION_PARTS
        often_enough = speeds is not None and study.grid.after(0) <= apart
        timed = replace(
            # If the batch size grows, the largest one gives an upper bound on the time of a step.
            study.with_batches_of(study.batch_size),
            budget_steps=steps,
            grid=study.grid if often_enough else EvaluationGrid(spacing=0, min_gap=apart),
            trials=width,
            search=SearchPlan(algorithm="points", points=(point_at(study.space, 0.5),) * width),
            repeats=0,
            inherit=None,
            stop_at_goal=False,
            stop_dominated=False,
        )
        found.append(timed)
    return found


def speeds_of(run: RunFiles) -> dict[StudyKey, Speed | None]:
    """The speeds that the trials of each study measured. None if all failed at once."""
    return {study.key: _speed(run, study) for study in run.studies()}


def _speed(run: RunFiles, study: Study) -> Speed | None:
    """The speed of a study. The first quarter of a trial's steps is warm-up and is left out. Pauses
    in the rest count, because they occur in a sweep, too."""
    paces, evaluated = [], 0
    rows = [row for row in run.trials(study.key).to_pylist() if row["status"] != "failed"]
    for row in rows:
        curve = run.curve(study.key, row["trial"]).select(["step", "seconds"]).to_pylist()
        evaluated += len(curve)
        # The trial may have diverged early, at a learning rate that is too high.
        last = curve[-1]
        first = next(each for each in curve if 4 * each["step"] >= last["step"])
        if last["step"] > first["step"]:
            paces.append((last["seconds"] - first["seconds"]) / (last["step"] - first["step"]))
    if not paces:
        return None
    return Speed(
        step_seconds=median(paces),
        evaluation_seconds=sum(row["evaluation_seconds"] for row in rows) / evaluated,
        micro_batch=min((row["micro_batch"] for row in rows if row["micro_batch"]), default=None),
        memory=max((row["memory"] for row in rows if row["memory"]), default=None),
    )


def program_speed(study: Study, devices: Devices) -> Speed | None:
    """The speed of a program by its first reports, at the middle of its space; None if it made
    fewer than two. Its evaluations are in the time of its steps."""
    trial = Trial(study=study, index=0, seed=0, params=point_at(study.space, 0.5))
    with tempfile.TemporaryDirectory(prefix="orchestrate-plan-") as folder:
        # A goal that is reached at once would leave nothing to time.
        trial = replace(trial, study=replace(study, goals=()))
        with closing(train_alone(trial, devices, Path(folder))) as measurements:
            seen = [*islice(measurements, TIMED_REPORTS)]
    if len(seen) < 2:
        return None
    first, last = seen[0], seen[-1]
    pace = (last.seconds - first.seconds) / (last.step - first.step)
    return Speed(step_seconds=pace, evaluation_seconds=0.0)
