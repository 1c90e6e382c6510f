"""The best few trials of a study, as far as it is known that they are the best."""

from __future__ import annotations

import math

from orchestrator.records import Goal, Study
from orchestrator.results.counting import Counted, columns, first_steps, past
from orchestrator.results.store import Run


def leaders(run: Run, study: Study, goal: Goal, most: int) -> list[int]:
    """The fewest steps to the goal, in order, of at most so many trials: up to where a trial that
    was ended early could have passed it before."""
    measurements = run.measurements(study.key, {goal.metric})
    trial, step, value = columns(measurements, goal.metric)
    passed = past(goal, value)
    counted = Counted(study, run.trials(study.key))
    firsts = first_steps(counted, trial[passed], step[passed])
    crossed = {index for _, index in firsts}
    open_from = min(
        (upcoming for upcoming in counted.next_steps() if upcoming[1] not in crossed),
        default=(math.inf, 0),
    )
    return [steps for steps, index in firsts if (steps, index) < open_from][:most]
