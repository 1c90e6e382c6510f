"""Goals that hold, by their definition, which tests compare with."""

from collections.abc import Sequence

from orchestrator.records import Goal, Measurement, Study


def first_held(study: Study, goal: Goal, measured: Sequence[Measurement]) -> int | None:
    """The first measurement from which on all pass, until they are as many or as far as the goal
    asks for, by that definition."""
    measured = [measurement for measurement in measured if goal.metric in measurement.metrics]
    for first, begins in enumerate(measured):
        for number, measurement in enumerate(measured[first:], start=1):
            if not goal.passed(measurement.metrics[goal.metric]):
                break
            trained = (measurement.step - begins.step) * study.batch_size
            if number >= goal.measurements and trained >= goal.examples:
                return begins.step
    return None
