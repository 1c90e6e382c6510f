"""The best few trials of a study, as far as it is known that they are the best."""

from __future__ import annotations

import math

from orchestrator.records import Goal, Study
from orchestrator.results.counting import Counted, columns, first_steps, past
from orchestrator.results.store import Run


def leaders(run: Run, study: Study, goal: Goal, most: int) -> list[tuple[int, int]]:
    """(steps to the goal, trial) of at most so many trials, best first: up to where a trial that
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
    return [one for one in firsts if one < open_from][:most]
