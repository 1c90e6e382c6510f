"""The progress of a sweep: counts per study, updated by the code that runs the sweep and displayed
by `cli/terminal.py`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.records import FinishedTrial, Outcome, Study, StudyKey, Trial, TrialKey

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orchestrator.search import AnySearch

logger = logging.getLogger(__name__)

PER_BEST = 1.4
"""Steps of a study's mean trial per step of its best one; 1.0 to 1.9 in the runs of the atlas."""


@dataclass(kw_only=True)
class StudyProgress:
    study: Study
    planned: int
    """Number of trials that are known to be needed."""
    may_repeat: int
    """The largest number of repeats that may still be planned."""
    done: int = 0
    running: int = 0
    best_steps: int | None = None
    """The step by which trials had passed every goal."""
    trained: set[tuple[int, int]] = field(default_factory=set)
    """The trials and repeats that were trained so far, to their ends or not."""
    steps: int = 0
    """Number of steps that these took."""
    furthest: int = 1
    """The last step that any of them took."""
    timed_steps: int = 0
    """Number of steps that were taken in this session."""
    busy_seconds: float = 0.0
    """Seconds in which workers took these steps, and evaluated."""

    @property
    def left(self) -> int:
        return max(0, self.planned - self.done)

    @property
    def mean_steps(self) -> float:
        """The steps of its mean trial, at least about. Before any trial has passed the goals, the
        trials that are paused will go on, nobody knows how far."""
        if not self.left:
            return self.steps / len(self.trained)
        if self.best_steps:
            return max(self.steps / len(self.trained), PER_BEST * self.best_steps)
        return math.sqrt(self.furthest * self.study.budget_steps)

    def add(self, trial: Trial, outcome: Outcome) -> None:
        self.trained.add((trial.index, trial.repeat))
        self.steps += outcome.steps - outcome.resumed_steps
        self.furthest = max(self.furthest, outcome.steps)


class Progress:
    """The studies of a sweep; `slots` trials can run at once."""

    def __init__(self, studies: Iterable[Study]) -> None:
        self.studies = {
            study.key: StudyProgress(
                study=study, planned=study.trials, may_repeat=study.most_repeats
            )
            for study in studies
        }
        self.slots = 1
        self.notes: list[str] = []
        """Messages that are displayed below the table."""
        self._noted: set[str] = set()
        self.began = time.monotonic()
        self._started: dict[TrialKey, float] = {}
        self._last_stop = 0.0

    def note(self, kind: str, text: str) -> bool:
        """Shows a message, but only the first one of its kind. Returns whether it is the first."""
        if kind in self._noted:
            return False
        self._noted.add(kind)
        self.notes.append(text)
        logger.warning("%s", text)
        return True

    def forget(self, kind: str) -> None:
        """Lets the next message of this kind be shown again."""
        self._noted.discard(kind)

    def load(self, finished: FinishedTrial) -> None:
        """Takes note of a trial of an earlier session."""
        outcome = replace(finished.outcome, resumed_steps=0)
        self.studies[finished.trial.study.key].add(finished.trial, outcome)

    def follow(self, key: StudyKey, search: AnySearch) -> None:
        """Takes the numbers of a study from its search."""
        study = self.studies[key]
        study.planned, study.done = search.planned, search.settled
        study.may_repeat = search.may_repeat
        study.best_steps = search.frontier_step()

    def start(self, trial: Trial) -> None:
        study = self.studies[trial.study.key]
        if trial.key not in self._started:
            study.running += 1
        self._started[trial.key] = time.monotonic()

    def stop(self, trial: Trial, outcome: Outcome | None = None) -> None:
        """Takes note that a trial has left its worker: it ended with `outcome`, or, if that is
        None, will be tried again."""
        study = self.studies[trial.study.key]
        began = self._started.pop(trial.key, None)
        if began is None:
            return
        study.running -= 1
        self._last_stop = time.monotonic()
        if outcome is not None:
            alone = outcome.width == 1
            study.add(trial, outcome)
            study.timed_steps += outcome.steps - outcome.resumed_steps
            study.busy_seconds += self._last_stop - began if alone else outcome.own_seconds

    @property
    def running(self) -> int:
        return sum(study.running for study in self.studies.values())

    @property
    def paused(self) -> int:
        """The number of trials that are trained in part, and wait for what others tell."""
        begun = sum(len(study.trained) for study in self.studies.values())
        running = [*self._started]  # at once: the sweep starts and stops trials on another thread
        again = sum((key.index, key.repeat) in self.studies[key.study].trained for key in running)
        return max(0, begun - self.done - again)

    @property
    def done(self) -> int:
        return sum(study.done for study in self.studies.values())

    @property
    def planned(self) -> int:
        return sum(study.planned for study in self.studies.values())

    @property
    def may_repeat(self) -> int:
        return sum(study.may_repeat for study in self.studies.values())

    def seconds_left(self) -> float:
        """Estimated seconds left; NaN before any trial has been trained. How many steps trials take
        is known from all sessions. How long a step takes is known from this one alone, since the
        machines may have been others before. How far running trials have come is not known, so the
        estimate is made whenever a trial ends, and counted down from then on. What is overdue by a
        minute was taken for too little, and takes about another one."""
        studies = self.studies.values()
        if not (timed := [each for each in studies if each.busy_seconds and each.timed_steps]):
            return math.nan
        pace_of = _fitted(timed, [each.busy_seconds / each.timed_steps for each in timed], 0.5)
        begun = [each for each in studies if each.steps]
        known = [each for each in begun if not each.left] or begun
        steps_of = _fitted(known, [each.mean_steps for each in known], -0.5)
        repeated, work = _repeated(known), 0.0
        for each in studies:
            trials = each.planned + round(repeated * each.may_repeat)
            if (left := trials - each.done) > 0:
                steps = each.mean_steps if each.best_steps else steps_of(each.study)
                # If it took more than others did, its last trials are still to be trained.
                left_steps = max(steps * trials - each.steps, steps * left / 4)
                work += left_steps * pace_of(each.study)
        # A cluster may still have to grow to its number of slots.
        seconds = work / max(1, min(self.running, self.slots))
        overdue = time.monotonic() - self._last_stop - seconds
        return max(abs(overdue), seconds / 10) if seconds else 0.0


def _repeated(known: Sequence[StudyProgress]) -> float:
    """The share of the most repeats that finished studies had: two goals may have one winner."""
    finished = [each for each in known if not each.may_repeat]
    most = sum(each.study.most_repeats for each in finished)
    return sum(each.planned - each.study.trials for each in finished) / most if most else 1.0


def _fitted(
    known: Sequence[StudyProgress], values: Sequence[float], power: float
) -> Callable[[Study], float]:
    """Returns what a study has, given the values of those that are known. It grows as the batch
    size to this power, and workload, recipe, batch size and each doubling of it multiply it by a
    factor, which is fitted by ridge regression and is 1 where nothing is known."""
    import numpy as np

    def parts(study: Study) -> list[tuple[str, object]]:
        return [("workload", study.workload), ("recipe", study.recipe), ("size", study.batch_size)]

    sizes = np.log2([each.study.batch_size for each in known])
    column: dict[tuple[str, object], int] = {("doublings", None): 0}
    for each in known:
        for part in parts(each.study):
            column.setdefault(part, len(column))

    def row(study: Study) -> NDArray[np.float64]:
        there = np.zeros(len(column))
        there[[column[part] for part in parts(study) if part in column]] = 1
        # How it grows between two large batch sizes tells nothing about small ones.
        size = min(max(math.log2(study.batch_size), sizes.min()), sizes.max())
        there[0] = size - sizes.mean()
        return there

    rows = np.array([row(each.study) for each in known])
    logs = np.log(values / 2 ** (power * sizes))
    level = logs.mean()
    inverse = np.linalg.inv(rows.T @ rows + np.eye(len(column)))
    factors = inverse @ rows.T @ (logs - level)
    # The mean of what scatters in logarithms lies above the exponential of their mean.
    level += np.log(np.exp(logs).sum() / np.exp(level + rows @ factors).sum())
    return lambda study: float(np.exp(level + row(study) @ factors)) * study.batch_size**power
