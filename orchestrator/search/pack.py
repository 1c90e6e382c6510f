"""The race among the trials that one process trains together. They know each other's results at
once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from orchestrator.records import FinishedTrial, Goal, Study
from orchestrator.search.queue import Proposal
from orchestrator.search.race import Bounds, ending, no_bounds, tighter
from orchestrator.search.result import bounds_after, result_of


class PackRace:
    """Decides when the trials of a pack end."""

    def __init__(self, study: Study, heard: Callable[[], Bounds | None] = lambda: None) -> None:
        """`heard` returns the newest bounds from trials in other processes."""
        self._study, self._heard = study, heard
        self._bounds = no_bounds(study)

    def record(self, finished: FinishedTrial) -> None:
        """Records a trial that ended in this process. A trial may end other trials only once its
        result is on its way to the run's files."""
        self._bounds = bounds_after(self._bounds, self._study, result_of(finished))

    def ending(
        self, proposal: Proposal, unmet: Collection[Goal], upcoming: int
    ) -> Literal["dominated", "paused"] | None:
        """Returns the status with which the trial ends at this measurement, by the present bounds;
        None if it goes on."""
        trial, bounds = proposal.trial, proposal.bounds
        if self._study.stop_dominated and not trial.repeat:
            for known in (self._bounds, self._heard()):
                bounds = tighter(self._study, bounds, known)
        return ending(
            self._study,
            bounds,
            proposal.limit,
            unmet=unmet,
            upcoming=upcoming,
            index=trial.index,
        )
